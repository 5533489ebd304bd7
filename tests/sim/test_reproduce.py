"""``hpcext reproduce``: what it prints and writes, and whom it refuses."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest

from hpcext.cli.main import main
from hpcext.papers import PAPERS, find_papers, marble
from hpcext.papers.marble import MarbleRun
from hpcext.papers.study import Extent, Row, Study, Table, many


def small(how: Extent) -> Study:
    rows = (
        Row("near", 1.0, 1.1, "s"),
        Row("far", 2000.0, 1000.0, "s", "it is as it is"),
        Row("also far", 2.0, 1.0, "s", "it is as it is"),
        Row("ours alone", float(len(how.seeds))),
        Row("not measured", None, 3.0, "s", "no data"),
    )
    table = Table("Table 1", rows, "a note")
    return Study("marble", "A paper", (table,), ("nothing",))


@pytest.fixture
def quickly(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(marble, "study", small)


@pytest.mark.usefixtures("quickly")
def test_what_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["reproduce", "marble"]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    assert out.splitlines() == [
        "A paper",
        "",
        "Table 1",
        "(a note)",
        "              ours     paper    ratio",
        "near          1 s      1.1 s    0.91",
        "far           2,000 s  1,000 s  2.00   far",
        "also far      2 s      1 s      2.00   far",
        "ours alone    3        -",
        "not measured  -        3 s",
        "  far; also far: it is as it is",
        "  not measured: no data",
        "",
        "What was assumed",
        "- nothing",
        "",
    ]


@pytest.mark.usefixtures("quickly")
def test_the_document_and_the_files(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "deep" / "er"
    words = ["reproduce", "marble", "--seed", "4", "2", "4", "--quick", "--out", str(folder)]
    assert main([*words, "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document == json.loads((folder / "study.json").read_text())
    assert list(document) == ["schema", "seeds", "quick", "far", "studies"]
    assert (document["schema"], document["seeds"]) == ("hpcext.reproduce/1", [4, 2])
    (table,) = document["studies"]["marble"]["tables"]
    assert table["rows"][1] == {
        "what": "far", "ours": 2000.0, "paper": 1000.0, "unit": "s", "why": "it is as it is",
        "ratio": 2.0, "far": True,
    }  # fmt: skip
    assert (table["rows"][3]["ours"], table["rows"][3]["ratio"]) == (2.0, None)
    with (folder / "study.csv").open(newline="") as file:
        lines = list(csv.DictReader(file))
    assert [line["what"] for line in lines] == [row["what"] for row in table["rows"]]
    assert lines[0] == {
        "study": "marble", "table": "Table 1", "what": "near", "ours": "1.0", "paper": "1.1",
        "unit": "s", "ratio": repr(1 / 1.1), "why": "",
    }  # fmt: skip
    assert lines[4]["ours"] == ""
    first = (folder / "study.csv").read_bytes()
    assert main(words) == 0
    assert (folder / "study.csv").read_bytes() == first


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["marbel"], "PAPER: unknown paper 'marbel' (valid: marble, doubling, bftrainer"),
        (["lb_bsp"], "unknown paper 'lb_bsp'"),
        (["marble", "--seed", "-1"], "--seed: -1 (valid: 0 to 4294967295)"),
        (["marble", "--seed", "x"], "--seed: 'x' (valid: an integer)"),
        (["marble", "--workers", "0"], "--workers: 0 (valid: 1 to 1024)"),
        (["marble", "--data", "/no/such"], "--data /no/such: no such directory"),
        (["marble", "--out", "/dev/null/x"], "--out /dev/null/x: Not a directory"),
    ],
)
def test_what_is_wrong_is_one_line(
    words: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["reproduce", *words]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert said in err
    assert err.count("\n") == 1


def test_all_are_those_that_there_are() -> None:
    assert find_papers("all", "PAPER") == tuple(PAPERS)
    assert find_papers("doubling", "PAPER") == ("doubling",)


def test_the_figures_do_not_depend_on_how_many_processes_there_are() -> None:
    cases = [MarbleRun(number, "marble", (7, number)) for number in (3, 1, 2)]
    found = dict(zip(cases, map(marble.run, cases), strict=True))
    assert many(marble.run, cases, 2) == many(marble.run, cases) == found
