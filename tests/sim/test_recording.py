"""Recordings of pilots: what is read, what is refused, and how their jobs train."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import msgspec
import pytest

from hpcext.cli import main as cli
from hpcext.core import facts as f
from hpcext.core import values as v
from hpcext.core.engine import Engine
from hpcext.core.errors import InputError
from hpcext.core.estimate import GoodputReport
from hpcext.policies import find_policy
from hpcext.scaling.goodput import Goodput
from hpcext.scaling.throughput import Throughput
from hpcext.sim.pilots.piloted import Piloted
from hpcext.sim.pilots.recording import Adapting, Costs, Recording, read_recording, write_recording
from hpcext.sim.replay.physics import Where
from hpcext.sim.replay.run import Named, Scenario, SimulationOptions, run
from hpcext.sim.workloads.recorded import Trained, recorded_jobs

THETA = (0.05, 0.002, 0.01, 0.001, 0.1, 0.01, 1.0)
SAID = GoodputReport(100.0, 32, 1024, throughput=THETA, batch=64)
ADAPTING = {
    "goodput": {"noise_scale": 100.0, "initial_batch": 32, "throughput": THETA},
    "noise": [[0, 100.0], [5000, 400.0]],
    "known_from": 1000.0,
    "pace": 0.5,
}
PLAIN = {
    "id": "1", "name": "plain", "submitted_s": 0.0, "sizes": [1, 2], "optimal": 2, "work": 40.0,
    "speed": {"1": 1.0, "2": 2.0},
    "costs": {"resume_s": 3.0, "suspend_s": 1.0},
}  # fmt: skip
ADAPTS = {
    "id": "2", "name": "adapts", "submitted_s": 5.0, "sizes": [1, 2], "optimal": 2,
    "work": 10000.0, "adapting": ADAPTING, "after": ["1"],
}  # fmt: skip
DOCUMENT: dict[str, Any] = {
    "schema": "hpcext.recording/1",
    "policy": "pollux",
    "nodes": [{"gpus": 2}, {"gpus": 2}, {"gpus": 4, "kind": "a100"}],
    "jobs": [PLAIN, ADAPTS],
    "report_s": 0.5,
}


def written(path: Path, document: object) -> Path:
    path.write_text(json.dumps(document))
    return path


def test_what_is_written_is_read(tmp_path: Path) -> None:
    recording = read_recording(written(tmp_path / "a.json", DOCUMENT))
    assert recording.machine == "2x2,1xa100:4"
    write_recording(tmp_path / "b.json", recording)
    assert read_recording(tmp_path / "b.json") == recording
    plain, adapts = recorded_jobs(recording)
    assert (plain[1].speed, plain[1].resume_s) == ({1: 1.0, 2: 2.0}, 3.0)
    assert adapts[0].after == ("1",)


DUMB = {"noise_scale": 1.0, "initial_batch": 1}


def test_impossible_values_are_not_written(tmp_path: Path) -> None:
    recording = read_recording(written(tmp_path / "a.json", DOCUMENT))
    plain, adapts = recording.jobs
    liar = msgspec.structs.replace(plain, speed={1: 1e300})
    liars = msgspec.structs.replace(recording, jobs=(liar, adapts))
    with pytest.raises(InputError, match="a job reported an impossible value"):
        write_recording(tmp_path / "b.json", liars)
    assert not (tmp_path / "b.json").exists()


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"schema": "hpcext.recording/2"}, "written by a later release"),
    ({"schema": "hpcext.run/1"}, "not a document of schema hpcext.recording/1"),
    ({"nodes": []}, "$.nodes"),
    ({"nodes": [{"gpus": 0}]}, "$.nodes[0].gpus"),
    ({"nodes": [{"gpus": 1, "kind": "a b"}]}, "$.nodes[0].kind"),
    ({"jobs": []}, "$.jobs"),
    ({"jobs": [PLAIN, PLAIN]}, "two jobs have the same id"),
    ({"jobs": [ADAPTS]}, "waits for a job that is not in the recording"),
    ({"jobs": [PLAIN | {"submitted_s": 9.0}, ADAPTS]}, "submitted before the one above"),
    ({"jobs": [PLAIN | {"work": 0}]}, "$.jobs[0].work"),
    ({"jobs": [PLAIN | {"work": "much"}]}, "$.jobs[0].work"),
    ({"jobs": [PLAIN | {"sizes": [2, 1]}]}, "sizes must ascend"),
    ({"jobs": [PLAIN | {"nodes": [3, 2]}]}, "the minimum is more"),
    ({"jobs": [PLAIN | {"speed": {"1": -1.0}}]}, "$.jobs[0].speed[...]"),
    ({"jobs": [PLAIN | {"speed": {}}]}, "needs either speed or adapting"),
    ({"jobs": [PLAIN | {"adapting": ADAPTING}]}, "needs either speed or adapting"),
    ({"jobs": [PLAIN | {"colour": "red"}]}, "unknown field colour"),
    ({"jobs": [PLAIN | {"costs": {"resume_s": -1}}]}, "$.jobs[0].costs.resume_s"),
    ({"jobs": [PLAIN, ADAPTS | {"adapting": ADAPTING | {"noise": [[5, 1], [5, 2]]}}]}, "order"),
    ({"jobs": [PLAIN, ADAPTS | {"adapting": ADAPTING | {"noise": []}}]}, "adapting.noise"),
    ({"jobs": [PLAIN, ADAPTS | {"adapting": ADAPTING | {"goodput": DUMB}}]}, "no throughput"),
    ({"report_s": 0.0}, "$.report_s"),
]  # fmt: skip


@pytest.mark.parametrize(("change", "said"), WRONG)
def test_an_error_in_a_recording_is_explained(
    change: dict[str, Any], said: str, tmp_path: Path
) -> None:
    path = written(tmp_path / "a.json", DOCUMENT | change)
    with pytest.raises(InputError) as error:
        read_recording(path)
    assert str(error.value).startswith(f"{path}: "), error.value
    assert said in str(error.value).replace("`", "")


@pytest.mark.parametrize("text", ["", "[]", "{", "nul", "[" * 100_000, '{"report_s": 1e400}'])
def test_the_command_refuses_an_invalid_recording(
    text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "a.json"
    path.write_text(text)
    assert cli.main(["simulate", str(path)]) == 2
    said = capsys.readouterr().err
    assert said.startswith(f"hpcext: {path}: ")
    assert len(said.splitlines()) == 1


def test_it_is_simulated_on_its_own_machine_or_another(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = written(tmp_path / "a.json", DOCUMENT | {"nodes": [{"gpus": 2}]})

    def mean_jct_s(*words: str) -> float:
        assert cli.main(["simulate", str(path), "--policy", "exclusive", "--json", *words]) == 0
        (row,) = json.loads(capsys.readouterr().out)["policies"]
        return float(row["figures"]["jct_mean_s"]["mean"])

    own_s = mean_jct_s()
    assert own_s == mean_jct_s("--nodes", "1x2")
    assert own_s < mean_jct_s("--nodes", "1x1")
    assert cli.main(["simulate", "poisson:jobs=2"]) == 2
    assert "--nodes: is missing" in capsys.readouterr().err


def test_a_training_grows_its_batch_once_it_knows_what_that_is_worth() -> None:
    adapting = Adapting(SAID, ((0.0, 100.0), (5000.0, 1e6)), 1000.0, 0.5)
    trained, one = Trained(adapting, 10_000.0), Where((1,))
    first = trained.stretch(one, 0.0)
    assert first.rate == pytest.approx(0.5 * 32 / (0.05 + 0.002 * 32))
    assert (first.until, first.step_work) == (1000.0, 32.0)
    assert trained.said(one, 0.0).goodput is None
    # A pass at most twice as large as any before, and no larger than is best.
    totals = []
    for _ in range(4):
        second = trained.stretch(one, 1000.0)
        said = trained.said(one, 1000.0).goodput
        assert said is not None
        assert (said.noise_scale, said.throughput) == (100.0, THETA)
        totals.append(said.batch)
    best = Goodput(Throughput(*THETA), 100.0, 32, 1024).best(1, 1)
    assert totals[0] == 64 or int(best.batch) < 64
    assert totals[-1] == int(best.batch) * (int(best.accumulation) + 1)
    assert second.rate == pytest.approx(0.5 * float(best.goodput))
    assert second.until == 5000.0
    trained.stretch(one, 5000.0)
    late = trained.said(one, 5000.0).goodput
    assert late is not None
    assert late.noise_scale == 1e6
    assert late.batch is not None
    assert totals[-1] is not None
    assert late.batch > totals[-1]


def test_all_of_it_alone_takes_what_its_stretches_take() -> None:
    adapting = Adapting(SAID, ((0.0, 100.0), (4000.0, 400.0)))
    trained = Trained(adapting, 10_000.0)
    rates = [
        float(Goodput(Throughput(*THETA), noise, 32, 1024).best(2, 1).goodput)
        for noise in (100.0, 400.0)
    ]
    assert trained.alone_s(2, 4) == pytest.approx(4000 / rates[0] + 6000 / rates[1])
    assert trained.alone_s(1.5, 4) > trained.alone_s(2, 4)
    assert math.isfinite(trained.alone_s(0.5, 4))


def test_what_was_simulated_can_be_recorded() -> None:
    """A simulated pilot tells what a live one does; what is made of that is what it was made of."""
    policy = find_policy("pollux:interval_s=5,delay_s=1")
    costs = {"resume_s": 3.0, "in_place": True, "join_s": 2.0, "rescale_up_s": 0.5, "leave_s": 1.5}
    document = DOCUMENT | {
        "nodes": [{"gpus": 2}],
        "jobs": [
            PLAIN | {"sizes": [1], "optimal": 1, "speed": {"1": 1.0}},
            ADAPTS | {"after": [], "costs": costs, "work": 40_000.0},
        ],
    }
    recording = msgspec.json.decode(json.dumps(document), type=Recording)
    steps: list[tuple[float, tuple[f.Fact, ...]]] = []
    node = v.Node("n", 2)
    run(
        Scenario(recorded_jobs(recording), (node,)),
        policy,
        Named("pollux"),
        SimulationOptions(report_s=1.0),
        lambda _: lambda now_s, facts, actions: steps.append((now_s, facts)),
    )
    seen = Piloted(Engine(policy), steps)
    assert not seen.left_out
    again = seen.recording("pollux")
    assert again is not None
    plain, adapts = again.jobs
    assert again.report_s == pytest.approx(1.0)
    assert plain.speed == pytest.approx({1: 1.0})
    assert (plain.work, plain.costs.resume_s) == pytest.approx((40.0, 3.0))
    assert adapts.work == pytest.approx(40_000.0)
    assert adapts.costs == Costs(3.0, 0.0, 1.5, True, 2.0, 0.5, 0.0)
    found = adapts.adapting
    assert found is not None
    assert found.pace == pytest.approx(0.5, rel=0.02)
    assert [noise for _, noise in found.noise] == [100.0, 400.0]
    assert found.known_from == pytest.approx(1000.0, rel=0.2)
