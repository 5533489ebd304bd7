"""The broker's own file of settings: what an administrator decides."""

from __future__ import annotations

import grp
import os
import pwd
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from hpcext import backends, private
from hpcext.broker.division import Share
from hpcext.checks import at, integer, known_keys, number, string, wrong
from hpcext.core.engine import Policy
from hpcext.core.errors import InputError
from hpcext.harvest.leave import MOST_GPUS, MOST_NODES, SOCKET
from hpcext.policies import find_policy
from hpcext.text import clean, shown
from hpcext.textfiles import parse_toml, read_text

FILE = Path("/etc/hpcext/broker.toml")
STATE_DIR = Path("/var/lib/hpcext-broker")

LONGEST = 107
"""The longest path of a socket, in bytes."""


class Settings(NamedTuple):
    """The settings of a broker.

    Attributes
    ----------
    partition : str
    batch : str
        The batch system.
    socket, state_dir : pathlib.Path
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
    """

    partition: str
    batch: str = "slurm"
    socket: Path = SOCKET
    state_dir: Path = STATE_DIR
    policy: str = "equal_share"
    gpus: int = 0
    slots: int = 0
    cycle_s: float = 15.0
    everybody: Share = Share()
    users: Mapping[str, Share] = {}
    groups: Mapping[str, Share] = {}
    administrators: tuple[str, ...] = ()

    def share(self, user: str) -> Share:
        """Return what a user has: by name, else by the first group of the file, else as everybody.

        The groups are those that the system knows; nobody is asked for them.
        """
        if user in self.users or not self.groups:
            return self.users.get(user, self.everybody)
        theirs = _groups(user)
        return next((self.groups[name] for name in self.groups if name in theirs), self.everybody)

    def decider(self) -> Policy:
        """Return the site's policy."""
        return find_policy(self.policy, "policy")


def _groups(user: str) -> set[str]:
    try:
        ids = os.getgrouplist(user, pwd.getpwnam(user).pw_gid)
    except (KeyError, OSError):
        return set()
    names = set()
    for gid in ids:
        try:
            names.add(grp.getgrgid(gid).gr_name)
        except KeyError:
            continue
    return names


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


def _name(value: Any) -> str:
    if not string(value) or "," in value:
        raise InputError(shown(value), valid="one name")
    return str(value)


def _names(value: Any) -> tuple[str, ...]:
    if not isinstance(value, list):
        raise wrong(value, "a list of names")
    return tuple(_name(each) for each in value)


_OWN: Mapping[str, Callable[[Any], Any]] = {
    "partition": _name,
    "batch": _name,
    "socket": _socket,
    "state_dir": _path,
    "policy": string,
    "gpus": lambda value: integer(value, 0, MOST_GPUS),
    "slots": lambda value: integer(value, 0, MOST_GPUS),
    "cycle_s": lambda value: number(value, 1, 3600),
    "administrators": _names,
}

_SHARE: Mapping[str, Callable[[Any], Any]] = {
    "weight": lambda value: number(value, 0, 1e6, above=True),
    "priority": lambda value: number(value, -1e6, 1e6),
    "limit": lambda value: integer(value, 0, MOST_NODES),
}

_TABLES = ("everybody", "users", "groups")


def load(path: Path) -> Settings:
    """Read the file.

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
    if "everybody" in table:
        with at(where, "everybody"):
            found["everybody"] = _share(table["everybody"], Share())
    for name in ("users", "groups"):
        with at(where, name):
            found[name] = _shares(table.get(name, {}), found.get("everybody", Share()))
    settings = Settings(**found)
    with at(where):
        settings.decider()
        backends.leasing(settings.batch)
    return settings


def _shares(value: Any, usual: Share) -> dict[str, Share]:
    found = {}
    for name, table in _table(value).items():
        with at(clean(name)):
            found[name] = _share(table, usual)
    return found


def _share(value: Any, usual: Share) -> Share:
    known_keys(_table(value), _SHARE)
    said = {}
    for name, each in value.items():
        with at(name):
            said[name] = _SHARE[name](each)
    return usual._replace(**said)


def _table(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise wrong(value, "a table")
    return value
