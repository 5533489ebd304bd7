"""Stored profiles: what the curve is, who may write at once, and what is refused."""

from __future__ import annotations

import json
import multiprocessing
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcext.core.errors import HpcextError, InputError
from hpcext.profiles import KEEP, LAST, Measurement, Profile, Profiles


def measured(gpus: int, rate: float, **more: Any) -> Measurement:
    return Measurement(
        **{"at": 1.0, "gpus": gpus, "steps_per_s": rate, "seconds": 10, "source": "job", **more}
    )


def store(tmp_path: Path, gpu: str = "") -> Profiles:
    return Profiles(tmp_path / "profiles", gpu, lock_s=5)


def test_what_was_added_is_read_again_and_merged(tmp_path: Path) -> None:
    profiles = store(tmp_path)
    assert profiles.names() == []
    profiles.add("cnn", [measured(1, 10), measured(2, 18)])
    profiles.add("cnn", [measured(2, 22, at=2), measured(4, 30, at=2)])
    profiles.add("a.json", [measured(1, 1)])
    assert profiles.names() == ["a.json", "cnn"]
    assert profiles.load("cnn").curve("steps") == {1: 10, 2: 20, 4: 30}
    assert profiles.curve("cnn", None) == ({1: 10, 2: 20, 4: 30}, False)
    assert profiles.directory.stat().st_mode & 0o777 == 0o700
    profiles.remove("cnn")
    assert profiles.names() == ["a.json"]


def test_only_the_last_measurements_of_a_size_make_the_curve() -> None:
    old = [measured(1, 1, at=n) for n in range(10)]
    new = [measured(1, 5, at=n) for n in range(10, 10 + LAST)]
    assert Profile().added([*new, *old]).curve("steps") == {1: 5}


def test_units_are_never_mixed(tmp_path: Path) -> None:
    profiles = store(tmp_path)
    profiles.add("both", [measured(1, 10, samples_per_s=80), measured(2, 9, samples_per_s=144)])
    profiles.add("both", [measured(4, 8)])
    assert profiles.curve("both", "steps") == ({1: 10, 2: 9, 4: 8}, False)
    assert profiles.curve("both", "samples") == ({1: 80, 2: 144}, False)
    # Where the work is not stated, samples say more: a step has more of them on more GPUs.
    assert profiles.curve("both", None) == ({1: 80, 2: 144}, False)
    profiles.add("steps", [measured(2, 10), measured(4, 15)])
    assert profiles.curve("steps", "samples") == ({2: 1.0, 4: 1.5}, True)


def test_kinds_of_gpu_and_numbers_of_nodes_are_never_mixed(tmp_path: Path) -> None:
    old = [measured(1, 10, gpu="V100"), measured(2, 20, gpu="V100")]
    new = [measured(1, 40, gpu="A100", at=2), measured(1, 70, gpu="A100", at=3, nodes=2)]
    store(tmp_path).add("cnn", [*old, *new])
    assert store(tmp_path, "V100").curve("cnn", "steps") == ({1: 10, 2: 20}, False)
    assert store(tmp_path, "A100").curve("cnn", "steps") == ({1: 40}, False)
    # Another kind: that of the last measurement is the best guess.
    assert store(tmp_path, "H100").curve("cnn", "steps") == ({1: 40}, False)
    assert store(tmp_path).load("cnn").curve("steps", "A100", nodes=2) == {1: 70}


def test_curves_of_all_kinds_are_in_one_unit(tmp_path: Path) -> None:
    profiles = store(tmp_path, "V100")
    profiles.add("cnn", [measured(1, 10, gpu="V100"), measured(2, 20, gpu="V100")])
    assert profiles.by_kind("cnn", None) == {}
    profiles.add("cnn", [measured(1, 40, gpu="A100"), measured(1, 70, gpu="H100", nodes=2)])
    curves = {"V100": {1: 10, 2: 20}, "A100": {1: 40}}
    assert profiles.by_kind("cnn", "steps") == curves
    # Where its own kind is not measured in samples, its steps are used for their shape.
    profiles.add("cnn", [measured(1, 5, gpu="P100", samples_per_s=50.0)])
    assert profiles.by_kind("cnn", "samples") == {**curves, "P100": {1: 5}}
    assert store(tmp_path, "P100").by_kind("cnn", "samples") == {}


@given(
    st.lists(
        st.builds(
            measured,
            st.integers(1, 3),
            st.floats(0.1, 100),
            at=st.floats(0, 1e9),
            seconds=st.floats(0.1, 1e4),
            nodes=st.integers(1, 2),
            samples_per_s=st.none() | st.floats(1, 1000),
        ),
        max_size=80,
    ),
    st.integers(0, 80),
)
def test_a_profile_is_bounded_and_its_curve_lies_among_what_was_measured(
    every: list[Measurement], cut: int
) -> None:
    profile = Profile().added(every[:cut]).added(every[cut:])
    kept = profile.measurements
    assert [each.at for each in kept] == sorted(each.at for each in kept)
    for gpus, nodes in {(each.gpus, each.nodes) for each in every}:
        before = sorted(e.at for e in every if (e.gpus, e.nodes) == (gpus, nodes))
        after = [e.at for e in kept if (e.gpus, e.nodes) == (gpus, nodes)]
        assert after == before[-KEEP:]
    for unit in ("steps", "samples"):
        curve = profile.curve(unit)
        known = {e.gpus for e in kept if e.nodes == 1 and e.rate(unit) is not None}
        assert set(curve) == known
        for gpus, rate in curve.items():
            rates = [e.rate(unit) or 0 for e in kept if e.nodes == 1 and e.gpus == gpus]
            assert min(r for r in rates if r) * 0.999 <= rate <= max(rates) * 1.001


def _write(directory: Path, who: int, count: int) -> None:
    profiles = Profiles(directory)
    for number in range(count):
        profiles.add("cnn", [measured(who + 1, 1 + number, at=float(number))])


def test_several_processes_write_at_once_and_nothing_is_lost(tmp_path: Path) -> None:
    directory = tmp_path / "profiles"
    context = multiprocessing.get_context("fork")
    writers = [context.Process(target=_write, args=(directory, who, 8)) for who in range(4)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join()
    assert [writer.exitcode for writer in writers] == [0] * 4
    kept = Profiles(directory).load("cnn").measurements
    found = sorted((each.gpus, each.steps_per_s) for each in kept)
    assert found == [(who + 1, 1.0 + number) for who in range(4) for number in range(8)]
    assert sorted(path.name for path in directory.iterdir()) == [".lock", "cnn.json"]


GOOD = json.loads('{"at": 1, "gpus": 1, "steps_per_s": 2.0, "seconds": 3, "source": "job"}')


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("", "truncated"),
        ('{"schema": "hpcext.profile/1", "measurem', "truncated"),
        ("[1]", "object"),
        ('{"schema": "hpcext.profile/2"}', "schema"),
        ('{"schema": "hpcext.profile/1", "measurement": []}', "measurement"),
        ("\xff\xfe", "profile"),
        ("[" * 100_000, "profile"),
        ({"gpus": 0}, "$.measurements[0].gpus"),
        ({"gpus": 10**9}, "$.measurements[0].gpus"),
        ({"gpus": "1"}, "$.measurements[0].gpus"),
        ({"steps_per_s": -1}, "$.measurements[0].steps_per_s"),
        ({"steps_per_s": None}, "$.measurements[0].steps_per_s"),
        ({"source": "rumour"}, "$.measurements[0].source"),
        ({"speed": 3}, "speed"),
    ],
)
def test_a_damaged_file_is_one_line_and_is_left_alone(
    tmp_path: Path, text: str | dict[str, Any], told: str
) -> None:
    profiles = store(tmp_path)
    profiles.add("good", [measured(1, 1)])
    path = profiles.directory / "cnn.json"
    if isinstance(text, dict):
        text = json.dumps({"schema": "hpcext.profile/1", "measurements": [{**GOOD, **text}]})
    path.write_text(text, encoding="latin-1")
    for use in (
        lambda: profiles.load("cnn"),
        lambda: profiles.curve("cnn", None),
        lambda: profiles.add("cnn", [measured(1, 1)]),
    ):
        with pytest.raises(InputError, match=re.escape(told)) as caught:
            use()
        assert str(path) in str(caught.value)
        assert "hpcext profile --remove cnn" in str(caught.value)
        assert "\n" not in str(caught.value)
        assert path.read_text(encoding="latin-1") == text
    assert profiles.names() == ["cnn", "good"]
    profiles.remove("cnn")
    assert profiles.names() == ["good"]


@pytest.mark.parametrize("rate", [0.0, -1.0, float("nan"), float("inf"), 1e300])
def test_what_could_not_be_read_is_not_written(tmp_path: Path, rate: float) -> None:
    profiles = store(tmp_path)
    with pytest.raises(InputError, match="cannot be stored"):
        profiles.add("cnn", [measured(1, rate)])
    assert profiles.names() == []


@pytest.mark.parametrize("name", ["", "../x", "a/b", ".lock", "x" * 65, "\x1b[2J", "12"])
def test_invalid_names_are_refused(tmp_path: Path, name: str) -> None:
    profiles = store(tmp_path)
    for use in (profiles.load, profiles.remove, lambda n: profiles.add(n, [measured(1, 1)])):
        with pytest.raises(InputError, match="valid: "):
            use(name)
    assert not profiles.directory.exists()


def test_an_unknown_name_names_the_nearest_and_all(tmp_path: Path) -> None:
    profiles = store(tmp_path)
    with pytest.raises(InputError, match=r"no profile 'cnn' .*none is stored.*--name cnn"):
        profiles.load("cnn")
    profiles.add("resnet50", [measured(1, 1)])
    profiles.add("vgg16", [measured(1, 1)])
    for use in (profiles.load, profiles.remove):
        with pytest.raises(InputError, match=r"valid: resnet50, vgg16.*did you mean resnet50\?"):
            use("resnt50")


def test_a_removed_profile_is_not_brought_back_by_a_job(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no profile"):
        store(tmp_path).add("cnn", [measured(1, 1)], new=False)
    assert store(tmp_path).names() == []


def _hold(directory: Path, held: Any, done: Any) -> None:
    with Profiles(directory)._writing(directory / "x.json"):
        held.set()
        done.wait()


def test_a_lock_that_is_held_is_an_error_and_not_a_hang(tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    held, done = context.Event(), context.Event()
    other = context.Process(target=_hold, args=(tmp_path, held, done))
    other.start()
    try:
        held.wait()
        with pytest.raises(HpcextError, match=r"locked for 0\.1 s"):
            Profiles(tmp_path, lock_s=0.1).add("cnn", [measured(1, 1)])
    finally:
        done.set()
        other.join()
    Profiles(tmp_path, lock_s=5).add("cnn", [measured(1, 1)])


def test_a_directory_that_cannot_be_made_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "profiles").write_text("in the way")
    with pytest.raises(HpcextError, match="cannot be written: Not a directory"):
        store(tmp_path).add("cnn", [measured(1, 1)])
    assert store(tmp_path).names() == []
