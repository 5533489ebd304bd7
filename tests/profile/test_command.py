"""``hpcext profile`` with real trainings, from the outside; they keep the account."""

from __future__ import annotations

import json
import signal
import sys
import time
from itertools import pairwise

import pytest
from lab import Lab
from site_of_test import wait_for

from hpcext.cli.main import parse
from hpcext.cli.profile import _name, _numbers
from hpcext.core.errors import InputError
from hpcext.profiles import Measurement, Profiles


def leftovers(lab: Lab) -> list[str]:
    pilots = lab.site.path / "state" / "hpcext" / "pilots"
    return [str(path) for path in pilots.glob("*")] if pilots.exists() else []


def test_a_command_is_measured_on_each_number_of_gpus(lab: Lab) -> None:
    """The sizes that are asked for, one after the other, each from nothing and left behind."""
    argv = lab.command("0.12,0.02,0,0.12", "--samples", "8", "--gpus", "{gpus}")
    done = lab.site.run(
        "profile", "--gpus", "1,2,4", "--seconds", "2", "--json", "--name", "cnn", "--", *argv
    )
    assert done.code == 0, done
    document = json.loads(done.out)
    assert (document["schema"], document["unit"]) == ("hpcext.profile-run/1", "samples")
    assert document["optimal"] == 2
    account = lab.account()
    assert list(account) == [1, 2, 4]
    for size in document["sizes"]:
        steps = account[size["gpus"]]
        slowest, fastest = lab.rates(size["gpus"])
        assert slowest <= size["steps_per_s"] <= fastest
        assert size["samples_per_s"] == pytest.approx(8 * size["steps_per_s"])
        assert [step.step for step in steps] == list(range(1, len(steps) + 1))
        assert not any(step.resumed for step in steps)
    # They did not meet, neither in time nor in their checkpoints.
    spans = [(steps[0].time_s, steps[-1].time_s) for steps in account.values()]
    assert all(a[1] < b[0] for a, b in pairwise(spans))
    assert len({steps[0].checkpoints for steps in account.values()}) == 3
    assert not lab.site.left_behind()
    assert leftovers(lab) == []
    stored = json.loads((lab.profiles / "cnn.json").read_text())
    assert [each["gpus"] for each in stored["measurements"]] == [1, 2, 4]
    assert {each["source"] for each in stored["measurements"]} == {"profile"}


def test_a_size_that_fails_is_said_and_the_others_are_kept(
    lab: Lab, capsys: pytest.CaptureFixture[str]
) -> None:
    argv = lab.command("0.12,0.12,0.02", "--fail-on", "2")
    done = lab.site.run("profile", "--gpus", "3", "--seconds", "1", "--", *argv)
    assert done.code == 1
    assert "2 GPUs: exit code 1: out of memory on 2 GPUs" in done.out
    assert 'scaling = "paced"' in done.out
    assert lab.main("profile", "--show", "paced", "--json") == 0
    shown = json.loads(capsys.readouterr().out)
    assert list(shown["curve"]) == ["1", "3"]
    assert (shown["optimal"], len(shown["measurements"])) == (3, 2)


def test_curves_are_listed_shown_and_removed(lab: Lab, capsys: pytest.CaptureFixture[str]) -> None:
    sizes = {1: 10.0, 2: 16.0, 4: 16.1}
    Profiles(lab.profiles).add(
        "cnn",
        [
            Measurement(at=1e9, gpus=gpus, steps_per_s=rate, seconds=9, source="job", gpu="A100")
            for gpus, rate in sizes.items()
        ],
    )
    assert lab.main("profile", "--list") == 0
    listed = capsys.readouterr().out.splitlines()
    assert listed[1].split()[:6] == ["cnn", "1", "2", "4", "2", "steps"]
    assert lab.main("profile", "--show", "cnn") == 0
    shown = capsys.readouterr().out.splitlines()
    assert [line.split() for line in shown[1:4]] == [
        ["1", "10", "1.00", "100%"],
        ["2", "16", "1.60", "80%", "best"],
        ["4", "16.1", "1.61", "40%"],
    ]
    # As wide as the speeds, with dots up to a linear speed-up where there is room.
    bars = [line.split("|")[1] for line in shown[4:7]]
    assert [bar.count("#") for bar in bars] == [25, 40, 40]
    assert bars[1] == "#" * 40 + "  best"
    assert [line.split()[2:5] for line in shown[8:]] == [["job", str(n), "1"] for n in sizes]
    # The number alone: sbatch's hook reads it.
    for words, best in (
        ((), 2),
        (("--gpus", "1-3"), 2),
        (("--gpus", "4,5"), 4),
        (("--gpus", "1-1"), 1),
    ):
        assert lab.main("profile", "--best", "cnn", *words) == 0
        assert capsys.readouterr().out == f"{best}\n"
    assert lab.main("profile", "--best", "cnn", "--json") == 0
    assert json.loads(capsys.readouterr().out) == {
        "schema": "hpcext.profile-best/1", "name": "cnn", "optimal": 2,
    }  # fmt: skip
    assert lab.main("profile", "--best", "cnn", "--gpus", "5-9") == 2
    assert capsys.readouterr().err == (
        "hpcext: --gpus: 'cnn' was not measured on 5-9 GPUs (valid: 1, 2, 4); "
        "hpcext profile --name cnn --gpus 5-9 -- COMMAND measures it\n"
    )
    assert lab.main("profile", "--list", "--json") == 0
    (document,) = json.loads(capsys.readouterr().out)["profiles"]
    assert document == {
        "name": "cnn", "unit": "steps", "gpu": "A100", "optimal": 2,
        "curve": {"1": 10.0, "2": 16.0, "4": 16.1},
    }  # fmt: skip
    assert lab.main("profile", "--remove", "cnn") == 0
    assert lab.main("profile", "--list") == 0
    assert "no curve is stored" in capsys.readouterr().out


def test_what_cannot_be_measured_stores_nothing(lab: Lab) -> None:
    """A training that ends too soon, one without a session, one that does not run at all."""
    script = lab.site.path / "script.py"
    impatient = (
        "-c",
        "import hpcext.manager.profile as p; p.START_FACTOR = 2; "
        "from hpcext.__main__ import main; raise SystemExit(main())",
    )
    for text, why, python in (
        ("pass", "the training does not use a session of hpcext", ("-m", "hpcext")),
        ("import time; time.sleep(99)", "no session of hpcext reported in", impatient),
        ("raise SystemExit('so it is')", "exit code 1: so it is", ("-m", "hpcext")),
        ("", "ended after 3 steps, too soon", ("-m", "hpcext")),
    ):
        script.write_text(text)
        argv = [sys.executable, str(script)] if text else lab.command("0.01", "--steps", "3")
        words = ["--name", "x", "--gpus", "1", "--seconds", "1", "--", *argv]
        done = lab.site.run("profile", *words, python=python)
        assert (done.code, why in done.out) == (1, True), done
        assert "nothing is stored" in done.out
    assert not (lab.profiles / "x.json").exists()
    assert not lab.site.left_behind()
    assert leftovers(lab) == []


def test_a_short_training_is_measured_to_its_end(lab: Lab) -> None:
    argv = lab.command("0.02", "--steps", "120")
    done = lab.site.run("profile", "--gpus", "1", "--json", "--", *argv)
    assert done.code == 0, done
    (size,) = json.loads(done.out)["sizes"]
    assert len(lab.account()[1]) == 120
    slowest, fastest = lab.rates(1)
    assert slowest <= size["steps_per_s"] <= fastest


@pytest.mark.parametrize("times", [1, 2])
def test_an_interrupt_ends_it_and_keeps_what_was_measured(lab: Lab, times: int) -> None:
    """A second one, which leaves at once, leaves nothing running all the same."""
    argv = lab.command("0.03,0.03")
    process = lab.site.start("profile", "--gpus", "2", "--seconds", "1", "--", *argv)
    wait_for(lambda: 2 in lab.account(), "the second size")
    for _ in range(times):
        process.send_signal(signal.SIGINT)
        time.sleep(0.02)
    out, err = process.communicate()
    assert process.returncode == 130, (out, err)
    assert not lab.site.left_behind()
    assert leftovers(lab) == []
    assert list(Profiles(lab.profiles).load("paced").curve("steps")) == [1]


def test_a_damaged_profile_is_refused_before_anything_runs(
    lab: Lab, capsys: pytest.CaptureFixture[str]
) -> None:
    lab.profiles.mkdir(parents=True)
    (lab.profiles / "paced.json").write_text("{}]")
    assert lab.main("profile", "--gpus", "1", "--", *lab.command("0.01")) == 2
    told = capsys.readouterr().err
    assert told.count("\n") == 1
    assert "hpcext profile --remove paced" in told
    assert lab.account() == {}
    # Others can be seen all the same.
    assert lab.main("profile", "--list") == 0
    assert "paced.json" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ([], "no command to measure"),
        (["--list", "--", "true"], "--list does not take a command"),
        (["--list", "--show", "x"], "valid: one of"),
        (["--show", "x", "--gpus", "2"], "--gpus can be given for a measurement only"),
        (["--best", "nothing"], "no profile 'nothing'"),
        (["--best", "x", "--gpus", "two"], "--gpus: 'two'"),
        (["--best", "x", "--seconds", "2"], "--seconds can be given for a measurement only"),
        (["--show", "nothing"], "no profile 'nothing'"),
        (["--gpus", "0", "--", "true"], "--gpus: '0' (valid: 4 for 1 to 4"),
        (["--gpus", "3-1", "--", "true"], "--gpus: '3-1'"),
        (["--gpus", "1,,2", "--", "true"], "--gpus: '1,,2'"),
        (["--gpus", "1000", "--", "true"], "at most 64"),
        (["--seconds", "0", "--gpus", "1", "--", "true"], "--seconds: '0' (valid: a number, 1 to"),
        (["--seconds", "nan", "--gpus", "1", "--", "true"], "--seconds: 'nan'"),
        (["--name", "a b", "--gpus", "1", "--", "true"], "--name: 'a b'"),
        (["--gpus", "1", "--", "no-such-command"], "command 'no-such-command'"),
        (["--gpu", "1", "--", "true"], "did you mean --gpus?"),
    ],
)
def test_bad_input_is_one_line(
    lab: Lab, words: list[str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert lab.main("profile", *words) == 2
    printed = capsys.readouterr()
    assert (printed.out, printed.err.count("\n")) == ("", 1)
    assert told in printed.err


@pytest.mark.parametrize(
    ("text", "sizes"),
    [("1", [1]), ("4", [1, 2, 3, 4]), ("1,2,4", [1, 2, 4]), ("2-4", [2, 3, 4]), ("4-4", [4]),
     ("8,1-2,2", [1, 2, 8])],
)  # fmt: skip
def test_numbers_of_gpus(text: str, sizes: list[int]) -> None:
    assert _numbers(text) == sizes


@pytest.mark.parametrize(
    ("argv", "name"),
    [
        ("python train.py --epochs 3", "train"),
        ("torchrun --nproc-per-node {gpus} examples/digits_cnn.py", "digits_cnn"),
        ("python -m my.package.train --x", "train"),
        ("/opt/bin/trainer -x", "trainer"),
        ("./run.sh", "run.sh"),
    ],
)
def test_a_curve_is_named_after_the_script(argv: str, name: str) -> None:
    assert _name(None, argv.split()) == name
    assert _name("other", argv.split()) == "other"
    with pytest.raises(InputError, match="--name"):
        _name(None, ["42"])


@pytest.mark.parametrize("dashes", [["--"], []])
def test_the_options_of_the_command_are_its_own(dashes: list[str]) -> None:
    words = ["python", "train.py", "--json", "-q", "--", "--name", "x"]
    args = parse(["profile", "--gpus", "2", *dashes, *words])
    assert args.argv == [*dashes, *words]
    assert (args.json, args.quiet, args.name, args.gpus) == (False, False, None, "2")
