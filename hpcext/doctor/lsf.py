"""Checks of LSF: what the engine can do, its queues, our esub and starter, and a test job."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from hpcext import __version__, protocol, state
from hpcext.admin import manifest
from hpcext.batch import lsf, runner
from hpcext.batch.lsf import probe as lsf_probe
from hpcext.batch.lsf.engine import NEEDED, LsfEngine
from hpcext.batch.lsf.probe import ANSWER_S
from hpcext.batch.lsf.queues import LsfQueue, parse_queues, queues_command
from hpcext.core.errors import BatchError
from hpcext.doctor import lsf_abilities, lsf_conf, lsf_queues
from hpcext.doctor.checkup import CheckOptions, Finding
from hpcext.text import clean, listed, shown

JOB_S = 300.0
"""Seconds to wait for the end of a test job; one that waits for a signal runs over a minute."""

_POLL_S = 1.0
_INSTALL = "the owner of LSF_SERVERDIR runs hpcext-admin install lsf"


def check(asked: CheckOptions) -> Iterator[Finding]:
    """Check all that does not take a job."""
    if not lsf_probe.is_there():
        yield Finding("lsf", "note", "there are no LSF commands on this machine")
        return
    engine = lsf_probe.probe()
    missing = sorted(NEEDED - engine.commands)
    if missing:
        do = "source the profile of LSF"
        yield Finding("lsf", "wrong", f"commands are missing: {listed(missing)}", do)
    release = engine.release
    cluster = release.cluster or "no LSF answers"
    says = f"{release.product} {release.number}, cluster {cluster}"
    yield Finding("lsf", "ok" if release.cluster else "wrong", clean(says))
    yield from lsf_abilities.check(
        engine, asked.settings.lsf_launcher if asked.settings else "blaunch"
    )
    yield from _queues(engine, asked)
    yield from lsf_conf.check()
    yield _scripts()
    if not asked.submit:
        do = "hpcext doctor --submit runs one"
        says = "only a job can tell whether arguments of -a, commands with quotes and -wa work"
        yield Finding("lsf", "note", says, do)


def _queues(engine: LsfEngine, asked: CheckOptions) -> Iterator[Finding]:
    queues = parse_queues(runner.run(queues_command(), timeout_s=ANSWER_S))
    started = [queue.name for queue in queues if "hpcext-starter" in queue.starter]
    again = [queue.name for queue in queues if "85" in queue.requeue.split()]
    if started:
        yield Finding("lsf queues", "ok", f"hpcext-starter in {listed(started)}")
    else:
        yield Finding("lsf queues", "note", "no queue has hpcext-starter", "see docs/lsf.md")
    if again:
        yield Finding("lsf queues", "ok", f"exit value 85 requeues in {listed(again)}")
    elif not engine.takes("bsub", "-Q"):
        yield Finding("lsf queues", "note", "no queue requeues jobs that exit with 85")
    if "bparams" in engine.commands:
        most = lsf_probe.parameters().get("MAX_JOB_REQUEUE")
        if most is not None:
            yield Finding("lsf queues", "ok", f"a job is requeued {clean(most)} times at most")
    yield from _lease_queue(asked, queues)


def _lease_queue(asked: CheckOptions, queues: Sequence[LsfQueue]) -> Iterator[Finding]:
    """Check the queue of leases, which the settings or ``--probe`` name."""
    wanted = asked.probe or (asked.settings.harvest_partition if asked.settings else "")
    for queue in queues:
        if queue.name == wanted:
            yield from lsf_queues.check(queue, queues)
            return
    if wanted:
        do = f"set one of {listed(queue.name for queue in queues)}"
        yield Finding("harvest_partition", "wrong", f"{shown(wanted)} is not a queue here", do)
    else:
        do = "set it, if there is a queue whose jobs all others preempt"
        why = "tickets need it, and preemption is looked at here only if it is set"
        yield Finding("harvest_partition", "note", "not set", do, why)


def _scripts() -> Finding:
    """Check that the esub and the starter are as hpcext-admin has installed them."""
    name = "lsf scripts"
    place = protocol.environ().get("LSF_SERVERDIR", "")
    if not place:
        return Finding(
            name, "note", "LSF_SERVERDIR is not set", "source the profile of LSF, to look at them"
        )
    try:
        installed = manifest.load(Path(place) / "hpcext", trusted=False)
    except OSError as error:
        return Finding(name, "wrong", clean(f"{place}: {error.strerror}"))
    if installed is None:
        says = "the esub of hpcext is not installed: bsub -a hpcext does not work"
        return Finding(name, "note", says, _INSTALL)
    if wrong := manifest.differs(installed):
        return Finding(name, "wrong", clean(wrong), _INSTALL)
    return Finding(name, "ok", clean(f"esub and starter of hpcext {__version__} in {place}"))


def job(asked: CheckOptions) -> Iterator[Finding]:
    """Submit a test job, and check what only a job can show."""
    if not asked.submit or not lsf_probe.is_there():
        return
    name = "lsf job"
    if asked.settings is None:
        yield Finding(name, "note", "not submitted, because the settings cannot be read")
        return
    engine = lsf_probe.probe()
    serverdir = protocol.environ().get("LSF_SERVERDIR", "")
    esub = bool(serverdir) and (Path(serverdir) / "esub.hpcext").exists()
    state.make(asked.settings.state_dir)
    with tempfile.TemporaryDirectory(dir=asked.settings.state_dir, prefix="doctor-") as scratch:
        output = Path(scratch) / "out"
        words = lsf_probe.trial_command(engine, str(output), asked.queue, esub=esub)
        # The variable would reach the job even if no esub worked.
        environ = {k: v for k, v in protocol.environ().items() if k != "HPCEXT_GPUS"}
        said = runner.run(words, environ=environ, timeout_s=ANSWER_S)
        job_id = lsf.parse_job_id(said)
        text = _wait(output, job_id)
        if text is None:
            runner.everything_said(["bkill", str(job_id)], timeout_s=ANSWER_S)
            says = f"job {job_id} did not end within {JOB_S:g} s"
            yield Finding(name, "note", says, "try again, or with --queue NAME")
            return
    found = lsf_probe.parse_trial(text, engine)
    if esub:
        lsf_probe.learn(engine, arguments=found.esub)
    if found.intact:
        yield Finding(name, "ok", "commands arrive as they were written")
    else:
        do = "write JOB_STARTER as docs/lsf.md shows it"
        yield Finding(name, "wrong", "two commands with quotes did not arrive as written", do)
    if not esub:
        yield Finding(
            name,
            "note",
            "arguments of -a were not tried: the esub of hpcext is not installed",
            _INSTALL,
        )
    elif found.esub:
        yield Finding(name, "ok", 'arguments of -a arrive: bsub -a "hpcext(gpus=1)"')
    else:
        do = "set the variables (HPCEXT_GPUS) instead"
        yield Finding(name, "wrong", "arguments of -a do not arrive in the job", do)
    if found.warned:
        yield Finding(name, "ok", "the signal of -wa comes before the end of -W")
    elif found.warned is not None:
        do = "leave -wa out: nothing relies on it"
        yield Finding(name, "note", "the signal of -wa does not come before the end of -W", do)


def _wait(output: Path, job_id: int) -> str | None:
    """Wait for the end of a job, and return its output; None if it does not end in time."""
    until = time.monotonic() + JOB_S
    while time.monotonic() < until:
        ended = _has_ended(job_id)
        try:
            text = output.read_text(errors="replace")
        except OSError:
            text = ""
        if ended or lsf_probe.TRIAL_ENDS in text.splitlines():
            return text
        time.sleep(_POLL_S)
    return None


def _has_ended(job_id: int) -> bool:
    try:
        state = lsf.Commands().states([job_id]).get(job_id, "")
    except BatchError:
        return False
    return state in {"completed", "failed"}
