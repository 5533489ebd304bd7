"""A site's Slurm as it is set up: configuration, partitions, and the controller's clock."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping

from hpcext.batch.slurm import facts, rows

SIGNAL_AT_PREEMPTION = ("PreemptParameters", "send_user_signal")
"""Key and word by which jobs that asked for a signal get it when they are preempted, too."""

CRED_EXPIRE_S = 120
"""The default of Slurm; slurm.conf(5), AuthInfo."""

_BEFORE_23_02 = ("SlurmctldParameters", "preempt_send_user_signal")


def signal_at_preemption(release: tuple[int, int]) -> tuple[str, str]:
    """Return that setting for a release; 22.05 does not start with the later name; slurm.conf(5).

    Examples
    --------
    >>> "=".join(signal_at_preemption((22, 5))), "=".join(signal_at_preemption((24, 11)))
    ('SlurmctldParameters=preempt_send_user_signal', 'PreemptParameters=send_user_signal')
    """
    return _BEFORE_23_02 if release <= (22, 5) else SIGNAL_AT_PREEMPTION


def config_command() -> list[str]:
    """Ask how slurmctld runs now, defaults included, whatever its files say; scontrol(1)."""
    return ["scontrol", "show", "config"]


def parse_config(text: str) -> dict[str, str]:
    """Parse ``KEY = VALUE`` on each line; a key may end with ``[0]``."""
    return dict(re.findall(r"^(\w+(?:\[[0-9]+\])?)\s*=\s*(.*?)\s*$", text, re.M))


def words(value: str) -> dict[str, str]:
    """Parse a list of ``NAME`` and ``NAME=VALUE``, such as SchedulerParameters, in lower case.

    Examples
    --------
    >>> words("bf_interval=60,BF_Continue"), words("(null)")
    ({'bf_interval': '60', 'bf_continue': ''}, {})
    """
    parts = [part.strip().partition("=") for part in value.lower().split(",")]
    return {name: said for name, _, said in parts if name and not name.startswith("(")}


def whole(value: str, default: int = 0) -> int:
    """Return the number with which a value such as ``30 sec`` begins, or else the default."""
    found = re.match(r"-?[0-9]{1,9}(?![0-9])", value)
    return int(found[0]) if found else default


def requeue_delay_s(config: Mapping[str, str]) -> int:
    """So long a job that was requeued waits before it may begin again.

    slurm.conf(5): ``requeue_delay`` of SchedulerParameters, which 26.05 has and 24.11 has not, or
    else ``cred_expire`` of AuthInfo.

    Examples
    --------
    >>> requeue_delay_s({}), requeue_delay_s({"AuthInfo": "cred_expire=30"})
    (120, 30)
    >>> requeue_delay_s({"AuthInfo": "cred_expire=30", "SchedulerParameters": "requeue_delay=5"})
    5
    """
    expire_s = whole(words(config.get("AuthInfo", "")).get("cred_expire", ""), CRED_EXPIRE_S)
    return whole(words(config.get("SchedulerParameters", "")).get("requeue_delay", ""), expire_s)


def partitions_command() -> list[str]:
    """Ask for all partitions, hidden ones too; scontrol(1)."""
    return ["scontrol", "--oneliner", "--all", "show", "partition"]


def parse_partitions(text: str) -> dict[str, dict[str, str]]:
    """Parse a partition on each line: its keys and values, by name."""
    found = {}
    for said in map(facts, text.splitlines()):
        if said.get("PartitionName"):
            found[said["PartitionName"]] = said
    return found


def members_command() -> list[str]:
    """Ask which nodes are in which partitions; sinfo(1)."""
    return ["sinfo", "--all", "--noheader", "--Node", "--format=%N|%R"]


def parse_members(text: str) -> Mapping[str, frozenset[str]]:
    """Return the nodes of each partition."""
    found = defaultdict(set)
    for node, partition in rows(text, 2):
        if node and partition:
            found[partition].add(node)
    return {name: frozenset(nodes) for name, nodes in found.items()}


def waiting_command() -> list[str]:
    """Ask for a line for each pending job; squeue(1)."""
    return ["squeue", "--noheader", "--states=PENDING", "--format=%i"]


def clock_command() -> list[str]:
    """Ask for the controller's time, among other things; sdiag(1)."""
    return ["sdiag"]


def parse_clock(text: str) -> float | None:
    """Return the epoch seconds of the controller's clock; None if it does not say.

    Examples
    --------
    >>> parse_clock("sdiag output at Mon Nov 23 13:43:18 2026 (1795441398)")
    1795441398.0
    """
    found = re.search(r"^sdiag output at .*\(([0-9]{1,12})\)\s*$", text, re.M)
    return float(found[1]) if found else None
