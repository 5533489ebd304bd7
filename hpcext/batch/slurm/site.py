"""The set-up of a Slurm: its configuration, its partitions, and the clock of its controller."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping

from hpcext.batch.slurm.tables import facts, lines_of, rows

SIGNAL_AT_PREEMPTION = ("PreemptParameters", "send_user_signal")
"""The setting by which the signal that a job requests comes at a preemption, too."""

CRED_EXPIRE_S = 120
"""The default of Slurm (slurm.conf(5), AuthInfo)."""

_BEFORE_23_02 = ("SlurmctldParameters", "preempt_send_user_signal")


def signal_at_preemption(release: tuple[int, int]) -> tuple[str, str]:
    """Return the name of :data:`SIGNAL_AT_PREEMPTION` in a release; 22.05 refuses the later one.

    Examples
    --------
    >>> "=".join(signal_at_preemption((22, 5))), "=".join(signal_at_preemption((24, 11)))
    ('SlurmctldParameters=preempt_send_user_signal', 'PreemptParameters=send_user_signal')
    """
    return _BEFORE_23_02 if release <= (22, 5) else SIGNAL_AT_PREEMPTION


def config_command() -> list[str]:
    """Return the scontrol(1) command that asks for the settings in effect, with defaults."""
    return ["scontrol", "show", "config"]


def parse_config(text: str) -> dict[str, str]:
    """Parse ``KEY = VALUE`` on each line, where a key may end with ``[0]``."""
    return dict(re.findall(r"^(\w+(?:\[[0-9]+\])?)\s*=\s*(.*?)\s*$", text, re.M))


def words(value: str) -> dict[str, str]:
    """Parse a list of ``NAME`` and ``NAME=VALUE``, such as SchedulerParameters, into lower case.

    Examples
    --------
    >>> words("bf_interval=60,BF_Continue"), words("(null)")
    ({'bf_interval': '60', 'bf_continue': ''}, {})
    """
    parts = [part.strip().partition("=") for part in value.lower().split(",")]
    return {name: said for name, _, said in parts if name and not name.startswith("(")}


def whole(value: str, default: int = 0) -> int:
    """Return the number at the beginning of a value such as ``30 sec``, or else the default.

    Parameters
    ----------
    value : str
    default : int
        The result for a value without a number.
    """
    found = re.match(r"-?[0-9]{1,9}(?![0-9])", value)
    return int(found[0]) if found else default


def requeue_delay_s(config: Mapping[str, str]) -> int:
    """Return how long a requeued job waits before it may begin again, in seconds.

    It is ``requeue_delay`` of SchedulerParameters, which 26.05 has, but not 24.11, or else
    ``cred_expire`` of AuthInfo (slurm.conf(5)).

    Parameters
    ----------
    config : Mapping of str to str
        As :func:`parse_config` returns it.

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
    """Return the scontrol(1) command that asks for all partitions, also hidden ones."""
    return ["scontrol", "--oneliner", "--all", "show", "partition"]


def parse_partitions(text: str) -> dict[str, dict[str, str]]:
    """Parse partitions, one on each line: name → settings."""
    found = {}
    for said in map(facts, lines_of(text)):
        if said.get("PartitionName"):
            found[said["PartitionName"]] = said
    return found


def members_command() -> list[str]:
    """Return the sinfo(1) command that asks which nodes are in which partitions."""
    return ["sinfo", "--all", "--noheader", "--Node", "--format=%N|%R"]


def parse_members(text: str) -> Mapping[str, frozenset[str]]:
    """Parse ``NODE|PARTITION`` on each line into the nodes of each partition."""
    found = defaultdict(set)
    for node, partition in rows(text, 2):
        if node and partition:
            found[partition].add(node)
    return {name: frozenset(nodes) for name, nodes in found.items()}


def waiting_command() -> list[str]:
    """Return the squeue(1) command that prints a line for each pending job."""
    return ["squeue", "--noheader", "--states=PENDING", "--format=%i"]


def clock_command() -> list[str]:
    """Return the sdiag(1) command, which prints the time of the controller, among other things."""
    return ["sdiag"]


def parse_clock(text: str) -> float | None:
    """Return the clock of the controller in epoch seconds; None if the text lacks it.

    Examples
    --------
    >>> parse_clock("sdiag output at Mon Nov 23 13:43:18 2026 (1795441398)")
    1795441398.0
    """
    found = re.search(r"^sdiag output at .*\(([0-9]{1,12})\)\s*$", text, re.M)
    return float(found[1]) if found else None
