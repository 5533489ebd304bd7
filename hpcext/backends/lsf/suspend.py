"""The LSF job of a suspendable training: its leader, and notes on it.

LSF knows one process of such a job, its leader, which is the script that is written here and runs
the manager. Scripts that LSF runs beside the job (``lsf_scripts/``) find the directory of the job
by :func:`register`.
"""

from __future__ import annotations

import os
import shlex
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, cast

from hpcext import documents, private, protocol
from hpcext.backends import batch_job
from hpcext.backends.lsf import requeue
from hpcext.backends.lsf.job import SUBMITTED
from hpcext.batch.lsf.inside import LsfJob
from hpcext.core.errors import InputError
from hpcext.jobspec import JobSpec
from hpcext.text import shown

SCHEMA = "hpcext.lsf-suspendable/1"
FILE = "run.json"
COMMAND, SCRIPT = "command.sh", "lsf_script"

CHECKPOINT = "hpcext"
"""A file in a checkpoint directory of LSF: echkpnt.hpcext names the training's directory in it."""

_STDIN = ("/dev/stdin", "/dev/fd/", "/proc/self/fd/")


class LsfSuspendable:
    """A job of LSF as a :class:`~hpcext.backends.suspendable_job.SuspendableJob`.

    Parameters
    ----------
    here : LsfJob
    command : sequence of bytes
        The command of its training; it may be empty if brestart has its checkpoint.
    """

    batch = "lsf"

    def __init__(self, here: LsfJob, command: Sequence[bytes]) -> None:
        self.key = key(here)
        self.gpus = len(here.devices)
        self.output: str | None = here.output
        self.restored = False
        self._here = here
        self._words = command

    def earlier(self, named: Callable[[str], Path | None]) -> Path | None:
        """Return the directory of an earlier run, found by its registration or its checkpoint."""
        directory, self.restored = find(self._here)
        if not self._words and not self.restored:
            raise InputError(
                "no command", valid="hpcext suspendable [--lead SECONDS] -- COMMAND ..."
            )
        return directory

    def command(self, directory: Path) -> Sequence[str]:
        """Return a script of ours, since the path of its command may differ from run to run."""
        return ("/bin/sh", str(directory / COMMAND))

    def write(
        self, directory: Path, first: JobSpec | None, *, manager_file: Path, hpcext: Sequence[str]
    ) -> Path:
        """Write the script that the leader of the job becomes, and register the job."""
        # The command of brestart is not that of the training, which another job has begun.
        if not self.restored and not self._here.restarts:
            write_command(directory, self._words, self._here)
        note(self._here, directory)
        SUBMITTED.write(directory, self._here.name, None)
        script = write_script(directory, hpcext)
        register(self._here, directory)
        protocol.forget_suspendable()
        return script


def key(job: LsfJob) -> str:
    """Return the name of a job in names of files."""
    return f"{job.id}.{job.element}"


def register(job: LsfJob, directory: Path) -> None:
    """Make the directory of a job known by the job's id, in a place that no setting changes.

    Parameters
    ----------
    job : LsfJob
    directory : pathlib.Path
    """
    path = link(job)
    private.make(path.parent)
    new = path.with_name(f".{path.name}.{os.getpid()}")
    new.unlink(missing_ok=True)
    new.symlink_to(directory)
    new.rename(path)


def link(job: LsfJob) -> Path:
    """Return the link by which scripts that LSF runs beside a job find its directory."""
    return protocol.user_directory("state") / "lsf" / key(job)


def find(job: LsfJob) -> tuple[Path | None, bool]:
    """Return the directory of an earlier run of a job, and whether it is that of a checkpoint.

    Raises
    ------
    InputError
        The job was started by brestart, and its checkpoint is not of echkpnt.hpcext.
    """
    path = link(job)
    if known(job, path):
        return path.resolve(), False
    if not job.restarts:
        return None, False
    mark = Path(job.restarts) / CHECKPOINT
    try:
        found = Path(mark.read_text(encoding="utf-8").rstrip("\n"))
        _read(found)
    except (OSError, ValueError):
        raise InputError(
            "not a checkpoint of echkpnt.hpcext", where=shown(str(mark)), do="bsub the job again"
        ) from None
    return found, True


def known(job: LsfJob, directory: Path) -> bool:
    """Return whether a directory belongs to this very job; LSF uses ids again.

    Parameters
    ----------
    job : LsfJob
    directory : pathlib.Path
        A directory that an earlier job of this id may have registered.
    """
    try:
        found = _read(directory)
    except (OSError, ValueError):
        return False
    return bool(found.get("job_id") == job.id and found.get("file") == job.file)


def note(job: LsfJob, directory: Path) -> None:
    """Note in the directory of a job that another run of it has begun."""
    runs = cast(int, _read(directory)["runs"]) + 1 if known(job, directory) else 1
    document = {"schema": SCHEMA, "job_id": job.id, "file": job.file, "runs": runs}
    documents.write_json(directory / FILE, document)


def runs(directory: Path) -> int:
    """Return how often the job of a directory has begun."""
    return cast(int, _read(directory)["runs"])


def words_of_shell(pid: int) -> list[bytes]:
    """Return the command line of a shell, to run its script once more.

    Parameters
    ----------
    pid : int

    Raises
    ------
    InputError
        The shell reads its script from a pipe or the like, where it cannot be read again.
    """
    proc = Path(f"/proc/{pid}")
    words = (proc / "cmdline").read_bytes().split(b"\0")[:-1]
    exe = os.readlink(proc / "exe")
    options = iter(words[1:])
    for word in options:
        option = os.fsdecode(word)
        if option[:1] not in "-+" or option in {"-", "--"}:
            text = os.fsdecode(next(options, b"")) if option in {"-", "--"} else option
            if text and not text.startswith(_STDIN):
                break
            raise _unreadable()
        if not option.startswith("--") and "c" in option:
            break
        if option in {"-o", "+o"}:
            next(options, None)
    else:
        raise _unreadable()
    name = os.fsdecode(words[0])
    program = shutil.which(name)
    same = program is not None and os.path.samefile(program, exe)
    return [os.fsencode(name if same else exe), *words[1:]]


def _unreadable() -> InputError:
    return InputError(
        "the shell of the job reads its script from a pipe, and cannot read it again",
        where="hpcext suspendable",
        valid="JOB_STARTER as hpcext-admin install lsf prints it",
    )


def write_command(directory: Path, words: Sequence[bytes], job: LsfJob) -> None:
    """Write a script that runs the command of a training, byte for byte.

    It has a copy of the file in which LSF keeps the job's script: the path of that file may differ
    in the next run, and the file may be gone when brestart continues the job.

    Parameters
    ----------
    directory : pathlib.Path
    words : sequence of bytes
        The command.
    job : LsfJob
    """
    text = b"#!/bin/sh\n"
    for number, word in enumerate(words):
        if job.file and os.path.basename(word).startswith(os.fsencode(job.file)):
            kept = os.fsencode(directory / SCRIPT)
            shutil.copyfile(word, kept)
            Path(directory / SCRIPT).chmod(0o700)
            instead = [*words[:number], kept, *words[number + 1 :]]
            text += b"[ -e " + _quoted(word) + b" ] || exec " + _line(instead) + b"\n"
    text += b"exec " + _line(words) + b"\n"
    documents.write_file(directory / COMMAND, text, mode=0o700)


def _line(words: Sequence[bytes]) -> bytes:
    return b" ".join(map(_quoted, words))


def _quoted(word: bytes) -> bytes:
    return b"'" + word.replace(b"'", b"'\\''") + b"'"


def write_script(directory: Path, hpcext: Sequence[str] = batch_job.HPCEXT) -> Path:
    """Write the script of the job's leader; return its path.

    Parameters
    ----------
    directory : pathlib.Path
        That of the pilot.
    hpcext : sequence of str
        The command ``hpcext`` and its first arguments.
    """
    log_path = directory / "jobs" / "1" / "log.txt"
    # LSF does not keep the output of a requeued job, so all of it is shown at the end.
    show = ":" if log_path.is_symlink() else f"cat {shlex.quote(str(log_path))}"
    lines = requeue.suspendable_lines(directory, ends=show)
    return batch_job.write_script(
        directory, begin=lines.begin, ends="HUP INT TERM", finish=lines.finish, hpcext=hpcext
    )


def _read(directory: Path) -> dict[str, Any]:
    found = documents.read_json(directory / FILE, SCHEMA)
    if type(found.get("runs")) is not int:
        raise ValueError(f"{FILE} does not say how often its job has started")
    return found
