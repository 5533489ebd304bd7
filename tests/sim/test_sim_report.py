"""The report of simulated runs: whole, readable by all, the same bytes, safe whatever a name is."""

from __future__ import annotations

import csv
import html.parser
import itertools
import json
import re
import sys
from pathlib import Path

import numpy as np
import pytest
from made_up_runs import job, run, span

from hpcext.cli.output import Output
from hpcext.cli.simulate.view import show
from hpcext.core.errors import InputError
from hpcext.render import style
from hpcext.sim.evaluate.comparison import Watts, compared
from hpcext.sim.evaluate.metrics import integral
from hpcext.sim.evaluate.outcome import SimulatedRun, Span
from hpcext.sim.report.files import write
from hpcext.sim.report.page import About, page
from hpcext.sim.report.thin import distribution, thinned

VOID = {"meta", "br", "link"}
HOSTILE = (
    "<script>alert(1)</script>",
    "\"><img src=x onerror='x'>",
    "$x^2$ & _hidden",
    "_under",
    "\u202ereversed",
    "not \udcff UTF-8",
    "=HYPERLINK(1)",
    "日本語 ü",
    'style="fill: #2563b0"',
    "x" * 300,
)


def several(
    label: str = "exclusive", other: str = "pollux:p=-1", jobs: int = 30
) -> list[SimulatedRun]:
    random = np.random.default_rng(1)
    runs = []
    for name, factor in ((label, 2.0), (other, 1.0)):
        for seed in (1, 2):
            lengths = random.uniform(50, 90, jobs) * factor
            runs.append(
                run(
                    name,
                    tuple(
                        job(str(i), 10.0 * i, 10.0 * i + 5, 10 * i + length, fair_s=100.0, lost=1.0)
                        for i, length in enumerate(lengths.tolist())
                    ),
                    tuple(span(10 * i, 10 * i + 10, 8, 6, 5, waiting=i % 3) for i in range(90)),
                    seed=seed,
                    done=1000.0,
                )
            )
    return runs


class Page(html.parser.HTMLParser):
    """What is in a page; fails where it is not well made."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self.feed(text)
        assert not self.open

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.words.append(data)

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.tags if name == tag]


def test_the_page_needs_nothing_else_and_runs_nothing() -> None:
    read = Page(page(several(), About("A title")))
    assert {name for name, _ in read.tags}.isdisjoint({"script", "link", "img", "iframe", "object"})
    for _, attributes in read.tags:
        assert not any(name.startswith("on") or name == "src" for name in attributes)
        for name in ("href", "xlink:href"):
            target = attributes.get(name) or "#"
            assert target.startswith("#") or re.fullmatch(r"\w+\.(csv|json)", target)
    assert "http" not in "".join(
        value or "" for _, each in read.tags for name, value in each.items() if name != "http-equiv"
    )


def test_the_page_is_readable_by_all() -> None:
    read = Page(page(several(), About("A title")))
    assert read.all("html") == [{"lang": "en"}]
    assert len(read.all("table")) == len(read.all("caption")) >= 3
    assert all(each.get("scope") in {"col", "row"} for each in read.all("th"))
    ids = [each["id"] for _, each in read.tags if "id" in each]
    assert len(ids) == len(set(ids))
    plots = [each for each in read.all("svg") if each.get("role") == "img"]
    # Completion, utilisation, efficiency, fairness, and the allocation of both policies.
    assert len(plots) == 6
    for each in plots:
        assert set((each["aria-labelledby"] or "").split()) <= set(ids)
    assert all(each.get("aria-hidden") for each in read.all("svg") if each.get("role") != "img")
    assert len(read.all("figcaption")) == 6


def test_every_colour_is_one_of_the_page() -> None:
    # So that all of a plot changes when the page goes dark.
    text = page(several(), About())
    plots = re.findall(r'<svg viewBox="[^"]*" role="img".*?</svg>', text, flags=re.DOTALL)
    assert plots
    for plot in plots:
        assert not re.findall(r"(?:fill|stroke): *#\w+", plot)
        used = set(re.findall(r"var\(--(\w+)\)", plot))
        assert used <= set(style.LIGHT)
        assert len(used) >= 3


def named(name: str) -> tuple[list[SimulatedRun], About]:
    """Two runs; the job is delayed in the second, so that its name is in the page too."""
    runs = [
        run(label, (job(name, 0, 1, end),), (span(0, 9, 4, 4, 3),), seed=1)
        for label, end in ((name, 5.0), (name + "2", 8.0))
    ]
    return runs, About(name, (name,), {"Option": name})


@pytest.fixture(scope="module")
def plain() -> Page:
    """A page whose names are of letters."""
    return Page(page(*named("plain")))


@pytest.mark.cases(3)
@pytest.mark.parametrize(
    "name",
    [*HOSTILE[:6], *(pytest.param(name, marks=pytest.mark.slow) for name in HOSTILE[6:])],
    ids=lambda name: ascii(name[:20]),
)
def test_names_do_no_harm(name: str, plain: Page, tmp_path: Path) -> None:
    text = write(tmp_path, *named(name)).read_text()
    read = Page(text)
    # The same tags with the same attributes as with a name of letters.
    kinds, usual = ({(tag, *sorted(each)) for tag, each in found.tags} for found in (read, plain))
    assert kinds == usual
    if name.isprintable():
        assert sum(name in words for words in read.words) >= 6
    assert "\u202e" not in text
    rows = list(csv.reader((tmp_path / "jobs.csv").read_text().splitlines()))
    assert {len(row) for row in rows} == {len(rows[0])}
    assert len(rows) == 3
    assert not any(cell.startswith(("=", "@")) for row in rows for cell in row)


EDGES = {
    "no run": [],
    "no job, nothing offered": [run("a")],
    "no job": [run("a", (), (span(0, 10, 4, 0, 0),))],
    "none finished": [run("a", (job("x", 0, 1, state="running"),), (span(0, 10, 4, 4, 4),))],
    "none started": [run("a", (job("x", 0, state="pending"),), (span(0, 10, 4, 0, 0),))],
    "one span": [run("a", (job("x", 0, 0, 10),), (span(0, 10, 4, 4, 4),))],
    "no GPU": [run("a", (job("x", 0, state="pending"),), (span(0, 10, 0, 0, 0),))],
    "no time": [run("a", (job("x", 0, 0, 0, fair_s=0.0),), (span(0, 0, 4, 4, 4),))],
    "a policy with none": [*several(), run("nothing", seed=1)],
    "the baseline has none": [run("nothing", seed=1), *several()],
}


@pytest.mark.cases(5)
@pytest.mark.parametrize("runs", EDGES.values(), ids=EDGES)
def test_runs_in_which_little_happened(runs: list[SimulatedRun], tmp_path: Path) -> None:
    text = write(tmp_path, runs, About(watts=Watts(300, 50))).read_text()
    read = Page(text)
    assert "nan" not in "".join(read.words).lower().replace("nanos", "")
    words = " ".join(read.words)
    if not runs:
        assert "There is no run." in words
    elif all(row.jct_s is None for each in runs for row in each.jobs):
        assert "No job completed." in words
    if runs and not any(each.offered for one in runs for each in one.spans):
        assert "No GPU was offered." in words


def test_the_same_runs_give_the_same_bytes(tmp_path: Path) -> None:
    import matplotlib as mpl

    first, second = tmp_path / "1", tmp_path / "2"
    for folder in (first, second):
        folder.mkdir()
    write(first, several(), About())
    # What a user has set for plots of their own is not for ours.
    with mpl.rc_context(
        {"font.size": 20, "axes.grid": False, "xtick.labelsize": 30, "axes.xmargin": 1}
    ):
        write(second, several(), About())
    names = sorted(path.name for path in first.iterdir())
    assert names == ["jobs.csv", "report.html", "spans.csv", "summary.csv", "summary.json"]
    for name in names:
        assert (first / name).read_bytes() == (second / name).read_bytes()


@pytest.mark.slow
def test_a_page_of_very_many_jobs_is_small() -> None:
    spans = tuple(span(i, i + 1, 8, 6 + i % 2, 5, waiting=i % 7) for i in range(50_000))
    ends = np.random.default_rng(0).uniform(1, 1e6, 50_000).tolist()
    jobs = tuple(job(str(i), 0, 0, end, fair_s=5e5) for i, end in enumerate(ends))
    text = page([run("a", jobs, spans), run("b", jobs, spans)], About())
    assert len(text) < 600_000


@pytest.mark.slow
def test_many_policies_are_all_in_the_tables() -> None:
    jobs, spans = (job("x", 0, 0, 5),), (span(0, 5, 4, 4, 4),)
    read = Page(page([run(f"policy{i}", jobs, spans) for i in range(40)], About()))
    assert sum("policy39" in words for words in read.words) >= 2
    assert any("28 more are in spans.csv" in words for words in read.words)
    assert any("The first 25 of 40 policies." in words for words in read.words)


def test_thinned_curves_keep_their_means() -> None:
    random = np.random.default_rng(3)
    edges = np.cumsum(random.exponential(1, 5001))
    values = random.uniform(0, 9, 5000)
    spans = [
        Span(a, b, value, 0, 0, 0, 0) for a, b, value in zip(edges, edges[1:], values, strict=False)
    ]
    for most in (1, 7, 600, 4999, 5000):
        x, y = thinned(spans, ("offered",), most)
        assert len(x) == most + 1
        assert (x[0], x[-1]) == (edges[0], edges[-1])
        assert np.sum(np.diff(x) * y[:-1]) == pytest.approx(integral(spans, "offered"))
    assert thinned([], ("offered",)).shape == (2, 0)


def test_distributions_keep_their_ends() -> None:
    x, y = distribution(np.array([3.0, 1.0, 2.0]), of=4)
    assert (x.tolist(), y.tolist()) == ([1, 2, 3], [0.25, 0.5, 0.75])
    x, y = distribution(np.arange(100_000.0), of=100_000, most=500)
    assert len(x) <= 500
    assert (x[0], x[-1], y[-1]) == (0, 99_999, 1)
    assert np.allclose(y, (x + 1) / 100_000)


def test_without_matplotlib_it_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(InputError, match=r"hpcext\[plots\]"):
        write(tmp_path, several(), About())
    assert not list(tmp_path.iterdir())


def test_the_figures_behind_the_page(tmp_path: Path) -> None:
    runs = several()
    write(tmp_path, runs, About("T", ("assumed",), {"k": "v"}, Watts(300, 50)))
    with (tmp_path / "jobs.csv").open(newline="") as file:
        jobs = list(csv.DictReader(file))
    assert len(jobs) == 120
    assert float(jobs[0]["jct_s"]) == runs[0].jobs[0].jct_s
    with (tmp_path / "spans.csv").open(newline="") as file:
        assert sum(1 for _ in csv.DictReader(file)) == 360
    with (tmp_path / "summary.csv").open(newline="") as file:
        lines = list(csv.DictReader(file))
    assert [(each["label"], each["seed"]) for each in lines] == [
        (each.label, str(each.seed)) for each in runs
    ]
    document = json.loads((tmp_path / "summary.json").read_text())
    assert document["schema"] == "hpcext.summary/1"
    assert document["baseline"] == "exclusive"
    pollux = document["policies"][1]
    mean = np.mean(
        [float(line["jct_mean_s"]) for line in lines if line["label"] == pollux["label"]]
    )
    assert pollux["figures"]["jct_mean_s"]["mean"] == pytest.approx(mean)
    assert pollux["ratios"]["jct_mean_s"]["seeds"] == 2


def test_on_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    show(Output(), compared(several("exclusive", "bad\x1b[2Jname"), Watts(300, 50)))
    shown = capsys.readouterr().out
    assert "against exclusive:" in shown
    assert "Energy saved (kWh)" in shown
    assert "\x1b" not in shown
    show(Output(), compared([run("a")]))
    assert "against" not in capsys.readouterr().out
    show(Output(), ())
    assert capsys.readouterr().out == "no run\n"


# What people see who lack one kind of cone: Machado, Oliveira and Fernandes (2009), table of
# severity 1.0, for linear RGB. OKLab: Ottosson (2020).
SEEN = {
    "all": np.eye(3),
    "no red": [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216],
               [-0.003882, -0.048116, 1.051998]],
    "no green": [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413],
                 [-0.011820, 0.042940, 0.968881]],
    "no blue": [[1.255528, -0.076749, -0.178779], [-0.078411, 0.930809, 0.147602],
                [0.004733, 0.691367, 0.303900]],
}  # fmt: skip
LMS = [[0.4122214708, 0.5363325363, 0.0514459929], [0.2119034982, 0.6806995451, 0.1073969566],
       [0.0883024619, 0.2817188376, 0.6299787005]]  # fmt: skip
LAB = [[0.2104542553, 0.7936177850, -0.0040720468], [1.9779984951, -2.4285922050, 0.4505937099],
       [0.0259040371, 0.7827717662, -0.8086757660]]  # fmt: skip


def linear(colour: str) -> np.ndarray:
    parts = np.array([int(colour[i : i + 2], 16) for i in (1, 3, 5)]) / 255
    return np.where(parts <= 0.04045, parts / 12.92, ((parts + 0.055) / 1.055) ** 2.4)


@pytest.mark.parametrize("theme", [style.LIGHT, style.DARK], ids=["light", "dark"])
def test_curves_can_be_told_apart(theme: dict[str, str]) -> None:
    assert len(set(theme.values())) == len(theme) == len(style.LIGHT)

    def luminance(name: str) -> float:
        return float(linear(theme[name]) @ [0.2126, 0.7152, 0.0722])

    for name in (*style.CURVES, style.TRAINING, style.WAITING, style.INK, style.MUTED):
        low, high = sorted((luminance(name), luminance(style.PAGE)))
        assert (high + 0.05) / (low + 0.05) >= (4.5 if name in {style.INK, style.MUTED} else 3)
    for seen in SEEN.values():
        labs = [
            np.array(LAB)
            @ np.cbrt(np.array(LMS) @ np.clip(np.array(seen) @ linear(theme[c]), 0, 1))
            for c in style.CURVES
        ]
        assert min(np.linalg.norm(a - b) for a, b in itertools.combinations(labs, 2)) >= 0.1
    assert len({style.look(index) for index in range(style.MOST_CURVES)}) == style.MOST_CURVES
