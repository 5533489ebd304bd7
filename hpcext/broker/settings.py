"""The broker's own file of settings: what an administrator decides."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from hpcext import backends, private
from hpcext.addresses import DROP, MUNGE, DropAddress, MungeAddress, SocketAddress, read_address
from hpcext.batch.leasing import FairShared
from hpcext.broker import classes, reservations
from hpcext.broker.classes import NodeClass
from hpcext.broker.division import Reserved, Share
from hpcext.broker.fair_share import Reading
from hpcext.broker.identity import groups_of
from hpcext.broker.reservations import Reservation
from hpcext.broker.tables import TOGETHER, pooled, read_share, read_shares
from hpcext.checks import at, integer, known_keys, number, string, wrong
from hpcext.core.engine import Policy
from hpcext.core.errors import InputError
from hpcext.harvest.leave import MOST_GPUS, SOCKET
from hpcext.policies import find_policy
from hpcext.text import clean, shown
from hpcext.textfiles import parse_toml, read_text

FILE = Path("/etc/hpcext/broker.toml")
STATE_DIR = Path("/var/lib/hpcext-broker")

FILE_ALONE, BATCH = "file", "batch"
"""What the weights are: those of the file, or these times the fair share of the batch system."""

GROUP, ACCOUNT = "group ", "account "
"""What the names of pools begin with."""

LONGEST = 107
"""The longest path of a socket, in bytes."""

MOST_DOORS = 8
"""The most addresses beside the socket."""


class Settings(NamedTuple):
    """The settings of a broker.

    Attributes
    ----------
    partition : str
    batch : str
        The batch system.
    socket, state_dir : pathlib.Path
    listen : tuple of MungeAddress or DropAddress
        Where harvesters on other hosts ask.
    policy : str
    gpus : int
        That a node must have, and that harvesters may use of it; 0: as many as each has.
    slots : int
        The same on nodes without GPUs, which are left alone if it is 0.
    cycle_s : float
        Seconds between two looks at the partition.
    everybody : Share
        Of users who are in no table.
    users, groups : Mapping[str, Share]
    administrators : tuple of str
        Users who see everybody in the status.
    shares : {"file", "batch"}
        ``batch``: weights are multiplied by the fair share of the batch system.
    shares_every_s : float
        Seconds from one question for it to the next.
    shares_unknown : float
        The factor of users whom the batch system does not know, or has not told yet.
    pools : Mapping[str, int]
        Limits of all members together: of ``group NAME`` and ``account NAME``.
    reservations : tuple of Reservation
        Nodes that some users have first, between two instants.
    classes : tuple of NodeClass
        Nodes in which users may have limits, in the order of the file.
    """

    partition: str
    batch: str = "slurm"
    socket: Path = SOCKET
    state_dir: Path = STATE_DIR
    listen: tuple[MungeAddress | DropAddress, ...] = ()
    policy: str = "equal_share"
    gpus: int = 0
    slots: int = 0
    cycle_s: float = 15.0
    everybody: Share = Share()
    users: Mapping[str, Share] = {}
    groups: Mapping[str, Share] = {}
    administrators: tuple[str, ...] = ()
    shares: str = FILE_ALONE
    shares_every_s: float = 300.0
    shares_unknown: float = 0.5
    pools: Mapping[str, int] = {}
    reservations: tuple[Reservation, ...] = ()
    classes: tuple[NodeClass, ...] = ()

    @property
    def asks(self) -> bool:
        """Whether the batch system is asked for its fair share, or for members of accounts."""
        return self.shares == BATCH or self.has_accounts

    @property
    def has_accounts(self) -> bool:
        """Whether members of accounts of the batch system matter."""
        return any(name.startswith(ACCOUNT) for name in self.pools) or any(
            each.kind == reservations.ACCOUNT for each in self.reservations
        )

    def part(self, user: str, now: Reading) -> tuple[Share, tuple[str, ...]]:
        """Return what a user has, and the pools in which his nodes count.

        Parameters
        ----------
        user : str
        now : Reading
            What the batch system says.
        """
        share = self.share(user)
        if self.shares == BATCH:
            share = share._replace(weight=share.weight * self.factor(user, now))
        if not self.pools:
            return share, ()
        names = names_of(user, now)
        return share, tuple(name for name in self.pools if name in names)

    def reserved(self, users: Iterable[str], now: Reading, at_s: float) -> tuple[Reserved, ...]:
        """Return what is reserved for some of these users at an instant.

        Parameters
        ----------
        users : iterable of str
        now : Reading
            What the batch system says.
        at_s : float
            Seconds since the epoch.
        """
        holding = [each for each in self.reservations if each.holds(at_s)]
        if not holding:
            return ()
        names = {user: names_of(user, now) for user in users}
        return tuple(
            each.of((user for user in names if each.owner in names[user]), at_s) for each in holding
        )

    def factor(self, user: str, now: Reading) -> float:
        """Return by what the weight of a user is multiplied."""
        return now.factors.get(user, self.shares_unknown) if self.shares == BATCH else 1.0

    def share(self, user: str) -> Share:
        """Return what a user has: by name, else by the first group of the file, else as everybody.

        The groups are those that the system knows; nobody is asked for them.
        """
        if user in self.users or not self.groups:
            return self.users.get(user, self.everybody)
        theirs = groups_of(user)
        return next((self.groups[name] for name in self.groups if name in theirs), self.everybody)

    def most(self, reservation: Reservation) -> int | None:
        """Return the limit of whom a reservation is for; None if there is none."""
        if reservation.kind == reservations.USER:
            return self.share(reservation.name).limit
        return self.pools.get(reservation.owner)

    def decider(self) -> Policy:
        """Return the site's policy."""
        return find_policy(self.policy, "policy")


def names_of(user: str, now: Reading) -> set[str]:
    """Return the names of limits and reservations that are for a user, also with others.

    Parameters
    ----------
    user : str
    now : Reading
        What the batch system says.
    """
    names = {f"{GROUP}{name}" for name in groups_of(user)}
    names.update(f"{ACCOUNT}{name}" for name in now.accounts.get(user, ()))
    return names | {f"{reservations.USER} {user}"}


def _path(value: Any) -> Path:
    path = Path(string(value))
    if not path.is_absolute() or ".." in path.parts:
        raise InputError(shown(value), valid="an absolute path without ..")
    return path


def _socket(value: Any) -> Path:
    path = _path(value)
    if len(os.fsencode(path)) > LONGEST:
        raise InputError(
            f"{len(os.fsencode(path))} bytes", valid=f"at most {LONGEST} bytes (unix(7))"
        )
    return path


def _listen(value: Any) -> tuple[MungeAddress | DropAddress, ...]:
    """Read one address, or several."""
    texts = value if isinstance(value, list) else [value]
    if len(texts) > MOST_DOORS:
        raise InputError(f"{len(texts)} addresses", valid=f"at most {MOST_DOORS}")
    found = []
    for text in texts:
        address = read_address(string(text))
        if isinstance(address, SocketAddress):
            raise InputError(
                shown(text),
                valid=f"{MUNGE}HOST:PORT, or {DROP} and an absolute path of a directory",
                do="the key socket is for the socket",
            )
        found.append(address)
    return tuple(dict.fromkeys(found))


def _name(value: Any) -> str:
    if not string(value) or "," in value:
        raise InputError(shown(value), valid="one name")
    return str(value)


def _names(value: Any) -> tuple[str, ...]:
    if not isinstance(value, list):
        raise wrong(value, "a list of names")
    return tuple(_name(each) for each in value)


def _shares_of(value: Any) -> str:
    if string(value) not in {FILE_ALONE, BATCH}:
        raise InputError(shown(value), valid=f"{FILE_ALONE}, {BATCH}")
    return str(value)


_OWN: Mapping[str, Callable[[Any], Any]] = {
    "partition": _name,
    "batch": _name,
    "socket": _socket,
    "state_dir": _path,
    "listen": _listen,
    "policy": string,
    "gpus": lambda value: integer(value, 0, MOST_GPUS),
    "slots": lambda value: integer(value, 0, MOST_GPUS),
    "cycle_s": lambda value: number(value, 1, 3600),
    "administrators": _names,
    "shares": _shares_of,
    "shares_every_s": lambda value: number(value, 10, 86_400),
    "shares_unknown": lambda value: number(value, 0, 1, above=True),
}

_TABLES = ("everybody", "users", "groups", "accounts", "reservations", "classes")


def load(path: Path) -> Settings:
    """Read the file of a broker that obeys it.

    Parameters
    ----------
    path : pathlib.Path

    Raises
    ------
    InputError
        It is invalid, or somebody else than root and this account could change it.
    """
    where = clean(str(path))
    try:
        weak = private.weakness(path.absolute())
    except OSError as error:
        raise InputError(error.strerror or str(error), where=where) from None
    if weak:
        raise InputError(weak.what, where=clean(str(weak.place)), do=weak.remedy)
    return read(path)


def read(path: Path) -> Settings:
    """Read the file, whoever it belongs to.

    Parameters
    ----------
    path : pathlib.Path

    Raises
    ------
    InputError
        It is invalid.
    """
    where = clean(str(path))
    table = parse_toml(read_text(path), where)
    with at(where):
        known_keys(table, (*_OWN, *_TABLES))
        if "partition" not in table:
            raise InputError("no partition", valid='partition = "NAME"')
    found: dict[str, Any] = {}
    for name, read in _OWN.items():
        if name in table:
            with at(where, name):
                found[name] = read(table[name])
    with at(where, "classes"):
        found["classes"] = classes.read(table.get("classes", {}))
    known = [each.name for each in found["classes"]]
    if "everybody" in table:
        with at(where, "everybody"):
            found["everybody"] = read_share(table["everybody"], Share(), known)
    pools: dict[str, int] = {}
    with at(where, "groups"):
        groups = pooled(table.get("groups", {}), GROUP, pools)
    with at(where, "accounts"):
        accounts = pooled(table.get("accounts", {}), ACCOUNT, pools)
        for name, each in accounts.items():
            with at(clean(name)):
                known_keys(each, (TOGETHER,))
    for name, tables in (("users", table.get("users", {})), ("groups", groups)):
        with at(where, name):
            found[name] = read_shares(tables, found.get("everybody", Share()), known)
    with at(where, "reservations"):
        found["reservations"] = reservations.read(table.get("reservations", []))
    settings = Settings(**found, pools=pools)
    with at(where, "reservations"):
        reservations.check(settings.reservations, settings.most)
    with at(where):
        settings.decider()
        system = backends.leasing(settings.batch)
        if settings.asks and not isinstance(system, FairShared):
            raise InputError(
                f"{settings.batch} has no fair share or accounts that a broker can read",
                valid=f'shares = "{FILE_ALONE}", and no table or reservation of accounts',
                do="give weights in the tables users and groups",
            )
        if settings.has_accounts and not (isinstance(system, FairShared) and system.has_accounts):
            raise InputError(
                f"{settings.batch} has no accounts",
                valid="no table or reservation of accounts",
                do="name a group of the system: [groups.NAME], or group = in a reservation",
            )
    return settings
