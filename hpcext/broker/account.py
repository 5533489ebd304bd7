"""What users had, with the broker's leave and without, and what they are behind: node-seconds.

They are summed from look to look.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import msgspec

from hpcext import accounts
from hpcext.broker.rounding import Due

FILE = "account.json"


class Had(msgspec.Struct):
    """What one user had.

    Attributes
    ----------
    held_node_s : float
        Node-seconds of all leases.
    without_node_s : float
        Of these, of those that no leave was given for.
    """

    held_node_s: float = 0.0
    without_node_s: float = 0.0


class Account(msgspec.Struct, kw_only=True):
    """The account of a broker.

    Attributes
    ----------
    users : dict of str to Had
    due : dict of str to Due
        Of users who take part now.
    """

    schema: Literal["hpcext.broker-account/1"] = "hpcext.broker-account/1"
    users: dict[str, Had] = {}
    due: dict[str, Due] = {}

    def of(self, user: str) -> Had:
        """Return what a user had."""
        return self.users.get(user, Had())

    def passed(self, user: str, seconds: float, *, held: int, without: int) -> None:
        """Add nodes that a user had for some time.

        Parameters
        ----------
        user : str
        seconds : float
        held, without : int
            Nodes: all of them, and those without leave.
        """
        had = self.users.setdefault(user, Had())
        had.held_node_s += seconds * held
        had.without_node_s += seconds * without


def go_on(directory: Path) -> Account:
    """Return the account that a broker goes on with; one that cannot be read is kept beside it."""
    return accounts.go_on(directory / FILE, Account)


def save(account: Account, directory: Path) -> None:
    """Replace the file; a full disk costs what was counted since the last time."""
    accounts.save(account, directory / FILE)
