"""Idle hosts and what an engine can do, asked of the contract engine with each of its quirks."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from lsf_run import ENDED
from lsf_site import Host, Queue, Site
from lsf_tools import MakeSite, command

from hpcext.batch.leasing import Idle
from hpcext.batch.lsf import probe as lsf_probe
from hpcext.batch.lsf.engine import LsfRelease
from hpcext.batch.lsf.leasing import LsfLeasing
from hpcext.core.errors import BatchError

HOSTS = (
    Host("a", 4, 2), Host("b", 4, 2), Host("c", 4, 2, kept=4), Host("d", 4, 2, closed="closed_Adm"),
    Host("e", 4), Host("f", 4, 2, kept=4),
)  # fmt: skip
KILLABLE = Queue(run_limit=240, policies="BACKFILL", preemption="PREEMPTABLE[normal]")
WINDOWS = ((7200, {"c": 4, "b": 4}),)


@pytest.fixture
def use(make_site: MakeSite, monkeypatch: pytest.MonkeyPatch) -> Iterator[MakeSite]:
    """Make a site, and have its commands first; its jobs are over when the test ends."""
    made: list[Site] = []

    def used(*quirks: str, **settings: object) -> Site:
        settings = {"hosts": HOSTS, "queues": {"q": KILLABLE}, "windows": WINDOWS, **settings}
        site = make_site(*quirks, **settings)
        made.append(site)
        monkeypatch.setenv("PATH", f"{site.directory}:/usr/bin:/bin")
        monkeypatch.setenv("LSF_ENVDIR", str(site.directory))
        return site

    yield used
    for site in made:
        for job in site.jobs():
            command(site, "bkill", str(job.id))
        until(lambda site=site: all(job.state in ENDED for job in site.jobs()))


def until(true) -> None:  # type: ignore[no-untyped-def]
    while not true():  # the time limit of the test is the limit
        time.sleep(0.02)


def names(nodes: Mapping[str, Idle]) -> list[str]:
    return [name for name, node in nodes.items() if node.idle]


def test_a_look(use: MakeSite) -> None:
    site = use(reservations="r#0 user u 0/4 a:0/4 0:0:0-6:24:0 *")
    assert command(site, "bsub", "-n", "1", "-gpu", "num=1", "sleep 300").returncode == 0
    until(lambda: site.job(1).state == "RUN")
    engine = lsf_probe.probe()
    assert engine.release == LsfRelease("LSF", "10.1.0", "lsf")
    assert engine.takes("bhosts", "-o", "-json", "-gpu")
    now = time.time()
    leasing = LsfLeasing()
    nodes, ends = leasing.idle("q"), leasing.ends()
    # On a there is a job, and d takes none; what is kept may be had for a while.
    assert names(nodes) == ["b", "c", "e", "f"]
    b, c = nodes["b"], nodes["c"]
    assert (b.gpus, b.kind, b.cpus, b.limit_s) == (2, "TeslaV100_SXM2_16GB", 4, 14_400)
    assert (b.planned, c.planned, nodes["e"].gpus) == (False, True, 0)
    assert ends["c"] - now == pytest.approx(7200, abs=120)
    assert ends["f"] - now == pytest.approx(0, abs=120)
    assert ends["a"] - now == pytest.approx(0, abs=120)  # reserved all week
    assert "e" not in ends


@pytest.mark.parametrize(
    ("quirk", "command_", "option"),
    [("no_gpus", "bhosts", "-gpu"), ("no_json", "bhosts", "-json"), ("empty_is_dash", "", "")],
)
def test_an_engine_that_lacks_something(
    use: MakeSite, quirk: str, command_: str, option: str
) -> None:
    use(quirk)
    engine = lsf_probe.probe()
    assert not command_ or not engine.takes(command_, option)
    nodes = LsfLeasing().idle("q")
    assert names(nodes) == ["a", "b", "c", "e", "f"]
    assert [nodes[name].gpus for name in "ae"] == [2, 0]
    assert nodes["a"].kind == ("" if quirk == "no_gpus" else "TeslaV100_SXM2_16GB")


def test_without_bslots_what_is_kept_is_left_alone(use: MakeSite) -> None:
    site = use("no_bslots")
    for name in ("bslots", "brsvs"):
        (site.directory / name).unlink()
    engine = lsf_probe.probe()
    assert not {"bslots", "brsvs"} & engine.commands
    leasing = LsfLeasing()
    leasing.idle("q")
    ends = leasing.ends()
    assert set(ends) == {"c", "f"}
    assert max(ends.values()) <= time.time()


def test_without_gpus_anywhere(use: MakeSite) -> None:
    use(hosts=(Host("e", 4),))
    assert LsfLeasing().idle("q")["e"].gpus == 0


def test_hosts_of_a_queue(use: MakeSite) -> None:
    use(queues={"q": dataclasses.replace(KILLABLE, hosts="a+2 c e")})
    assert names(LsfLeasing().idle("q")) == ["a", "c", "e"]
    use(name="but", queues={"q": dataclasses.replace(KILLABLE, hosts="all ~a ~e")})
    assert names(LsfLeasing().idle("q")) == ["b", "c", "f"]
    use(name="no", queues={"q": dataclasses.replace(KILLABLE, status="Open:Inact")})
    assert names(LsfLeasing().idle("q")) == []
    with pytest.raises(BatchError, match="No such queue"):
        LsfLeasing().idle("none")


def test_a_queue_without_backfill(use: MakeSite) -> None:
    use(queues={"q": Queue()})
    leasing = LsfLeasing()
    leasing.idle("q")
    assert leasing.ends()["c"] <= time.time()


def test_parameters(use: MakeSite) -> None:
    use()
    assert lsf_probe.parameters() == {"DEFAULT_QUEUE": "q", "MAX_JOB_REQUEUE": "3"}


def test_no_lsf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert not lsf_probe.is_there()
    with pytest.raises(BatchError, match="lsid was not found"):
        lsf_probe.probe()
