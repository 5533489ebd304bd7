"""The scenario of a lease: taken, used, given back to a job above, and taken again."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from hpcext.acceptance import keeper
from hpcext.acceptance.preemption import MOST_WAIT_S, main_job, waited
from hpcext.acceptance.scenario import FailedError, NotTriedError, Passed, Scenario
from hpcext.acceptance.stage import ANSWER_S, Stage, command
from hpcext.acceptance.systems import FINAL
from hpcext.acceptance.trial import BEGIN_S, Training
from hpcext.batch.leasing import Held
from hpcext.jobtext import job_text
from hpcext.manager import directory as pilots
from hpcext.process import Process


def lease(stage: Stage, scenario: Scenario) -> Passed:
    """Check that a training on leases loses no step, and gives its host back."""
    place = stage.place(scenario.name)
    it = Training(stage, place / "account", place / "finish")
    harvester = _start(stage, place)
    try:
        try:
            it.began(1, 2 * BEGIN_S)
        except FailedError as error:
            raise FailedError(f"{error.what}; {_last_output(place)}") from None
        name = f"hpcext-{pilots.load(place / stage.name(place)).id}"
        found = _running_lease(stage, name)
        seen_s = None
        if stage.terms.above:
            # The harvester chooses the host, which may be none of the run's.
            host = stage.system.idle(stage.terms.partition)[found.node]
            seen_s = main_job(stage, f"{scenario.name}-above", host)
            it.began(2, 2 * BEGIN_S)
        it.finish()
        stage.wait(
            lambda: harvester.poll() is not None, f"its end; {_last_output(place)}", ANSWER_S
        )
        if harvester.returncode:
            raise FailedError(f"hpcext harvest: {_last_output(place)}")
        stage.wait(lambda: not _has_leases(stage, name), "all leases to end", ANSWER_S)
    except NotTriedError:
        it.finish()
        raise
    if seen_s is None:
        return it.judged("taken and given back")
    return waited(it.judged("taken, given back and taken again"), seen_s)


def _start(stage: Stage, place: Path) -> subprocess.Popen[bytes]:
    directory = place / stage.name(place)
    words = command(place / "account", place / "finish")
    job = {"name": "training", "command": list(words), "gpus": 1, "nodes": {"min": 1, "max": 1}}
    (place / "jobs.toml").write_text(job_text({**job, "retries": 0}), encoding="utf-8")
    host = stage.hosts[-1]
    keeper.note(stage.directory, keeper.PILOT, directory)
    with (place / "said.txt").open("wb") as said:
        process = subprocess.Popen(
            [
                sys.executable, "-m", "hpcext", "--quiet", "harvest", "start",
                str(place / "jobs.toml"), "--partition", stage.terms.partition,
                "--max-nodes", "1", "--least", "60", "--interval", "2", "--idle", "10",
                # The job above takes all of the node: nobody else may have a job there.
                "--whole-nodes",
                *(["--gpus-per-node", "1"] if host.gpus else ["--slots", "1"]),
                "--dir", str(directory), "--", *stage.terms.options,
            ],
            env=stage.environ(),
            stdin=subprocess.DEVNULL,
            stdout=said,
            stderr=said,
            # Ctrl-C is for the run; the keeper ends the harvester.
            start_new_session=True,
        )  # fmt: skip
    if known := Process.of(process.pid):
        keeper.note(stage.directory, keeper.PROCESS, known)
    return process


def _running_lease(stage: Stage, name: str) -> Held:
    """Return the lease that runs, as the batch system reports it."""

    def there() -> Held | None:
        held = stage.system.held(name)
        return next((job for job in held if job.state == "running" and job.node), None)

    found = stage.wait(there, "a lease to run")
    assert isinstance(found, Held)
    return found


def _has_leases(stage: Stage, name: str) -> bool:
    return any(job.state not in FINAL for job in stage.system.held(name))


def _last_output(place: Path) -> str:
    text = (place / "said.txt").read_text(errors="replace").strip()
    return text.splitlines()[-1][:200] if text else "hpcext harvest said nothing"


def scenarios(above: str) -> list[Scenario]:
    """Return the scenario.

    Parameters
    ----------
    above : str
        The partition whose jobs preempt leases; empty if there is none.
    """
    if not above:
        expected = "it trains, and nothing is left"
        return [Scenario("lease", "hpcext harvest start, one host", expected, lease, hosts=1)]
    return [
        Scenario(
            "lease",
            f"hpcext harvest start, and a job of {above} wants the host",
            f"no step is lost; the job above waits {MOST_WAIT_S:g} s at most; nothing is left",
            lease,
            hosts=1,
        )
    ]
