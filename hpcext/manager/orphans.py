"""Trainings that go on although the manager of their pilot was killed."""

from __future__ import annotations

from pathlib import Path

from hpcext import documents, protocol
from hpcext.executors.attempt.directory import ATTEMPTS
from hpcext.launch.tree import boot_id
from hpcext.manager import spool
from hpcext.manager.directory import Pilot, host
from hpcext.process import Process


def still_running(directory: Path, pilot: Pilot) -> str:
    """Return which jobs of a pilot without a manager run on, or may; empty if none is known to.

    Those in a batch system are that system's: nothing is said of them.

    Parameters
    ----------
    directory : pathlib.Path
    pilot : Pilot
    """
    if pilot.batch or pilot.harvest is not None:
        return ""
    found = []
    for path in sorted(directory.glob(f"jobs/*/{ATTEMPTS}/{protocol.SUPERVISOR_FILE}")):
        if (path.parent / protocol.EXIT_FILE).exists():
            continue
        job = path.parent.parent.name
        try:
            said = documents.read_json(path, protocol.SUPERVISOR)
            process = Process(int(said["pid"]), int(said["start"]))
        except documents.UNFIT:
            continue
        if said.get("boot_id") == boot_id():
            if process.alive():
                found.append(f"its job {job} still runs (pid {process.pid})")
        elif ran_on(directory) not in {"", host()}:
            found.append(f"its job {job} may still run on {ran_on(directory)}")
    more = f", and {len(found) - 1} more" if len(found) > 1 else ""
    return found[0] + more if found else ""


def ran_on(directory: Path) -> str:
    """Return the machine of the last manager; empty if nothing says so."""
    try:
        return str(documents.read_json(directory / spool.MANAGER_FILE, spool.MANAGER)["host"])
    except documents.UNFIT:
        return ""
