"""What LSF says of hosts, queues, windows and reservations, as it was printed or documented."""

from __future__ import annotations

import math
import time
from pathlib import Path

import pytest

from hpcext.batch.leasing import Idle
from hpcext.batch.lsf import idle as lsf_idle
from hpcext.batch.lsf.engine import LsfEngine, LsfRelease, parse_options, parse_release
from hpcext.batch.lsf.idle import BackfillWindow, Load, LsfGpu
from hpcext.batch.lsf.queues import LsfQueue, parse_queue
from hpcext.batch.lsf.reserved import Reserved, parse_reserved
from hpcext.core.errors import BatchError
from hpcext.textfiles import parse_toml

RECORDED = Path(__file__).parent / "recorded" / "lsf"
ANY = LsfQueue("q", "Open:Active", math.inf, ("all",), backfill=True)
NOW = time.mktime((2026, 11, 23, 12, 30, 0, 0, 0, -1))  # a Monday


def said(name: str) -> str:
    return (RECORDED / name).read_text(encoding="utf-8")


def test_each_text_says_where_it_is_from() -> None:
    origins = parse_toml(said("origins.toml"), "origins.toml")
    assert set(origins) == {path.name for path in RECORDED.iterdir()} - {"origins.toml"}


def test_hosts() -> None:
    assert lsf_idle.parse_hosts(said("bhosts-json.json")) == {
        "ip-10-30-9-105": Load("ip-10-30-9-105", "closed_Full", 4, 4, 0)
    }
    wide = lsf_idle.parse_hosts(said("bhosts-wide.txt"))
    assert [name for name, load in wide.items() if load.idle] == ["gpu-01"]
    assert wide["cpu-02"] == Load("cpu-02", "ok", 128, 16, 0)
    (bars,) = lsf_idle.parse_hosts(said("bhosts-bars.txt")).values()
    assert bars.idle
    assert bars.slots == 4


def test_slots_that_are_kept_are_not_used() -> None:
    kept = lsf_idle.parse_hosts(said("bhosts-kept.txt"))["ys2667-ib"]
    assert (kept.used, kept.kept, kept.idle) == (0, 16, True)
    nodes = lsf_idle.idle_nodes({"ys2667-ib": kept}, {}, ANY)
    assert nodes["ys2667-ib"] == Idle("ys2667-ib", True, True, 0, "", 32, 0)


@pytest.mark.parametrize(
    ("status", "used", "kept", "idle"),
    [
        ("ok", 0, 0, True), ("ok", 1, 0, False), ("closed_Full", 0, 4, True),
        ("closed_Full", 0, 0, False), ("closed_Full", 4, 0, False), ("closed_Adm", 0, 0, False),
        ("closed_Excl", 0, 0, False), ("closed_RC", 0, 0, False), ("closed", 0, 4, False),
        ("unavail", 0, 0, False), ("unreach", 0, 0, False), ("closed_LIM", 0, 0, False),
    ],
)  # fmt: skip
def test_statuses(status: str, used: int, kept: int, idle: bool) -> None:
    """bhosts(1), STATUS; one that is kept as a whole is full though nothing runs."""
    assert Load("a", status, 4, used, kept).idle == idle


@pytest.mark.parametrize("empty", ["", "-"])
def test_missing_fields_are_unknown(empty: str) -> None:
    row = f'"MAX": "{empty}", "NJOBS": "{empty}", "NGPUS": "{empty}", "NGPUS_ALLOC": "{empty}"'
    text = f'{{"RECORDS": [{{"HOST_NAME": "a", "STATUS": "ok", {row}}}, {{"ERROR": "no"}}]}}'
    (load,) = lsf_idle.parse_hosts(text).values()
    assert (load.slots, load.gpus, load.gpus_used) == (None, None, None)
    assert not load.idle  # nobody says that nothing runs


@pytest.mark.parametrize("text", ["{", "{}", '{"RECORDS": [1]}'])
def test_output_that_is_not_json_is_refused(text: str) -> None:
    with pytest.raises(BatchError, match="not JSON"):
        lsf_idle.parse_hosts(text)


def test_gpus() -> None:
    gpus = lsf_idle.parse_gpus(said("bhosts-gpu.txt"))
    assert gpus["n-62-11-10"] == 2 * (LsfGpu("TeslaV100_PCIE_32GB", 0),)
    assert [gpu.jobs for gpu in gpus["n-62-11-14"]] == [1, 1]
    loads = {name: Load(name, "ok", 32, 0, 0) for name in gpus}
    nodes = lsf_idle.idle_nodes(loads, gpus, ANY)
    assert [name for name, node in nodes.items() if node.idle] == ["n-62-11-10"]
    assert nodes["n-62-11-13"][3:6] == (2, "TeslaV100_PCIE_32GB", 32)
    (counted,) = lsf_idle.parse_hosts(
        said("bhosts-ngpus.txt")
        .replace("NGPUS|", "STATUS|NGPUS|", 1)
        .replace("internal|", "internal|ok|")
    ).values()
    assert (counted.gpus, counted.gpus_used) == (1, 0)


def test_gpus_of_several_models_are_of_none() -> None:
    both = (LsfGpu("A", 0), LsfGpu("B", 0))
    nodes = lsf_idle.idle_nodes({"a": Load("a", "ok", 8, 0, 0)}, {"a": both}, ANY)
    assert (nodes["a"].gpus, nodes["a"].kind) == (2, "")


def test_windows() -> None:
    (window,) = lsf_idle.parse_windows(said("bslots-long.txt"))
    assert (window.slots, window.run_s) == (70, 6 * 3600 + 37 * 60)
    assert window.hosts["m4071"] == 11
    assert lsf_idle.parse_windows(said("bslots-short.txt")) == (BackfillWindow(2, math.inf, {}),)
    assert lsf_idle.parse_windows(said("bslots-none.txt")) == ()


def test_windows_whose_hosts_take_several_lines() -> None:
    text = "SLOTS: 3\nRUNTIME: 1 hour 30 minutes\nHOSTS: 2*a\n    1*b\n\n"
    text += "SLOTS: 9\nRUNTIME: 40 minutes\nHOSTS: 4*a 4*b c\n"
    assert lsf_idle.parse_windows(text) == (
        BackfillWindow(3, 5400, {"a": 2, "b": 1}),
        BackfillWindow(9, 2400, {"a": 4, "b": 4, "c": 1}),
    )
    with pytest.raises(BatchError, match="not a duration"):
        lsf_idle.parse_windows("SLOTS: 1\nRUNTIME: soon\n")


def test_queues() -> None:
    text = said("bqueues-long.txt")
    queue = parse_queue(text)
    hosts = ("gpu-01", "gpu-02", "gpu-03", "gpu-04")
    assert queue == LsfQueue(
        "gpu", "Open:Active", 2880 * 60, hosts, backfill=False, controls={}, priority=50
    )
    frozen = parse_queue(text[text.index("QUEUE: frozen") :])
    assert (frozen.starts_jobs, frozen.limit_s, frozen.hosts) == (False, math.inf, ("all",))
    assert not parse_queue(text[text.index("QUEUE: shut") :]).starts_jobs
    nodes = lsf_idle.idle_nodes({"a": Load("a", "ok", 8, 0, 0)}, {}, frozen)
    assert not nodes["a"].idle


def test_a_queue_with_limits_and_policies() -> None:
    queue = parse_queue(said("bqueues-limits.txt"))
    assert queue.limit_s == 240 * 60  # not the default, and not of CPU time
    assert queue.hosts == ("all", "~login1", "~service/")
    assert queue.backfill
    assert queue.preemption == "PREEMPTABLE[normal]"
    assert queue.requeue == "85 99"
    assert queue.starter.endswith("%USRCMD")
    with pytest.raises(BatchError, match="not a queue"):
        parse_queue("q: No such queue")


def at(*fields: int) -> float:
    return time.mktime((*fields, 0, 0, 0, -1))


def test_reservations() -> None:
    found = {each.name: each for each in parse_reserved(said("brsvs.txt"), NOW)}
    # The one of November has been, and has no year: the next one.
    assert found["user1#0"] == Reserved("user1#0", at(2027, 11, 12, 6, 0), ("hostA",))
    assert found["user2#0"].start_s == NOW  # every day from 12 to 14
    assert found["groupA#0"] == Reserved("groupA#0", at(2026, 11, 25, 0, 0), ("hostA", "hostB"))
    assert found["system#0"].start_s == at(2026, 11, 27, 18, 0)
    (one,) = parse_reserved(said("brsvs-hosts.txt"), at(2026, 3, 30, 12, 0))
    assert one == Reserved("wrfrt", at(2026, 3, 30, 21, 40), ("ys0407-ib", "ys0334-ib"))
    assert parse_reserved("No reservation found\n", NOW) == ()


@pytest.mark.parametrize(
    ("window", "start"),
    [
        ("12/31/22/0-1/1/2/0", at(2026, 12, 31, 22, 0)),
        ("2026/11/24/0/0-2026/11/25/0/0", at(2026, 11, 24, 0, 0)),
        ("11/23/12/0-11/23/13/0", NOW),
        ("20:00-8:00 *", at(2026, 11, 23, 20, 0)),
        ("20-13 *", NOW),
        ("6:0:0-2:0:0 *", NOW),
        ("1:12:30-1:13:0 *", NOW),
        ("1:12:0-1:12:30 *", at(2026, 11, 30, 12, 0)),
    ],
)
def test_when_reservations_begin(window: str, start: float) -> None:
    (one,) = parse_reserved(f"r#0  user  u  0 / 4  h:0 / 4  {window}\n", NOW)
    assert (one.start_s, one.hosts) == (start, ("h",))


def test_at_new_year() -> None:
    night = at(2027, 1, 1, 1, 0)
    (one,) = parse_reserved("r#0 user u 0/4 h:0/4 12/31/22/0-1/1/2/0\n", night)
    assert one.start_s == night


def test_ends() -> None:
    loads = {name: Load(name, "ok", 4, 0, 0) for name in "abcd"}
    loads |= {name: Load(name, "closed_Full", 4, 0, 4) for name in "ef"}
    windows = [
        BackfillWindow(12, 3600, {"a": 4, "b": 2, "e": 4}),
        BackfillWindow(4, 7200, {"a": 4}),
    ]
    windows.append(BackfillWindow(4, math.inf, {"c": 4}))
    reserved = [Reserved("r", 1600.0, ("a", "d")), Reserved("s", 9000.0, ("a",))]
    found = lsf_idle.ends(loads, windows, reserved, 1000.0, backfill=True)
    # Of b only a part is offered; f is kept, and nobody says for how long.
    assert found == {"a": 1600.0, "d": 1600.0, "e": 4600.0, "f": 1000.0}
    found = lsf_idle.ends(loads, windows, [], 1000.0, backfill=False)
    assert found == {"a": 8200.0, "e": 1000.0, "f": 1000.0}
    assert lsf_idle.ends(loads, [], [], 1000.0, backfill=True) == {"e": 1000.0, "f": 1000.0}


@pytest.mark.parametrize(
    ("name", "release"),
    [
        ("lsid.txt", LsfRelease("IBM Spectrum LSF Community Edition", "10.1.0.15", "test-cluster")),
        ("lsid-documented.txt", LsfRelease("LSF", "10.1.0", "lsf10")),
        ("lsid-suite.txt",
         LsfRelease("IBM Spectrum LSF Connetor for Kubernetes", "10.1.0.0", "myCluster")),
    ],
)  # fmt: skip
def test_releases(name: str, release: LsfRelease) -> None:
    assert parse_release(said(name)) == release
    with pytest.raises(BatchError, match="not a release"):
        parse_release("ls_getmastername: LIM is down; try later\n")


def test_options_are_those_that_help_names() -> None:
    whole = parse_options(said("bhosts-synopsis.txt"))
    assert {"-gpu", "-o", "-json", "-X", "-w"} <= whole
    short = parse_options(said("bhosts-usage.txt"))
    assert {"-w", "-l", "-R"} <= short
    assert not {"-gpu", "-o", "-json", "-X"} & short
    none = LsfRelease("", "", "")
    full = LsfEngine(none, frozenset({"bhosts"}), {"bhosts": whole})
    assert lsf_idle.hosts_command(full)[:2] == ["bhosts", "-X"]
    old = LsfEngine(none, frozenset({"bhosts"}), {"bhosts": short})
    assert lsf_idle.hosts_command(old, ["a"]) == ["bhosts", "-w", "a"]
