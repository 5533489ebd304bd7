"""How a site has set up its Slurm: its configuration, partitions, and the controller's clock."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping

SIGNAL_AT_PREEMPTION = ("PreemptParameters", "send_user_signal")
"""Key and word by which jobs that asked for a signal get it when they are preempted, too."""

CRED_EXPIRE_S = 120
"""Slurm's default; slurm.conf(5), AuthInfo."""

_BEFORE_23_02 = ("SlurmctldParameters", "preempt_send_user_signal")


def signal_at_preemption(release: tuple[int, int]) -> tuple[str, str]:
    """That setting, as a release has it. 22.05 does not start with the later name; slurm.conf(5).

    Examples
    --------
    >>> "=".join(signal_at_preemption((22, 5))), "=".join(signal_at_preemption((24, 11)))
    ('SlurmctldParameters=preempt_send_user_signal', 'PreemptParameters=send_user_signal')
    """
    return _BEFORE_23_02 if release <= (22, 5) else SIGNAL_AT_PREEMPTION


def config_command() -> list[str]:
    """How slurmctld runs now, with defaults, whatever its files say; scontrol(1)."""
    return ["scontrol", "show", "config"]


def parse_config(text: str) -> dict[str, str]:
    """``KEY = VALUE`` on each line; a key may end with ``[0]``."""
    return dict(re.findall(r"^(\w+(?:\[[0-9]+\])?)\s*=\s*(.*?)\s*$", text, re.M))


def words(value: str) -> dict[str, str]:
    """A list of ``NAME`` and ``NAME=VALUE``, as SchedulerParameters is, without case.

    Examples
    --------
    >>> words("bf_interval=60,BF_Continue"), words("(null)")
    ({'bf_interval': '60', 'bf_continue': ''}, {})
    """
    parts = [part.strip().partition("=") for part in value.lower().split(",")]
    return {name: said for name, _, said in parts if name and not name.startswith("(")}


def whole(value: str, default: int = 0) -> int:
    """The number that a value begins with, as ``30 sec``; a default where there is none."""
    found = re.match(r"-?[0-9]{1,9}(?![0-9])", value)
    return int(found[0]) if found else default


def cred_expire_s(config: Mapping[str, str]) -> int:
    """So long a job that was requeued waits before it may begin again; slurm.conf(5), AuthInfo."""
    return whole(words(config.get("AuthInfo", "")).get("cred_expire", ""), CRED_EXPIRE_S)


def partitions_command() -> list[str]:
    """All partitions, hidden ones too; scontrol(1)."""
    return ["scontrol", "--oneliner", "--all", "show", "partition"]


def parse_partitions(text: str) -> dict[str, dict[str, str]]:
    """Partition → key → value; one on each line."""
    found = {}
    for line in text.splitlines():
        facts = dict(word.partition("=")[::2] for word in line.split())
        if facts.get("PartitionName"):
            found[facts["PartitionName"]] = facts
    return found


def members_command() -> list[str]:
    """Which nodes are in which partitions; sinfo(1)."""
    return ["sinfo", "--all", "--noheader", "--Node", "--format=%N|%R"]


def parse_members(text: str) -> Mapping[str, frozenset[str]]:
    """Partition → its nodes."""
    found = defaultdict(set)
    for line in text.splitlines():
        node, _, partition = line.strip().partition("|")
        if node and partition:
            found[partition].add(node)
    return {name: frozenset(nodes) for name, nodes in found.items()}


def waiting_command() -> list[str]:
    """A line for each pending job; squeue(1)."""
    return ["squeue", "--noheader", "--states=PENDING", "--format=%i"]


def clock_command() -> list[str]:
    """What the controller's time is, among other things; sdiag(1)."""
    return ["sdiag"]


def parse_clock(text: str) -> float | None:
    """Epoch seconds by the controller's clock; None where it does not say.

    Examples
    --------
    >>> parse_clock("sdiag output at Mon Nov 23 13:43:18 2026 (1795441398)")
    1795441398.0
    """
    found = re.search(r"^sdiag output at .*\(([0-9]{1,12})\)\s*$", text, re.M)
    return float(found[1]) if found else None
