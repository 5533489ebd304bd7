"""A pilot: a fixed set of GPUs, a list of jobs, one manager. A composition; it holds no loop.

Its directory, which only its user can enter::

    pilot.json      what it is            submissions/   what to run
    journal.jsonl   what happened         jobs/ID/       logs, checkpoints, attempts
    manager.json    who runs it now       requests/ replies/   the spool
    journal-past/   a world a day, of a long journal
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import msgspec

from hpcext import backends, documents, protocol, state
from hpcext.backends.base import Backend
from hpcext.core.engine import Engine
from hpcext.core.errors import NoManagerError
from hpcext.core.facts import Began, Fact, NodeJoined, NodeLost, Submitted
from hpcext.core.notification_methods import read_method
from hpcext.core.values import Node
from hpcext.executors.base import Executor
from hpcext.executors.seats import machine_of
from hpcext.launch.tree import boot_id
from hpcext.manager import first_life, notifications, places, requeued, spool
from hpcext.manager import journal as journals
from hpcext.manager import locks as locking
from hpcext.manager.decider import Decider
from hpcext.manager.directory import (
    NewPilot,
    Pilot,
    check_new,
    create,
    find,
    host,
    how_to_go_on,
    known,
    load,
    remove,
)
from hpcext.manager.driver import Driver, Observe
from hpcext.manager.inbox import Inbox
from hpcext.manager.kept import Kept
from hpcext.manager.refine import SLOT, UNKNOWN, Refiner, profiles_for
from hpcext.manager.submissions import Submissions
from hpcext.manager.unmeasured import Unmeasured
from hpcext.policies import find_policy, is_quick
from hpcext.process import Process

__all__ = [
    "NewPilot",
    "Pilot", "check_new", "create", "find", "host", "how_to_go_on", "known", "load", "remove",
    "run", "sole_manager",
]  # fmt: skip

log = logging.getLogger(__name__)

LOOK_S = 1.0
"""Seconds between the looks of a manager that no signal from other nodes reaches."""


@contextlib.contextmanager
def sole_manager(
    directory: Path, *, batch: str = "", polls: bool = False, goes_back: bool = False
) -> Iterator[None]:
    """Be the only manager of a pilot, and record which process it is.

    Parameters
    ----------
    directory : pathlib.Path
    batch : str
        The batch system of the pilot; by default any of ours, if we are in a job of it.
    polls : bool
        Whether signals of the batch system to our script do not reach us.
    goes_back : bool
        Whether our own job is requeued if its first life does not end.

    Raises
    ------
    NoManagerError
        There is another one, or the file system has no locks that can be relied on.
    """
    backend = backends.here(batch)
    with contextlib.ExitStack() as locks:
        try:
            _lock(directory, locks, backend, goes_back=goes_back)
        except locking.LockedError:
            other = spool.manager_of(directory)
            place = spool.place_of(other) if other else "on another machine"
            raise NoManagerError(
                f"a manager {place} runs this pilot",
                where=str(directory),
                do="hpcext status shows it",
            ) from None
        me = Process.me()
        facts = {
            "schema": spool.MANAGER,
            "pid": me.pid,
            "start": me.start,
            "host": host(),
            "boot_id": boot_id(),
            "batch": backend.name if backend else "",
            "batch_job": backend.own_job() if backend else None,
            "deaf": polls or (backend is not None and backend.polls),
        }
        documents.write_json(directory / spool.MANAGER_FILE, facts)
        yield


def _lock(
    directory: Path, locks: contextlib.ExitStack, backend: Backend | None, *, goes_back: bool
) -> None:
    """Hold the manager's lock; if the first life of our own job holds it, wait for it."""
    wait = None
    try:
        while True:
            try:
                locks.enter_context(
                    locking.held(directory / "manager.lock", do="use another --dir")
                )
            except locking.LockedError:
                first = _host_of_our_job(directory, backend)
                if first is None:
                    raise
                wait = wait or first_life.Wait(directory, first, goes_back=goes_back)
                wait.turn()
            else:
                return
    finally:
        if wait is not None:
            first_life.over(directory)


def _host_of_our_job(directory: Path, backend: Backend | None) -> str | None:
    """Return where the manager is that holds the lock.

    It is None if that manager is not of the very job that we are in, on another host.
    """
    if backend is None or not backend.begins_elsewhere:
        return None
    try:
        facts = documents.read_json(directory / spool.MANAGER_FILE, spool.MANAGER)
    except (OSError, ValueError):
        return None
    other_host = facts.get("boot_id") != boot_id()
    if other_host and facts.get("batch_job") == backend.own_job():
        return str(facts.get("host", ""))
    return None


def run(
    directory: Path,
    observe: Observe,
    *,
    interval_s: float | None = None,
    moved: bool = False,
    leave: bool = False,
    passing: bool = False,
) -> tuple[Engine, Driver]:
    """Manage a pilot until its jobs are done, going on where the last manager ended.

    Parameters
    ----------
    directory : pathlib.Path
    observe : callable
        Called after each turn.
    interval_s : float, optional
        Seconds between two looks at the progress; by default the pilot's own setting.
    moved : bool
        Whether the pilot's last machine is gone, with everything that ran there.
    leave : bool
        Whether to leave at once when told to end: running jobs go on, and another manager follows.
    passing : bool
        Besides, end when all is done even if the pilot stays, and expect no signals.

    Raises
    ------
    HpcextError
        It is not a pilot of ours, or another manager runs it, or its journal is damaged.
    """
    spool.check_private(directory)
    state.warn_of(directory)
    pilot = load(directory)
    backend = backends.find(pilot.batch, str(directory / "pilot.json")) if pilot.batch else None
    polls = backend is not None and backend.polls
    if interval_s is None and (pilot.harvest is not None or polls):
        # Of what happens on other nodes no signal tells, nor of requests from there.
        interval_s = min(LOOK_S, pilot.report_interval_s)
    if interval_s is not None:
        pilot = msgspec.structs.replace(pilot, report_interval_s=interval_s)
    if passing:
        pilot = msgspec.structs.replace(pilot, stay=False)
    with contextlib.ExitStack() as held:
        held.enter_context(_signals_harmless())
        try:
            sole = sole_manager(
                directory, batch=pilot.batch, polls=passing, goes_back=pilot.requeue
            )
            held.enter_context(sole)
        except first_life.FirstLifeError:
            if pilot.requeue and backend is not None:
                backend.go_back(directory, alone=pilot.alone)
            raise
        if pilot.harvest is not None:
            state_dir = _state_dir(pilot, directory)
            partition = pilot.harvest.partition
            held.enter_context(locking.sole_harvester(directory, partition, state_dir))
        return asyncio.run(_run(directory, pilot, observe, moved=moved, leave=leave or passing))


_HARMLESS = {protocol.NEWS_SIGNAL, protocol.NOTICE_SIGNAL}


@contextlib.contextmanager
def _signals_harmless() -> Iterator[None]:
    """Ignore news and notices, which may come before the loop listens or after it, and kill us.

    Any process that finds us in ``manager.json`` may send news, and a batch script its notice. What
    they tell of is not lost: the first turn looks at everything. Between the two the loop has
    handlers, which it removes at its end.
    """
    for signum in _HARMLESS:
        signal.signal(signum, signal.SIG_IGN)
    try:
        yield
    finally:
        for signum in _HARMLESS:
            signal.signal(signum, signal.SIG_IGN)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _HARMLESS)


async def _run(
    directory: Path, pilot: Pilot, observe: Observe, *, moved: bool, leave: bool
) -> tuple[Engine, Driver]:
    submissions = Submissions(directory / "submissions")
    path = directory / "journal.jsonl"
    header = journals.Header(began_at=pilot.began_at, policy=pilot.policy)
    journal = journals.Journal(path, header)
    past = journal.past()
    engine, node_time = past.recount()
    place = places.find(pilot, engine, directory)
    here = not pilot.batch and pilot.harvest is None
    if here:
        pilot = msgspec.structs.replace(pilot, node=host())
    if here and not moved:
        _check_same_machine(engine, directory)
    # A pilot that an older release began has none of its own.
    profiles = profiles_for(Path(pilot.profiles or directory / "profiles"))
    executor: Executor
    inbox = Inbox(directory, pilot, engine, submissions, profiles, left_s=lambda: executor.left_s)
    method = read_method(pilot.notify)
    teller = notifications.Teller(directory, pilot.id, pilot.name, method) if method else None
    refiner = Refiner(profiles, submissions.spec)
    observers: list[Observe] = [refiner, Unmeasured(), Kept(directory / "jobs"), observe]
    observers += [teller] if teller else []

    def observe_all(engine: Engine, now_s: float) -> None:
        for each in observers:
            each(engine, now_s)

    policy = past.header.policy
    decider = Decider(
        find_policy(policy), quick=is_quick(policy), timeout_s=pilot.decision_timeout_s
    )
    driver = Driver(
        engine,
        journal,
        decider,
        base_s=max(past.now_s, time.time() - past.header.began_at),
        interval_s=pilot.report_interval_s,
        requests=inbox.take,
        observe=observe_all,
        node_time=node_time,
        stay=pilot.stay,
        leave=leave,
        # One that stays may be given what can run on the nodes that are left.
        moves_on=pilot.requeue or bool(pilot.batch and not pilot.stay),
        once_s=backends.find(pilot.batch).end_signals_s if pilot.batch else 0.0,
    )
    executor = place.executor(
        directory=directory / "jobs",
        spec=submissions.spec,
        emit=driver.emit,
        loop=asyncio.get_running_loop(),
        manager_file=directory / spool.MANAGER_FILE,
    )
    before = _gains(engine)
    beside = _beside(pilot, directory)
    try:
        nodes = [_told_apart(node, pilot, profiles.gpu) for node in place.nodes]
        await driver.run(executor, _news(engine, nodes, place, submissions))
    finally:
        signal.pthread_sigmask(signal.SIG_BLOCK, _HARMLESS)
        for task in beside:
            task.cancel()
        journal.close()
    left = any(not job.state.final for job in engine.world.jobs.values())
    ends = engine.world.drained or driver.stopped_by is not None
    goes_on = pilot.requeue and left and engine.world.suspending and not ends
    if goes_on:
        more = any(now > was for now, was in zip(_gains(engine), before, strict=True))
        place.carry_on(gained=more or engine.stranded)
    if teller is not None:
        # Who is at the keyboard knows; and what goes on has not ended.
        if goes_on or leave or (left and driver.stopped_by is signal.SIGINT):
            teller.close()
        else:
            teller.ended(engine, driver.now_s())
    return engine, driver


def _beside(pilot: Pilot, directory: Path) -> list[asyncio.Task[None]]:
    """Begin what a manager does for the user's other pilots on its batch system."""
    system = pilot.harvest.system if pilot.harvest is not None else pilot.batch
    if not system or not backends.find(system).delays_requeued:
        return []
    looks = requeued.look_after(_state_dir(pilot, directory), system)
    return [asyncio.get_running_loop().create_task(looks)]


def _state_dir(pilot: Pilot, directory: Path) -> Path:
    """Return the state directory of its user, which a pilot of an older release does not name."""
    return Path(pilot.profiles or directory).parent


def _told_apart(node: Node, pilot: Pilot, gpu: str) -> Node:
    """Return a node with the kind of its GPUs, if it is the machine that we are on."""
    elsewhere = pilot.nodes > 1 or pilot.harvest is not None
    known = node.kind or pilot.logical or elsewhere or gpu in {SLOT, UNKNOWN}
    return node if known else msgspec.structs.replace(node, kind=gpu)


def _gains(engine: Engine) -> tuple[int, int, int]:
    """Return what is never lost again: done jobs, and of the others what they have saved.

    That is steps in checkpoints, and attempts that have saved by their own means.
    """
    jobs, records = engine.world.jobs.values(), engine.world.records.values()
    return (
        sum(job.state.final for job in jobs),
        sum(job.saved_step for job in jobs),
        sum(record.own_saves for record in records),
    )


def _check_same_machine(engine: Engine, directory: Path) -> None:
    """Refuse to start again what may still run on another machine."""
    for job in engine.world.unfinished():
        elsewhere = [node for node in job.held if machine_of(node) != host()]
        if elsewhere:
            raise NoManagerError(
                f"job {job.name} may still run on {elsewhere[0]}, and this is {host()}",
                where=str(directory),
                do=f"resume it on {elsewhere[0]}, or say --moved if that machine is gone",
            )


def _news(
    engine: Engine, nodes: Sequence[Node], place: places.Resources, submissions: Submissions
) -> Iterator[Fact]:
    """Yield what the engine does not know yet when a manager begins."""
    yield Began(again=place.again)
    for name in place.gone:
        yield NodeLost(name, gone=True)
    for name in engine.world.nodes.keys() - {*place.gone, *(node.name for node in nodes)}:
        yield NodeLost(name)
    for node in nodes:
        yield NodeJoined(node)
    for job in submissions.jobs:
        if job.id not in engine.world.jobs:
            yield Submitted(job)
