"""The table of all scenarios, and a run of them."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from hpcext import state
from hpcext.acceptance import (
    arrays,
    flags,
    keeper,
    leases,
    pilots,
    preemption,
    silence,
    verbs,
)
from hpcext.acceptance.scenario import (
    FailedError,
    NotTriedError,
    Passed,
    Result,
    Scenario,
    StoppedError,
    VerdictWord,
)
from hpcext.acceptance.stage import RunTerms, Stage
from hpcext.acceptance.systems import System
from hpcext.batch.leasing import Idle
from hpcext.core.errors import HpcextError, InputError
from hpcext.text import clean, did_you_mean

MOST_HOSTS = 3
MOST_S = 720.0
"""The limit of all scenarios in seconds; with the removal, a run takes 15 minutes at most."""

AT_ONCE = 8
REMOVAL = "removal"
_LOOK_S = 0.5

Tell = Callable[[Result], None]


def table(system: System, terms: RunTerms, hosts: Sequence[Idle], no_flags: str) -> list[Scenario]:
    """Return all scenarios, also those that cannot be tried on this site.

    Parameters
    ----------
    system : System
    terms : RunTerms
    hosts : sequence of Idle
    no_flags : str
        Why no flag makes jobs suspendable; empty if one does.
    """
    gpus = min((host.gpus for host in hosts), default=0)
    return [
        *silence.scenarios(terms.cut_s),
        *verbs.scenarios(system),
        *arrays.scenarios(),
        *flags.scenarios(system, no_flags),
        *preemption.scenarios(terms.above),
        *leases.scenarios(terms.above),
        *pilots.scenarios(len(hosts), gpus),
    ]


def names(system: System) -> tuple[str, ...]:
    """Return the names of all scenarios, as users choose them."""
    terms = RunTerms("", "", (), 0.0, 0.0, 0.0)
    return tuple(dict.fromkeys(each.name for each in table(system, terms, (), "")))


def choose_hosts(system: System, partition: str, most: int) -> tuple[Idle, ...]:
    """Return idle hosts of a partition.

    Parameters
    ----------
    system : System
    partition : str
    most : int
        The largest number to return.

    Raises
    ------
    InputError
        No host is idle, or there is no such partition.
    """
    known = system.idle(partition)
    if not known:
        raise InputError(f"{partition} has no hosts or does not exist", where="--partition")
    found = [host for host in known.values() if host.idle and not host.planned]
    if not found:
        raise InputError(
            f"no host of {partition} is idle", where="--partition", do="try again later"
        )
    return tuple(found[:most])


def check_above(system: System, above: str, hosts: Sequence[Idle]) -> None:
    """Check that a partition has the hosts that its jobs are to take.

    Parameters
    ----------
    system : System
    above : str
        The partition.
    hosts : sequence of Idle

    Raises
    ------
    InputError
        It lacks some of them.
    """
    missing = [host.name for host in hosts if host.name not in system.idle(above)]
    if missing:
        raise InputError(f"{above} does not have {', '.join(missing)}", where="--above")


class AcceptanceRun:
    """One acceptance run, for use in a ``with`` statement, which removes all that it has made.

    Parameters
    ----------
    system : System
    terms : RunTerms
    hosts : tuple of Idle
    state_dir : pathlib.Path
        A directory on a file system that all hosts share.
    only : collection of str
        The names of the scenarios to run; all if empty.
    """

    def __init__(
        self,
        system: System,
        terms: RunTerms,
        hosts: tuple[Idle, ...],
        state_dir: Path,
        only: Sequence[str] = (),
    ) -> None:
        no_flags = system.flags(terms.partition)
        state.make(state_dir)
        directory = Path(tempfile.mkdtemp(dir=state_dir, prefix="hpcext-accept-"))
        self.stage = Stage(system, terms, directory, hosts, no_flags)
        every = table(system, terms, hosts, no_flags)
        self.scenarios = [each for each in every if not only or each.name in only]
        self._left: list[str] | None = None
        self._lock = threading.Lock()
        self._tell: Tell = lambda _: None
        words = [sys.executable, "-m", keeper.__name__, system.key, str(directory)]
        self._keeper = subprocess.Popen(
            words,
            env=self.stage.environ(),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            # Ctrl-C is for the run; the keeper notices its end.
            start_new_session=True,
            text=True,
        )

    def __enter__(self) -> AcceptanceRun:
        return self

    def __exit__(self, *_: object) -> None:
        self.remove()

    def run(self, end: threading.Event, tell: Tell) -> None:
        """Run all scenarios, side by side where possible; report each result as it comes.

        Parameters
        ----------
        end : threading.Event
            Set it to end the run.
        tell : callable
            Is called with each result, by one thread at a time.
        """
        self._tell = tell
        tried = [each for each in self.scenarios if not each.lacks]
        for each in self.scenarios:
            if each.lacks:
                self._add(self._result(each, "not tried", each.lacks))
        most = max(1, min(AT_ONCE, self.stage.hosts[0].cpus or AT_ONCE))
        done = threading.Event()
        with ThreadPoolExecutor(most + 1) as pool:
            own = [each for each in tried if each.hosts]
            running = [pool.submit(self._one_by_one, own, done)]
            small = [pool.submit(self._try, each) for each in tried if not each.hosts]
            try:
                while not end.is_set() and not all(each.done() for each in [*running, *small]):
                    # Short waits, because Python handles signals between them.
                    end.wait(_LOOK_S)
                    if all(each.done() for each in small):
                        done.set()
            finally:
                if end.is_set():
                    self.stage.stopped.set()
                done.set()
        for future in [*running, *small]:
            future.result()

    def _one_by_one(self, scenarios: Sequence[Scenario], done: threading.Event) -> None:
        """Run scenarios with own hosts; the first host is free once all others are done."""
        free = len(self.stage.hosts) - 1
        for each in sorted(scenarios, key=lambda each: each.hosts > free):
            if each.hosts > free:
                done.wait()
            self._try(each)

    def _try(self, scenario: Scenario) -> None:
        began_s = time.monotonic()
        try:
            self.stage.check_time()
            seen = scenario.run(self.stage, scenario)
        except (NotTriedError, StoppedError) as error:
            result = self._result(scenario, "not tried", error.what)
        except (HpcextError, OSError, subprocess.SubprocessError) as error:
            what = error.what if isinstance(error, HpcextError) else str(error)
            result = self._result(scenario, "failed", clean(what))
        else:
            result = self._result(scenario, "passed", seen.says, seen)
        self._add(result._replace(took_s=time.monotonic() - began_s))

    def _result(
        self, scenario: Scenario, word: VerdictWord, says: str, seen: Passed | None = None
    ) -> Result:
        change = self.stage.system.changes.get(scenario.name, "") if word == "failed" else ""
        result = Result(scenario.title, scenario.tried, scenario.expected, says, word, change)
        if seen is None:
            return result
        return result._replace(steps=seen.steps, lost=seen.lost, waited_s=seen.waited_s)

    def _add(self, result: Result) -> None:
        with self._lock:
            self._tell(result)

    def remove(self) -> Result:
        """Remove all that was made, if that was not done yet; return the result."""
        began_s = time.monotonic()
        if self._left is None:
            self.stage.stopped.set()
            said, _ = self._keeper.communicate()
            self._left = said.splitlines()
            if self._keeper.returncode:
                self._left.append(f"not known: {clean(str(self.stage.directory))}")
        word: VerdictWord = "failed" if self._left else "passed"
        says = "; ".join(self._left) if self._left else "nothing is left"
        scenario = Scenario(REMOVAL, "all of its jobs and files", "nothing is left", _never)
        result = self._result(scenario, word, says)
        return result._replace(took_s=time.monotonic() - began_s)


def _never(_stage: Stage, _scenario: Scenario) -> Passed:
    raise FailedError("this is not run")


def check_names(system: System, only: Sequence[str]) -> None:
    """Check names of scenarios; raise InputError for an unknown one.

    Parameters
    ----------
    system : System
    only : sequence of str
        The names.
    """
    known = names(system)
    for each in only:
        if each not in known:
            raise InputError(
                f"{each}: no such scenario",
                where="--only",
                valid=", ".join(known),
                do=did_you_mean(each, known),
            )
