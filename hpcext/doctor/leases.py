"""Checks that Slurm lends nodes as a harvester needs it: rules for its configuration.

Each rule is a pure function of one partition. To add one, write it and put it in :data:`RULES`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import NamedTuple

from hpcext.batch.slurm import parse_time_limit
from hpcext.batch.slurm.site import signal_at_preemption, whole, words
from hpcext.doctor.checkup import Finding, Verdict
from hpcext.harvest.leases import Terms
from hpcext.text import listed, shown

QUEUE_DEPTH = 500
"""The default of bf_max_job_test (slurm.conf(5))."""

SLOW_S = 120
"""The interval of backfill, in seconds, beyond which it misses most holes."""

FEWEST_RPCS = 10
"""slurm.conf(5), max_rpc_cnt: "a value of 10 or higher is recommended"."""

ROOT = "an administrator sets"


class SlurmConfiguration(NamedTuple):
    """The configuration of a Slurm.

    Attributes
    ----------
    release : (int, int)
        Such as ``(24, 11)``.
    config : Mapping[str, str]
        The settings that ``scontrol show config`` prints.
    partitions : Mapping[str, Mapping[str, str]]
        Partition → its settings.
    members : Mapping[str, frozenset of str]
        Partition → its nodes.
    waiting : int
        The number of visible pending jobs.
    leases : int
        The largest number of leases that a harvester requests.
    saving_s : float or None
        The duration of the slowest suspension of this user's jobs; None if none was measured.
    """

    release: tuple[int, int]
    config: Mapping[str, str]
    partitions: Mapping[str, Mapping[str, str]]
    members: Mapping[str, frozenset[str]]
    waiting: int
    leases: int
    saving_s: float | None

    def of(self, partition: str, key: str) -> str:
        """Return a setting of a partition; empty if it is not there."""
        return self.partitions.get(partition, {}).get(key, "")


def check(site: SlurmConfiguration, partition: str) -> Iterator[Finding]:
    """Apply all rules to a partition; yield their findings.

    Parameters
    ----------
    site : SlurmConfiguration
    partition : str
        The partition of leases.
    """
    for rule in RULES:
        yield from rule(site, partition)


def preemption(site: SlurmConfiguration, partition: str) -> Iterator[Finding]:
    """Check that other users' jobs preempt leases by ending them, not by stopping them."""
    name = "preemption"
    kind = site.config.get("PreemptType", "")
    if kind in {"preempt/none", "(null)", ""}:
        yield Finding(
            name,
            "wrong",
            f"{shown(partition)}: nothing preempts its jobs (PreemptType)",
            f"{ROOT} PreemptType, see docs/harvest.md",
            "others would wait for leases until these end",
        )
        return
    if kind != "preempt/partition_prio":
        # Which QOS preempts which is in the database of slurmdbd.
        yield Finding(
            name,
            "note",
            f"{kind}: the QOS decides whether the jobs of {shown(partition)} are preempted",
            "see sacctmgr show qos format=name,preempt,preemptmode,gracetime, and put --qos into "
            "harvest_options; hpcext doctor --probe tries it",
            "others would wait for leases until these end",
        )
        return
    mode = set((site.of(partition, "PreemptMode") or site.config.get("PreemptMode", "")).split(","))
    if not mode & {"REQUEUE", "CANCEL"}:
        does = "does not end" if "SUSPEND" in mode else "leaves alone"
        yield Finding(
            name,
            "wrong",
            f"{shown(partition)}: PreemptMode={','.join(sorted(mode))} {does} its jobs",
            f"{ROOT} PreemptMode=REQUEUE for the partition",
            "a lease must be ended: one that is only stopped keeps its GPUs and saves nothing",
        )
        return
    yield from _tiers(site, partition)


def _tiers(site: SlurmConfiguration, partition: str) -> Iterator[Finding]:
    """Check that all other partitions with these nodes have a higher PriorityTier."""
    name = "preemption"
    nodes = site.members.get(partition, frozenset())
    tier = whole(site.of(partition, "PriorityTier"))
    others = {other for other, theirs in site.members.items() if theirs & nodes} - {partition}
    higher = set(above(partition, site.partitions, site.members, nodes))
    if not higher:
        yield Finding(
            name,
            "wrong",
            f"{shown(partition)}: no partition with its nodes has a PriorityTier above {tier}",
            f"{ROOT} a higher PriorityTier for the partitions of the other jobs",
            "others would wait for leases until these end",
        )
        return
    yield Finding(name, "ok", f"jobs of {listed(sorted(higher))} preempt those of {partition}")
    if lower := others - higher:
        yield Finding(
            name,
            "note",
            f"jobs of {listed(sorted(lower))} have nodes of {partition}, and do not preempt",
            f"{ROOT} a higher PriorityTier for them, or other nodes",
            "they would wait for leases until these end",
        )


def above(
    partition: str,
    partitions: Mapping[str, Mapping[str, str]],
    members: Mapping[str, Collection[str]],
    nodes: Collection[str],
) -> list[str]:
    """Return partitions with a higher PriorityTier that have any of these nodes, the lowest first.

    Parameters
    ----------
    partition : str
    partitions : Mapping of str to Mapping of str to str
        Partition → its settings.
    members : Mapping of str to collection of str
        Partition → its nodes.
    nodes : collection of str
    """

    def tier(name: str) -> int:
        return whole(partitions.get(name, {}).get("PriorityTier", ""))

    theirs = (name for name, have in members.items() if not set(nodes).isdisjoint(have))
    return sorted((name for name in theirs if tier(name) > tier(partition)), key=tier)


def grace(site: SlurmConfiguration, partition: str) -> Iterator[Finding]:
    """Check the time for saving when a preemption, a time limit or scancel ends a job."""
    saving = site.saving_s
    needs = "" if saving is None else f", and saving took {saving:.1f} s"
    kill_s = whole(site.config.get("KillWait", ""))
    why = "what is not saved by then is lost and trained again"
    if site.config.get("PreemptType") == "preempt/partition_prio":
        grace_s = whole(site.of(partition, "GraceTime"))
        do = f"{ROOT} GraceTime={_suggested(saving)} for {partition}"
        says = f"{shown(partition)}: GraceTime is {grace_s} s{needs}"
        if grace_s == 0 or (saving is not None and saving > grace_s):
            yield Finding("GraceTime", "wrong", says, do, why)
        else:
            yield Finding("GraceTime", "ok", says)
    if saving is None:
        says = "none of your suspensions has been measured yet"
        do = "hpcext doctor --job JOBS.toml measures one"
        yield Finding("GraceTime", "note", says, do, "GraceTime and KillWait must be longer")
    elif saving > kill_s:
        says = f"KillWait is {kill_s} s{needs}"
        do = (
            f"{ROOT} KillWait={_suggested(saving)}; until then suspend jobs with hpcext suspend "
            "before they are ended"
        )
        yield Finding("KillWait", "note", says, do, f"after scancel, or at a limit, {why}")
    else:
        yield Finding("KillWait", "ok", f"{kill_s} s{needs}")


def _suggested(saving_s: float | None) -> int:
    """Return the seconds to suggest: twice the measured ones, since file systems can be slow."""
    return max(60, math.ceil((saving_s or 0) / 30) * 60)


def notice(site: SlurmConfiguration, partition: str) -> Iterator[Finding]:
    """Check that a preemption sends the signal that a batch job has asked for."""
    name = "signal at preemption"
    key, word = signal_at_preemption(site.release)
    if word in words(site.config.get(key, "")):
        yield Finding(name, "ok", f"{key}={word}")
        return
    yield Finding(
        name,
        "note",
        f"{key} has no {word}",
        f"an administrator adds {key}={word}, as this release calls it",
        "suspendable jobs and pilots learn of a preemption only when the grace period ends",
    )


def requeue(site: SlurmConfiguration, partition: str) -> Iterator[Finding]:
    """Check that a preempted job can be requeued."""
    if site.config.get("JobRequeue", "1") != "0":
        yield Finding("requeue", "ok", "JobRequeue=1")
        return
    yield Finding(
        "requeue",
        "note",
        "JobRequeue=0: jobs are not requeued",
        "submit with sbatch --requeue",
        "a suspendable job, a ticket or a pilot would be gone after a preemption",
    )


_HIDDEN: Mapping[str, tuple[Verdict, str]] = {
    "nodes": ("wrong", "a harvester sees no nodes, and takes none"),
    "partitions": ("note", "partitions that this user may not use are not seen by these checks"),
    "jobs": ("note", "the end of a hole is not known, so more leases are preempted"),
    "reservations": ("note", "a lease that would overlap a reservation waits 45 s for nothing"),
}
"""Value of PrivateData → verdict and reason."""


def private(site: SlurmConfiguration, partition: str) -> Iterator[Finding]:
    """Check which information users cannot see."""
    hidden = words(site.config.get("PrivateData", ""))
    for what, (verdict, why) in _HIDDEN.items():
        if what in hidden:
            says = f"PrivateData hides {what}"
            do = f"ask whether {what} must be private" if verdict == "note" else f"{ROOT} it shown"
            yield Finding("PrivateData", verdict, says, do, why)
    if not hidden.keys() & _HIDDEN.keys():
        yield Finding("PrivateData", "ok", "hides nothing that a harvester looks at")


def backfill(site: SlurmConfiguration, partition: str) -> Iterator[Finding]:
    """Check that leases, which come last in the queue, are considered at all."""
    name = "backfill"
    if site.config.get("SchedulerType", "") != "sched/backfill":
        says = f"SchedulerType={site.config.get('SchedulerType', '')}"
        why = "nothing starts ahead of a waiting job, so a hole in front of it stays empty"
        yield Finding(name, "wrong", says, f"{ROOT} SchedulerType=sched/backfill", why)
        return
    found = list(_backfill(site, words(site.config.get("SchedulerParameters", "")), partition))
    yield from found or [Finding(name, "ok", "nothing keeps the scheduler from considering leases")]


def _backfill(
    site: SlurmConfiguration, said: Mapping[str, str], partition: str
) -> Iterator[Finding]:
    def finding(says: str, do: str, why: str) -> Finding:
        return Finding("backfill", "note", says, f"{ROOT} {do}", why)

    def number(key: str, default: int) -> int:
        return whole(said.get(key, ""), default)

    late = "idle nodes are leased late, or not at all"
    every_s = number("bf_interval", 30)
    if every_s < 0 or every_s > SLOW_S:
        does = f"is {every_s} s" if every_s > 0 else "turns it off"
        yield finding(f"bf_interval {does}", "bf_interval=30", late)
    for key in ("bf_max_job_user", "bf_max_job_user_part", "bf_max_job_part", "bf_max_job_assoc"):
        most = number(key, 0)
        if 0 < most < site.leases:
            yield finding(
                f"{key}={most}: only that many jobs are considered, but a harvester asks for "
                f"{site.leases}",
                f"{key}={site.leases}, or you set harvest_max_nodes={most}",
                late,
            )
    depth = number("bf_max_job_test", QUEUE_DEPTH)
    if site.waiting >= depth:
        says = (
            f"bf_max_job_test={depth}: only that many jobs are considered, but {site.waiting} "
            "are waiting"
        )
        why = "leases are last in the queue, so they are never considered"
        yield finding(says, f"bf_max_job_test={2 * site.waiting}", why)
    elif "bf_continue" not in said and site.waiting > QUEUE_DEPTH // 5:
        says = f"no bf_continue, and {site.waiting} jobs wait"
        why = "backfill starts over whenever anything changes, and does not reach the last ones"
        yield finding(says, "bf_continue", why)
    rpcs = number("max_rpc_cnt", 0)
    if 0 < rpcs < FEWEST_RPCS:
        why = "nothing is started while that many requests are being answered"
        yield finding(f"max_rpc_cnt={rpcs}", "max_rpc_cnt=150", why)
    window_s = number("bf_window", 1440) * 60
    longest_s = min(_limit_s(site, partition), Terms(partition=partition).longest_s)
    if window_s < longest_s:
        says = f"bf_window={window_s // 60} (minutes), and a lease lasts {longest_s / 60:.0f}"
        why = "plans beyond that are unknown, so leases get in their way and are preempted"
        yield finding(says, f"bf_window={longest_s / 60:.0f}", why)


def _limit_s(site: SlurmConfiguration, partition: str) -> float:
    limit_s = parse_time_limit(site.of(partition, "MaxTime"))
    return math.inf if limit_s is None else limit_s


RULES: tuple[Callable[[SlurmConfiguration, str], Iterable[Finding]], ...] = (
    preemption,
    grace,
    notice,
    requeue,
    private,
    backfill,
)
