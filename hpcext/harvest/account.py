"""An account of a partition's idle nodes: node-seconds, summed up from look to look."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import msgspec

from hpcext import accounts

FILE = "harvest.json"

GAP = 3.0
"""Of so many intervals at most something is known from one look; a manager may have been away."""


class Account(msgspec.Struct, kw_only=True):
    """The account of one harvester, since it began.

    Attributes
    ----------
    seen_s : float
        Seconds in which it looked.
    offered_node_s : float
        Node-seconds of nodes that no other job used.
    held_node_s : float
        Of these, of those that it had as leases.
    short_node_s : float
        Of these, of those that were left alone since they end too soon.
    leases, withdrawn, refused : int
        Asked for; of these: that did not begin in time; that Slurm did not take.
    others : int
        Nodes that other harvesters had at the last look.
    unanswered : str
        The query that the batch system did not answer at the last look; empty if it did.
    not_given : str
        Why the last requested lease was not granted; empty if it was.
    missing : str
        What was missing for a lease at the last look, see :mod:`hpcext.harvest.missing`.
    broker : str
        What the broker of the site said then, or that it is away; empty if nobody asks it.
    """

    schema: Literal["hpcext.harvest/1"] = "hpcext.harvest/1"
    seen_s: float = 0.0
    offered_node_s: float = 0.0
    held_node_s: float = 0.0
    short_node_s: float = 0.0
    leases: int = 0
    withdrawn: int = 0
    refused: int = 0
    others: int = 0
    unanswered: str = ""
    not_given: str = ""
    missing: str = ""
    broker: str = ""

    @property
    def unleased_node_s(self) -> float:
        """Node-seconds that nobody had, including nodes that were idle for too short a time."""
        return max(0.0, self.offered_node_s - self.held_node_s)

    def passed(self, seconds: float, *, idle: int, held: int, short: int) -> None:
        """Add nodes that were idle, held and too short for some time.

        Parameters
        ----------
        seconds : float
        idle, held, short : int
            Nodes.
        """
        self.seen_s += seconds
        self.offered_node_s += seconds * (idle + held)
        self.held_node_s += seconds * held
        self.short_node_s += seconds * short


def load(directory: Path) -> Account:
    """Read the account of a harvester; return a new one if it cannot be read."""
    return accounts.load(directory / FILE, Account)


def go_on(directory: Path) -> Account:
    """Return the account that a harvester goes on with; one that cannot be read is kept beside."""
    return accounts.go_on(directory / FILE, Account)


def save(account: Account, directory: Path) -> None:
    """Replace the file; a full disk costs what was counted since the last time."""
    accounts.save(account, directory / FILE)
