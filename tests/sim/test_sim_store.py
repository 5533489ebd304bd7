"""The folder of runs: what is whole is not simulated again, what is not ours is not touched."""

from __future__ import annotations

import os
from pathlib import Path
from typing import get_args

import msgspec
import pytest
from made_up_runs import job, run, span
from msgspec.structs import replace

from hpcext.broker.simulated.task import UsersTask
from hpcext.core.errors import HpcextError, InputError
from hpcext.sim.evaluate.store import Key, RunStore, digest
from hpcext.sim.replay.tasks import NodeSource, Task

KEY = Key("pollux:p=-1", "jobs.toml", "4 GPUs", "pollux", 3, options={"oracle": "yes", "a": "1"})
RUN = run(
    KEY.label,
    (job("ü <b>", 0.1, 1 / 3, 1e9 + 0.7), job("b", state="running", ended_s=None)),
    (span(0, 0.1 + 0.2, 4, 2, 1),),
    seed=3,
    done=0.30000000000000004,
)


def test_a_run_comes_back_as_it_was(tmp_path: Path) -> None:
    store = RunStore(tmp_path / "new" / "out")
    assert store.load(KEY) is None
    path = store.save(KEY, RUN, wall_s=1.5)
    assert store.load(KEY) == RUN
    again = RunStore(tmp_path / "new" / "out")
    assert again.load(replace(KEY, options={"a": "1", "oracle": "yes"})) == RUN
    assert again.timings() == {KEY.name: 1.5}
    document = msgspec.json.decode(path.read_bytes())
    assert document["schema"] == "hpcext.simulate/1"


def test_how_long_it_took_changes_no_result(tmp_path: Path) -> None:
    slow, fast = RunStore(tmp_path / "slow"), RunStore(tmp_path / "fast")
    other = replace(KEY, seed=4)
    for store, wall_s, keys in ((slow, 9.0, (KEY, other)), (fast, 1.0, (other, KEY))):
        for key in keys:
            store.save(key, replace(RUN, seed=key.seed), wall_s)
    assert slow.path(KEY).read_bytes() == fast.path(KEY).read_bytes()
    assert slow.timings() != fast.timings()


@pytest.mark.parametrize(
    "change",
    [
        {"label": "x"},
        {"workload": "x"},
        {"workload_digest": "x"},
        {"source": "x"},
        {"source_digest": "x"},
        {"policy": "x"},
        {"seed": 4},
        {"options": {"oracle": "no", "a": "1"}},
        {"version": "x"},
    ],
    ids=lambda change: next(iter(change)),
)
def test_whatever_differs_is_another_run(tmp_path: Path, change: dict[str, object]) -> None:
    store = RunStore(tmp_path)
    store.save(KEY, RUN)
    other = replace(KEY, **change)
    assert store.load(other) is None
    store.save(other, replace(RUN, label=other.label, seed=other.seed))
    assert store.load(KEY) == RUN


def test_an_option_of_0_is_another_one_than_none() -> None:
    task = Task("poisson:jobs=1", "marble", NodeSource(nodes="1x4"))
    numbers = [
        field.name
        for field in msgspec.structs.fields(Task)
        if field.default is None and float in get_args(field.type)
    ]
    assert {"launch_s", "checkpoint_s", "interference", "until_s"} <= set(numbers)
    for name in numbers:
        assert replace(task, **{name: 0.0}).options == task.options | {name: "0.0"}


def test_runs_without_such_options_keep_their_keys() -> None:
    place = NodeSource(nodes="1x4")
    plain = {name: f"{getattr(place, name)}" for name in place.__struct_fields__}
    known = {f"place.{name}": value for name, value in plain.items()} | {"rescale": "1.0"}
    assert Task("poisson:jobs=1", "marble", place).options == known
    of_users = {"users": "b.toml", "division": "weights", "owned": "()"}
    assert UsersTask("", "marble", place, users="b.toml").options == known | of_users


def test_labels_that_are_hostile_stay_in_the_folder(tmp_path: Path) -> None:
    store = RunStore(tmp_path)
    for label in ("../../etc/passwd", "/", "", ".", "a\0b", "x" * 5000, "-rf", "ü\n"):
        key = replace(KEY, label=label)
        path = store.save(key, replace(RUN, label=label))
        assert path.parent == tmp_path / "runs"
        assert not path.name.startswith((".", "-"))
        assert store.load(key) == replace(RUN, label=label)


def _cut(data: bytes) -> bytes:
    return data[: len(data) // 2]


@pytest.mark.parametrize(
    ("spoil", "what"),
    [
        (_cut, "is not a complete run"),
        (lambda _: b"", "is not a complete run"),
        (lambda _: b'{"a": 1}', "is not a complete run"),
        (lambda data: data.replace(b"simulate/1", b"simulate/9"), "schema 'hpcext.simulate/9'"),
        (lambda data: data.replace(b"4 GPUs", b"8 GPUs"), "another run"),
        (lambda data: data.replace(b'"gpu_s":0.0', b'"gpu_s":"x"'), "is not a complete run"),
        (lambda data: data.replace(b"jobs.toml", b"jobs\xff.toml"), "is not a complete run"),
    ],
    ids=["half", "empty", "foreign", "schema", "key", "type", "not UTF-8"],
)
def test_an_incomplete_file_is_named_and_kept(tmp_path: Path, spoil: object, what: str) -> None:
    store = RunStore(tmp_path)
    path = store.save(KEY, RUN)
    spoilt = spoil(path.read_bytes())  # type: ignore[operator]
    path.write_bytes(spoilt)
    with pytest.raises(InputError, match=what) as caught:
        store.load(KEY)
    line = str(caught.value)
    assert line.startswith(str(path))
    assert "\n" not in line
    assert path.read_bytes() == spoilt


def test_a_killed_run_leaves_no_result(tmp_path: Path) -> None:
    store = RunStore(tmp_path)
    path = store.path(KEY)
    path.with_name(f".{path.name}.0123456789ab").write_bytes(b"{")
    assert RunStore(tmp_path).load(KEY) is None


def test_a_folder_of_somebody_else_is_not_touched(tmp_path: Path) -> None:
    (tmp_path / "jobs.csv").write_text("mine")
    with pytest.raises(InputError, match="is not empty"):
        RunStore(tmp_path)
    assert os.listdir(tmp_path) == ["jobs.csv"]
    with pytest.raises(InputError, match=r"jobs\.csv"):
        RunStore(tmp_path / "jobs.csv")


def test_incomplete_timings_are_named(tmp_path: Path) -> None:
    store = RunStore(tmp_path)
    (tmp_path / "timings.json").write_text('{"schema": "hpcext.timings/1", "wall')
    with pytest.raises(InputError, match=r"timings\.json: is not complete"):
        store.save(KEY, RUN, wall_s=1)
    # The run itself is safe: it is written before how long it took.
    assert store.load(KEY) == RUN


def test_a_folder_that_goes_away(tmp_path: Path) -> None:
    store = RunStore(tmp_path / "out")
    os.rename(tmp_path / "out", tmp_path / "elsewhere")
    with pytest.raises(HpcextError, match="No such file"):
        store.save(KEY, RUN)


def test_names_that_are_not_utf_8(tmp_path: Path) -> None:
    store = RunStore(tmp_path)
    with pytest.raises(InputError, match="not UTF-8"):
        store.save(KEY, replace(RUN, jobs=(job("\udcff"),)))
    assert store.load(KEY) is None


def test_digest(tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(b"abc" * 1_000_000)
    first = digest(path)
    assert len(first) == 64
    path.write_bytes(b"abc" * 999_999 + b"abd")
    assert digest(path) != first
    with pytest.raises(InputError, match="No such file"):
        digest(tmp_path / "b")
