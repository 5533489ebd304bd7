"""Three accounts: a victim, a member of a group that both are in, and a stranger.

Numbers, and no lines of /etc/passwd: what the kernel holds them to is all that counts. Whatever
they do happens in a fork; that they need cannot be imported there, since they may not read it.
"""

from __future__ import annotations

import grp  # noqa: F401 - see above
import os
import pwd  # noqa: F401
import tempfile  # noqa: F401
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple


class Account(NamedTuple):
    """Somebody."""

    uid: int
    groups: tuple[int, ...]

    def does(self, what: Callable[[], object], *, umask: int = 0o022) -> str:
        """Have it do something; the error, or nothing."""
        reading, writing = os.pipe()
        pid = os.fork()
        if pid == 0:
            said = ""
            try:
                os.setgroups(self.groups)
                os.setresgid(self.groups[0], self.groups[0], self.groups[0])
                os.setresuid(self.uid, self.uid, self.uid)
                os.umask(umask)
                what()
            except BaseException as error:
                said = f"{type(error).__name__}: {error}"
            os.write(writing, said.encode()[:4096])
            os._exit(0)
        os.close(writing)
        with open(reading, encoding="utf-8") as file:
            said = file.read()
        os.waitpid(pid, 0)
        return said


SHARED = 61000
"""The group of a project, and of the victim's files: a site that gives nobody one of his own."""

VICTIM = Account(61001, (SHARED,))
MEMBER = Account(61002, (SHARED,))
STRANGER = Account(61003, (61003,))


def home_of(account: Account, path: Path, mode: int) -> Path:
    """A directory of an account."""
    path.mkdir()
    os.chown(path, account.uid, account.groups[0])
    path.chmod(mode)
    return path
