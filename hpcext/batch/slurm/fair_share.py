"""The fair share of Slurm's users, as sshare(1) prints it for priority/multifactor.

The factor is the one that Slurm itself puts into priorities: from 0, for those who have used most
of what is theirs, to 1. An account is printed below the one that it belongs to, with one more
blank before its name, and a user below the account of the association.
"""

from __future__ import annotations

import math

from hpcext.batch.leasing import Association
from hpcext.batch.slurm.tables import lines_of, rows

_COLUMNS = ("User", "FairShare", "Account")
"""The account is the last, since :func:`rows` takes blanks away."""


def fair_share_command() -> list[str]:
    """Return the sshare(1) command that asks for the associations of all users."""
    format_ = f"--format={','.join(_COLUMNS)}"
    return ["sshare", "--all", "--noheader", "--parsable2", format_]


def parse_fair_share(text: str) -> tuple[Association, ...]:
    r"""Parse the output of :func:`fair_share_command`.

    Examples
    --------
    >>> parse_fair_share("||root\n|| physics\nann|0.25|  physics")
    (Association(user='ann', accounts=('root', 'physics'), factor=0.25),)
    """
    above: list[tuple[int, str]] = []
    found = []
    for line in lines_of(text):
        # Its blanks are what the rows leave out.
        named = line.split("|", len(_COLUMNS) - 1)[-1]
        depth = len(named) - len(named.lstrip())
        for user, factor, account in rows(line, len(_COLUMNS)):
            above = [each for each in above if each[0] < depth]
            if account and not user:
                above.append((depth, account))
            elif account and (number := _factor(factor)) is not None:
                accounts = (*(name for _, name in above), account)
                found.append(Association(user, tuple(dict.fromkeys(accounts)), number))
    return tuple(found)


def _factor(text: str) -> float | None:
    """Return a factor, 0 to 1; None if there is none, as of users whose shares are ``parent``."""
    try:
        number = float(text)
    except ValueError:
        return None
    return min(1.0, max(0.0, number)) if math.isfinite(number) else None
