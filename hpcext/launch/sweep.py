"""The program that ends all remaining processes of an attempt on its host, and acknowledges it.

Run as ``python -I -S .../hpcext/launch/sweep.py DIRECTORY INDEX NONCE``. The acknowledgement is a
file with the nonce in it: whether a launcher passes exit codes on does not matter.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

# With -I and -S nothing else leads here; last, so that nothing of ours hides the library.
sys.path.append(os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))))

from hpcext import documents, private, protocol
from hpcext.launch import stderr, tree
from hpcext.numerals import whole
from hpcext.process import Process

SWEPT = "hpcext.swept/1"
SWEPT_FILE = "swept.json"

END_S = 15.0
"""Seconds that a supervisor gets to end after it has read the order."""

DYING_S = 60.0
"""Seconds that are waited for what is dying already, and need not be of the attempt at all."""

PAUSE_S = 0.05


def sweep(directory: Path, index: int, nonce: str) -> None:
    """End the supervisor if it runs, kill all other processes, and acknowledge that all are gone.

    Parameters
    ----------
    directory : pathlib.Path
        The attempt's.
    index : int
        The index of this node.
    nonce : str
    """
    own = protocol.node_directory(directory, index)
    bar(own)
    supervisor = _supervisor(own)
    deadline_s = time.monotonic() + END_S
    while supervisor is not None and supervisor.alive() and time.monotonic() < deadline_s:
        # The order to end has been written already.
        supervisor.send(protocol.NEWS_SIGNAL)
        time.sleep(PAUSE_S)
    marks = marks_of(directory)
    victims = {supervisor} if supervisor is not None else set()
    if supervisor is not None and supervisor.alive():
        # They are known for certain now only: one may have cleared its environment.
        victims.update(tree.descendants(supervisor.pid))
    tree.kill_marked(marks, victims)
    dying = Dying(supervisor)
    while tree.kill_marked(marks, victims) or dying.any():
        time.sleep(PAUSE_S)
    documents.write_json(own / SWEPT_FILE, {"schema": SWEPT, "nonce": nonce})


class Dying:
    """What was dying already when the processes of an attempt had been looked for.

    The kernel kills a command whose supervisor is killed. It then has no environment any more, by
    which it could be found, and nobody knows which process it was.

    Parameters
    ----------
    supervisor : Process or None
        That of the attempt, which is gone.
    """

    def __init__(self, supervisor: Process | None) -> None:
        self._until_s = time.monotonic() + DYING_S
        try:
            self._found = [] if supervisor is None else tree.dying(supervisor.start)
        except OSError:
            self._found = []

    def any(self) -> bool:
        """Return whether one of them has not ended yet, for as long as that is waited for."""
        waits = time.monotonic() < self._until_s
        return waits and any(process.alive() for process in self._found)


def marks_of(directory: Path) -> list[str]:
    """Return variables of which each process of an attempt has one.

    Processes that were suspended as they are have the environment of an earlier attempt.
    """
    began = [directory]
    try:
        said = documents.read_json(directory / protocol.NATIVE_FILE, protocol.NATIVE)
        earlier = Path(str(said["began_as"]))
    except documents.UNFIT:
        earlier = directory
    # Whatever is in that file, no other job's processes are killed.
    if earlier != directory and earlier.parent == directory.parent:
        began.append(earlier)
    return [f"HPCEXT_REPORT_DIR={each}" for each in began]


def bar(own: Path) -> bool:
    """Claim an attempt, so that no supervisor can begin it from here on.

    Parameters
    ----------
    own : pathlib.Path
        The attempt's directory on this node.

    Returns
    -------
    bool
        False if it has been claimed before.

    Raises
    ------
    OSError
        The claim cannot be written, so a supervisor may still begin.
    """
    me = Process.me()
    document = {"schema": protocol.SUPERVISOR, "pid": me.pid, "start": me.start, "boot_id": ""}
    private.make(own)
    temporary = own / f".{protocol.SUPERVISOR_FILE}.{me.pid}-{me.start}"
    documents.write_json(temporary, document)
    try:
        os.link(temporary, own / protocol.SUPERVISOR_FILE)
    except FileExistsError:
        return False
    finally:
        temporary.unlink()
    documents.sync_directory(own)
    return True


def _supervisor(own: Path) -> Process | None:
    """Return this node's supervisor; None if there was none, or the machine has restarted since."""
    try:
        said = documents.read_json(own / protocol.SUPERVISOR_FILE, protocol.SUPERVISOR)
        process = Process(int(said["pid"]), int(said["start"]))
    except documents.UNFIT:
        return None
    return process if said.get("boot_id") == tree.boot_id() else None


def main() -> int:
    """Read the arguments."""
    index = whole(sys.argv[2]) if len(sys.argv) == 4 else None
    if index is None:
        sys.stderr.write("usage: sweep.py DIRECTORY INDEX NONCE\n")
        return 64
    try:
        sweep(Path(sys.argv[1]), index, sys.argv[3])
    except OSError as error:
        stderr.say(f"leftover processes could not be ended: {error}")
        return 71
    return 0


if __name__ == "__main__":
    sys.exit(main())
