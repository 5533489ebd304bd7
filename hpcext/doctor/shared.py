"""Checks that files in the state directory behave as managers, trainings and leases need."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from hpcext.core.errors import InputError
from hpcext.doctor.checkup import CheckOptions, Finding
from hpcext.manager import locks, spool
from hpcext.text import clean, counted

APART_S = 5.0
"""The largest difference, in seconds, between the clocks of a file server and this machine."""

SEEN_S = 10.0
"""The longest time, in seconds, until another process sees a renamed file."""

MOST_PILOTS = 1000

_LOOK_S = 0.001
_STARTS_S = 60.0

_OTHER = """\
import fcntl, os, sys, time
with open("lock", "a") as lock:
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        print("free")
    except OSError:
        print("held")
os.rename("made", "renamed")
print(time.time(), flush=True)
"""
"""A program that tries to get a lock that the check holds, renames a file, and prints the time."""

_ELSEWHERE = "set a state_dir on another file system"


def check(asked: CheckOptions) -> Iterator[Finding]:
    """Run all checks, in a directory that is removed afterwards."""
    if asked.settings is None:
        return
    state_dir = asked.settings.state_dir
    yield from _private(state_dir)
    place = next(path for path in (state_dir, *state_dir.parents) if path.exists())
    if not os.access(place, os.W_OK | os.X_OK):
        return  # the finding on state_dir says so
    with tempfile.TemporaryDirectory(dir=place, prefix=".hpcext-doctor-") as name:
        scratch = Path(name)
        yield _replace(scratch)
        yield _clock(scratch)
        with locks.held(scratch / "lock", do=_ELSEWHERE):
            yield from _other_process(scratch)


def _private(state_dir: Path) -> Iterator[Finding]:
    """Check that directories in which files are requests belong to this user alone."""
    name = "spool"
    register = state_dir / "pilots"
    found = [register, *register.glob("*/")][: MOST_PILOTS + 1] if register.exists() else []
    wrong = 0
    for directory in found:
        try:
            # A pilot with --dir has a link here.
            spool.check_private(directory.resolve())
        except InputError as error:
            wrong += 1
            why = "files in it are commands to a pilot; hpcext refuses such a directory"
            yield Finding(name, "wrong", clean(f"{error.where}: {error.what}"), error.do, why)
    if found and not wrong:
        # A supervisor may make some folders again in the place of a pilot that was deleted.
        count = sum((directory / "pilot.json").exists() for directory in found[1:])
        pilots = counted(count, "pilot")
        yield Finding(name, "ok", f"{pilots}; nobody else can read them or give them commands")


def _replace(scratch: Path) -> Finding:
    """Check that documents can be replaced while others read them."""
    name = "rename"
    old, new = scratch / "document", scratch / "next"
    old.write_text("old")
    with old.open() as reader:
        new.write_text("new")
        os.replace(new, old)
        try:
            before = reader.read()
        except OSError as error:  # ESTALE, with some file servers
            before = clean(str(error.strerror))
    if (before, old.read_text()) == ("old", "new"):
        return Finding(
            name,
            "ok",
            "a reader gets the whole old file or the whole new one while it is replaced",
        )
    says = f"a file was replaced, and a reader that had it open got {before!r}"
    return Finding(name, "wrong", says, _ELSEWHERE, "documents would be read half-written")


def _clock(scratch: Path) -> Finding:
    """Check the times of files, which are by the clock of the file server."""
    name = "clock of files"
    file = scratch / "touched"
    before_s = time.time()
    file.write_text("")
    apart_s = max(before_s - file.stat().st_mtime, file.stat().st_mtime - time.time(), 0.0)
    if apart_s <= APART_S:
        return Finding(name, "ok", f"within {APART_S:g} s of this machine's")
    says = f"{apart_s:.0f} s apart from this machine's"
    why = "the age of what a killed manager left is unknown"
    return Finding(name, "wrong", says, "ask an administrator to synchronize the clocks", why)


def _other_process(scratch: Path) -> Iterator[Finding]:
    """Check locks and renames between two processes."""
    (scratch / "made").write_text("")
    other = subprocess.Popen(
        [sys.executable, "-I", "-S", "-c", _OTHER],
        cwd=scratch,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
    )
    until = time.monotonic() + _STARTS_S
    while "renamed" not in os.listdir(scratch) and time.monotonic() < until:
        time.sleep(_LOOK_S)
    seen_s = time.time()
    said, _ = other.communicate(timeout=_STARTS_S)
    lock, renamed_s = said.split()
    if lock == "held":
        yield Finding("lock", "ok", "when two processes want it, only one gets it")
    else:
        why = "two managers could run one pilot"
        yield Finding("lock", "wrong", "two processes got it", _ELSEWHERE, why)
    late_s = max(0.0, seen_s - float(renamed_s))
    says = f"a file that another process renames is seen after {late_s * 1000:.0f} ms"
    if late_s > SEEN_S:
        why = "requests, suspensions and leases are delayed by that"
        yield Finding("visibility", "wrong", says, _ELSEWHERE, why)
    else:
        do = "hpcext doctor --probe measures it from another node"
        yield Finding("visibility", "ok", says, do)
