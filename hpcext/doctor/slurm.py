"""Checks of Slurm: a controller that answers, its clock, a partition that lends nodes."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

from hpcext import protocol
from hpcext.batch import runner, slurm
from hpcext.batch.slurm import idle as slurm_idle
from hpcext.batch.slurm import reads as slurm_reads
from hpcext.batch.slurm import site as slurm_site
from hpcext.core.errors import BatchError
from hpcext.doctor import leases, slurm_plugin
from hpcext.doctor.checkup import CheckOptions, Finding
from hpcext.doctor.measured import saving_s
from hpcext.text import clean, counted, shown

ANSWER_S = 20.0
"""Seconds to wait for an answer of Slurm, because the user waits."""

REQUEUE_S = 30
"""A delay in seconds that is hardly longer than a training takes to begin."""

_CONFIG = Path("/etc/slurm/slurm.conf")
"""The default configuration file of Slurm, which only machines of a cluster have."""

APART_S = 5.0
"""A harmless difference of clocks, in seconds: leases end half a minute before their holes."""


def check(asked: CheckOptions) -> Iterator[Finding]:
    """Run all checks; skip those that need the controller if that does not answer."""
    if not is_there():
        yield Finding("slurm", "note", "there are no Slurm commands on this machine")
        return
    try:
        version = _output(slurm.version_command()).strip()
        runner.run(["scontrol", "ping"], timeout_s=ANSWER_S)
    except BatchError as error:
        yield _no_controller(asked, error)
        return
    yield Finding("slurm", "ok", f"{clean(version)}, its controller answers")
    yield _clock()
    yield from _reader(asked)
    config = slurm_site.parse_config(_output(slurm_site.config_command()))
    release = slurm.parse_version(version)
    yield slurm_plugin.plugin(config, release, within_s=ANSWER_S)
    yield slurm_plugin.rules(config)
    yield _requeue(config)
    yield from _harvest(asked, config, release)


def _reader(asked: CheckOptions) -> Iterator[Finding]:
    """Check that Slurm can be queried by what the user has chosen for it."""
    name = "slurm_reader"
    makers = {slurm_reads.PYSLURM: slurm_reads.by_pyslurm, slurm_reads.SLURMRESTD: _by_slurmrestd}
    wanted = asked.settings.slurm_reader if asked.settings else slurm_reads.AUTO
    if wanted not in makers:
        return
    try:
        makers[wanted]()
    except BatchError as error:
        says = f"Slurm's commands are used: {clean(error.what)}"
        yield Finding(name, "note", says, "set slurm_reader to auto, if that is to stay so")
    else:
        yield Finding(name, "ok", f"{wanted} answers")


def _by_slurmrestd() -> None:
    slurm_reads.by_slurmrestd(ANSWER_S).close()


def is_there() -> bool:
    """Return whether Slurm's commands are installed."""
    return bool(shutil.which("scontrol") and shutil.which("sbatch"))


def _no_controller(asked: CheckOptions, error: BatchError) -> Finding:
    """Return that no controller answers: wrong on a machine of a cluster, else only a note."""
    says = "Slurm's commands are here, but no controller answers"
    wanted = asked.settings is not None and asked.settings.batch == "slurm"
    if wanted or "SLURM_CONF" in protocol.environ() or _CONFIG.exists():
        do = "check SLURM_CONF, and that slurmctld is running"
        return Finding("slurm", "wrong", f"{says}: {clean(error.what)}", do)
    return Finding("slurm", "note", says, "this is fine if you do not use Slurm here")


def _output(command: list[str]) -> str:
    return runner.run(command, timeout_s=ANSWER_S)


def _clock() -> Finding:
    """Check that the clocks of the controller and this machine agree, for leases and limits."""
    name = "clock"
    before_s = time.time()
    try:
        theirs_s = slurm_site.parse_clock(_output(slurm_site.clock_command()))
    except BatchError as error:
        return Finding(name, "note", f"the clock of the controller is unknown: {clean(error.what)}")
    if theirs_s is None:
        return Finding(name, "note", "sdiag does not say what time the controller has")
    # The controller reports whole seconds.
    apart_s = max(before_s - theirs_s - 1, theirs_s - time.time(), 0.0)
    if apart_s > APART_S:
        why = "leases end that much too early or too late: holes are lost, or main jobs wait"
        do = "an administrator has chrony or ntpd keep both clocks"
        return Finding(name, "wrong", f"{apart_s:.0f} s apart from the controller's", do, why)
    return Finding(name, "ok", f"within {APART_S:g} s of the controller's")


def _requeue(config: Mapping[str, str]) -> Finding:
    """Check how long a requeued job waits before it may begin again (slurm.conf(5), AuthInfo)."""
    name = "wait after a requeue"
    wait_s = slurm_site.requeue_delay_s(config)
    says = f"a job that is preempted and requeued waits {wait_s} s (BeginTime) before it may begin"
    if wait_s <= REQUEUE_S:
        return Finding(name, "ok", says)
    do = (
        f"an administrator sets AuthInfo=cred_expire={REQUEUE_S:g}, or what a prolog and a slow "
        "node need, or SchedulerParameters=requeue_delay where Slurm has that (26.05); "
        "scontrol update JobId=ID StartTime=now lets a pending one start now"
    )
    why = "suspendable jobs wait that long after each preemption, even if nodes are idle"
    return Finding(name, "note", says, do, why)


def _harvest(
    asked: CheckOptions, config: Mapping[str, str], release: tuple[int, int]
) -> Iterator[Finding]:
    name = "harvest_partition"
    settings = asked.settings
    if settings is None or not settings.harvest_partition:
        do = "set it, if there is a partition whose jobs all others preempt"
        why = "tickets need it, and preemption is looked at here only if it is set"
        yield Finding(name, "note", "not set: harvesters need --partition", do, why)
        return
    partition = settings.harvest_partition
    nodes = slurm_idle.parse_idle(_output(slurm_idle.idle_command(partition)))
    if not nodes:
        says = f"{shown(partition)} has no nodes, or is not a partition"
        why = "harvesters and tickets find no nodes"
        yield Finding(name, "wrong", says, "see sinfo, and set another one", why)
        return
    idle = sum(node.idle for node in nodes.values())
    yield Finding(name, "ok", f"{shown(partition)}: {counted(len(nodes), 'node')}, {idle} idle now")
    site = leases.SlurmConfiguration(
        release=release,
        config=config,
        partitions=slurm_site.parse_partitions(_output(slurm_site.partitions_command())),
        members=slurm_site.parse_members(_output(slurm_site.members_command())),
        waiting=len(_output(slurm_site.waiting_command()).splitlines()),
        leases=settings.harvest_max_nodes,
        saving_s=saving_s(settings.state_dir),
    )
    for each in partition.split(","):
        yield from leases.check(site, each)
