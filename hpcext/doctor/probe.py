"""A probe of leases: one is taken, used by a training, preempted, and replaced.

A harvester of one node runs a small training in the partition, and a job in a higher partition then
requests that node. A keeper ends both; if it is killed, too, the lease ends by its time limit.
"""

from __future__ import annotations

import contextlib
import dataclasses
import secrets
import shlex
import sys
import tempfile
import time
from collections.abc import Generator, Iterator
from pathlib import Path

from hpcext import backends, documents, state
from hpcext.batch.leasing import Idle
from hpcext.batch.lsf import probe as lsf_probe
from hpcext.config import Settings
from hpcext.core.errors import BatchError
from hpcext.core.saving import lost
from hpcext.core.values import Job, Record, State
from hpcext.doctor import keeper
from hpcext.doctor import slurm as doctor_slurm
from hpcext.doctor.checkup import CheckOptions, Finding
from hpcext.doctor.probe_main import LsfMain, MainJobSystem, SlurmMain
from hpcext.doctor.trial import EndedError, TrialManager, parts, steps
from hpcext.harvest.leases import Terms
from hpcext.jobspec import Gpus, JobSpec, Nodes
from hpcext.launch import agent
from hpcext.manager import directory as pilots
from hpcext.manager.waiting import comes_true
from hpcext.text import clean, shown

COUNTING = "hpcext.doctor.counting"
"""The module that the lease runs; this process needs nothing of it."""

LEASE_S = 600.0
"""The time limit of the lease, and the longest time of the training, in seconds."""

BEGIN_S = 180.0
"""Seconds to wait for the lease, and for the first step of the training."""

TRAIN_S = 3.0
MAIN_S = 180.0
"""Seconds to wait for the suspension, and for the start of the preempting job."""

MOST_S = 1800.0
"""Seconds to wait for the whole check."""

BLIND = "has no GPUs"
"""A part of the harvester's message about a lease without GPUs, which is of no use."""

_LOOK_S = 0.2
_NAME = "probe"


class _Probe:
    """One run of the probe, whose steps are findings.

    Parameters
    ----------
    node : Idle
        An idle node; the lease may get another one like it.
    terms : Terms
    main : MainJobSystem
    settings : Settings
    """

    def __init__(self, node: Idle, terms: Terms, main: MainJobSystem, settings: Settings) -> None:
        self._partition = terms.partition
        self._main = main
        self._like = node
        self._leasing = backends.leasing(terms.system)
        self._lease_id = 0
        state.make(settings.state_dir)
        # In a directory that the nodes can see, as they must see pilots.
        directory = Path(tempfile.mkdtemp(dir=settings.state_dir, prefix="doctor-"))
        spec = JobSpec(
            name=_NAME,
            command=(sys.executable, "-m", COUNTING, f"{LEASE_S:g}"),
            gpus=Gpus(min=1, max=1),
            nodes=Nodes(min=1, max=1),
            workdir="/",
            retries=0,
        )
        self._pilot = pilots.create(
            (spec,),
            pilots.NewPilot(
                name=_NAME, gpus=range(terms.gpus), logical=terms.logical, nodes=1, harvest=terms
            ),
            settings=dataclasses.replace(settings, policy="bftrainer"),
            where="--probe",
            directory=directory / keeper.PILOT,
        )
        self._leases = f"hpcext-{pilots.load(self._pilot).id}"
        self._name = f"hpcext-probe-{secrets.token_hex(4)}"
        command = [sys.executable, "-m", "hpcext", "--quiet", "run", "--resume", str(self._pilot)]
        names = [f"{main.name}:{name}" for name in (self._leases, self._name)]
        self._trial = TrialManager(command, directory, _NAME, names)

    def end(self) -> None:
        """End the harvester and the preempting job."""
        self._trial.end()

    def run(self) -> Iterator[Finding]:
        """Run the steps of the probe."""
        began_s = time.monotonic()
        node = yield from self._lease(began_s)
        if node is None:
            return
        _, record = self._trial.wait(
            BEGIN_S, lambda _, record: steps(record) > 0 or bool(self._trial.output_line(BLIND))
        )
        if not steps(record) and (line := self._trial.output_line(BLIND)):
            do = "see gres.conf: without File= Slurm gives jobs no CUDA_VISIBLE_DEVICES"
            yield _wrong(f"the harvester says: {line}", do)
            return
        if not steps(record):
            printed = self._trial.log() or "it printed nothing"
            says = f"the training completed no step in {BEGIN_S:g} s: {printed}"
            yield _wrong(
                says,
                "make sure that this Python and hpcext are on a file system that all nodes share",
            )
            return
        took_s = time.monotonic() - began_s
        into = parts(record.segments[-1].resume_s)
        yield _ok(f"trains: first step {took_s:.1f} s after the harvester began{into}")
        self._trial.run_for(TRAIN_S)
        if not (yield from self._preempt(node)):
            return
        yield from self._resumed()

    def _lease(self, began_s: float) -> Generator[Finding, None, str | None]:
        """Wait for the lease; return its node, or None if there is none."""
        found: list[tuple[Path, float]] = []

        def there() -> bool:
            self._trial.check()
            for path in self._pilot.glob(f"leases/*/{agent.AGENT_FILE}"):
                found.append((path, time.time()))
            return bool(found)

        if not comes_true(there, BEGIN_S, _LOOK_S):
            why = self._why_not()
            yield _wrong(f"no lease in {BEGIN_S:g} s{why}", self._main.queue_do)
            return None
        took_s = time.monotonic() - began_s
        path, seen_s = found[0]
        facts = documents.read_json(path, agent.AGENT)
        late_s = max(0.0, seen_s - float(facts["at"]))
        # The names of the batch system, which an agent on the node may not know.
        held = [each for each in self._leasing.held(self._leases) if each.node]
        node = held[0].node if held else str(facts["node"])
        self._lease_id = held[0].job_id if held else 0
        yield _ok(f"lease: job {self._lease_id} on {clean(node)} after {took_s:.1f} s")
        yield _ok(f"shared files: what {clean(node)} writes is seen here after {late_s:.1f} s")
        return node

    def _why_not(self) -> str:
        with contextlib.suppress(BatchError):
            for held in self._leasing.held(self._leases):
                return f": job {held.job_id} is {held.state} ({clean(held.why)})"
        return ""

    def _preempt(self, node: str) -> Generator[Finding, None, bool]:
        """Submit a job of a higher partition for the node; return whether the node became free."""
        lease = self._lease_id
        job_id, refused = self._main.submit(
            self._partition, self._like._replace(name=node), self._name
        )
        how = f"preempted by job {job_id}" if job_id else self._main.imitate(lease) if lease else ""
        if not how:
            why = "it was not tested whether a training survives a preemption here"
            yield Finding(_NAME, "note", f"not preempted: {refused}", _DO_MAIN, why)
            return False
        if job_id is None:
            yield Finding(_NAME, "note", f"no job preempts it: {refused}", _DO_MAIN, _NOT_SEEN)
        asked_s = time.monotonic()
        heard: list[float] = []

        def preempted(job: Job, record: Record) -> bool:
            if not heard and any(self._pilot.glob(f"leases/*/{agent.LEAVING_FILE}")):
                heard.append(time.monotonic() - asked_s)
            return record.suspends > 0 or job.state is State.PENDING

        job, record = self._trial.wait(MAIN_S, preempted)
        saved_s = time.monotonic() - asked_s
        if heard or record.suspends:
            told = f": the lease was notified after {heard[0]:.1f} s" if heard else ""
            yield _ok(how + told)
        if not record.suspends:
            yield _wrong(f"{how}, and not suspended within {saved_s:.0f} s", self._main.grace_do)
            return False
        into = parts(record.segments[-1].suspend_s)
        yield _ok(f"suspended at step {job.step}, {saved_s:.1f} s after that job came{into}")
        return (yield from self._given_back(job_id, lease, asked_s))

    def _given_back(
        self, job_id: int | None, lease: int, asked_s: float
    ) -> Generator[Finding, None, bool]:
        """Check that the node is given back: the main job begins, or else the lease ends."""
        if job_id is not None:
            if not comes_true(
                lambda: self._main.state(job_id) not in {"pending", ""}, MAIN_S, _LOOK_S
            ):
                says = f"job {job_id} did not begin in {MAIN_S:g} s, though the node was given back"
                yield _wrong(says, self._main.slow_do)
                return False
            yield _ok(f"job {job_id} began {time.monotonic() - asked_s:.1f} s after it came")
            return True
        if not comes_true(
            lambda: self._main.state(lease) in {"completed", "failed"}, MAIN_S, _LOOK_S
        ):
            says = f"lease {lease} did not end in {MAIN_S:g} s after it was stopped"
            yield _wrong(says, self._main.grace_do)
            return False
        yield _ok(f"given back: lease {lease} ended {time.monotonic() - asked_s:.1f} s later")
        return True

    def _resumed(self) -> Iterator[Finding]:
        """Check that the training continues on another lease."""
        began_s = time.monotonic()
        suspended = self._trial.wait(0, lambda *_: True)[0].step
        job, record = self._trial.wait(
            BEGIN_S, lambda job, record: job.state is State.RUNNING and job.step > suspended
        )
        took_s = time.monotonic() - began_s
        if job.step <= suspended:
            yield _wrong(f"it has completed no step in {BEGIN_S:g} s since", self._main.queue_do)
        elif record.lost_steps:
            says = f"restarted from an earlier step: {lost(record)} were lost"
            yield _wrong(says, "run hpcext doctor, which checks the state directory")
        else:
            into = parts(record.segments[-1].resume_s)
            says = f"the work survived: it goes on after step {suspended}, {took_s:.1f} s later"
            yield _ok(says + into)


_NOT_SEEN = "it was not tested how soon other users' jobs start here"
_DO_MAIN = "ask somebody who may use a higher partition to request the node meanwhile"


def check(asked: CheckOptions) -> Iterator[Finding]:
    """Run the probe, if a partition is given."""
    if not asked.probe or asked.settings is None:
        return
    main = _main(asked.settings)
    if main is None:
        yield Finding(_NAME, "note", "there are no Slurm or LSF commands on this machine")
        return
    nodes = backends.leasing(main.name).idle(asked.probe)
    idle = [node for node in nodes.values() if node.idle]
    if not idle:
        what = "has no idle node now" if nodes else "has no nodes, or is not a partition"
        do = "try again later" if nodes else "see sinfo, or bqueues"
        yield Finding(_NAME, "note" if nodes else "wrong", f"{shown(asked.probe)} {what}", do)
        return
    terms = _terms(asked.probe, idle, main.name, asked.settings)
    probe = _Probe(idle[0], terms, main, asked.settings)
    try:
        yield from probe.run()
    except EndedError as error:
        yield _wrong(f"the training {error.what}", "see hpcext doctor --job for one of yours")
    finally:
        probe.end()


def _main(settings: Settings) -> MainJobSystem | None:
    """Return the batch system of the settings, or one that is on this machine."""
    if settings.batch != "slurm" and lsf_probe.is_there():
        return LsfMain(settings)
    return SlurmMain() if doctor_slurm.is_there() else None


def _terms(partition: str, idle: list[Idle], name: str, settings: Settings) -> Terms:
    """Return the terms of a harvester of one GPU on one node, or of a slot instead of a GPU."""
    return Terms(
        partition=partition,
        system=name,
        options=tuple(shlex.split(settings.harvest_options)),
        gpus=1,
        logical=not any(node.gpus for node in idle),
        max_nodes=1,
        least_s=120,
        longest_s=LEASE_S,
        idle_s=30,
        cycle_s=1.5,
    )


def _ok(says: str) -> Finding:
    return Finding(_NAME, "ok", says)


def _wrong(says: str, do: str) -> Finding:
    return Finding(_NAME, "wrong", says, do)
