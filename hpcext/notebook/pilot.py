"""A pilot as an object: its methods are the commands of hpcext, and it shows itself."""

from __future__ import annotations

import math
import numbers
import os
import shlex
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hpcext.cli import asking, commands, run
from hpcext.cli.main import parse
from hpcext.cli.stated import StatedJobs, jobs_of_text
from hpcext.config import load_settings
from hpcext.core.errors import HpcextError, InputError
from hpcext.core.world import World
from hpcext.jobtext import job_text
from hpcext.manager import directory as pilots
from hpcext.manager import waiting
from hpcext.manager.handles import find_job
from hpcext.manager.views.reading import Follower
from hpcext.notebook.answers import Kept, Text, ask, one_line
from hpcext.notebook.live import View
from hpcext.text import shown

NOTEBOOK = "notebook"
"""Where jobs of cells are stated, for messages; and the default name of their pilot."""

LOG_LINES = 50


class Pilot:
    """A pilot of this user. It runs in the background, also after the notebook has ended.

    As the last value of a cell it shows itself there, and keeps that cell up to date.

    Parameters
    ----------
    jobs : path or sequence of Mapping, optional
        A job file, or jobs with the keys of one. Without any, the pilot waits for what is
        submitted until it is drained.
    gpus, mps : int, optional
    policy, name, notify : str, optional
    dir : path, optional
    stay : bool
        These are the options of ``hpcext run``.

    Raises
    ------
    HpcextError
        As of ``hpcext run``.

    Attributes
    ----------
    directory : pathlib.Path
    """

    directory: Path

    def __init__(
        self,
        jobs: str | os.PathLike[str] | Sequence[Mapping[str, Any]] | None = None,
        *,
        gpus: int | str | None = None,
        mps: int | None = None,
        policy: str | None = None,
        name: str | None = None,
        notify: str | None = None,
        dir: str | os.PathLike[str] | None = None,
        stay: bool = False,
    ) -> None:
        given = {
            "gpus": gpus, "mps": mps, "policy": policy, "name": name, "notify": notify, "dir": dir,
        }  # fmt: skip
        words = [f"--{key}={value}" for key, value in given.items() if value is not None]
        words += ["--stay"] if stay or jobs is None else []
        with one_line():
            if jobs is None:
                self.directory = _begun(words if name else [*words, f"--name={NOTEBOOK}"])
            elif isinstance(jobs, (str, os.PathLike)):
                self.directory = _begun([*words, os.fspath(jobs)])
            else:
                self.directory = _begun_with(_text(jobs), words)
        self._cell: object = None

    @classmethod
    def attach(cls, pilot: str | os.PathLike[str]) -> Pilot:
        """Return a pilot that was begun before, by its directory, id or name."""
        with one_line():
            return cls._at(pilots.find(os.fspath(pilot), load_settings().state_dir))

    @classmethod
    def of_cell(cls, line: str, cell: str) -> Pilot:
        """Begin a pilot with a cell that is a job file; on its first line are options."""
        with one_line():
            try:
                words = shlex.split(line)
            except ValueError as error:
                raise InputError(f"{error}".lower(), where="%%hpcext_jobs") from None
            return cls._at(_begun_with(cell, words))

    @classmethod
    def _at(cls, directory: Path) -> Pilot:
        pilot = cls.__new__(cls)
        pilot.directory, pilot._cell = directory, None
        return pilot

    # What it is asked.

    def submit(self, command: str | Sequence[str], *, name: str | None = None, **keys: Any) -> Text:
        """Submit one more job.

        Parameters
        ----------
        command : str or sequence of str
        name : str, optional
            By default that of the script or the program, with a number if it is taken.
        **keys : object
            Other keys of a job file, such as ``gpus=2`` or ``after=["a"]``.
        """
        with one_line():
            said = _command(command)
            text = _text([{"name": name or commands.name_of(said), "command": said, **keys}])
            words = {"text": text, "where": NOTEBOOK, "base": os.getcwd(), "number": name is None}
            out = Kept()
            asking.hand_over(self.directory, words, out)
            return out.text()

    def suspend(self, job: str, *, wait: bool = False) -> Text:
        """Suspend a job until it is resumed; with `wait`, return when it is."""
        return self._ask("suspend", job, *_wait(wait))

    def resume(self, job: str, *, wait: bool = False) -> Text:
        """Let a suspended job run again; with `wait`, return when it does."""
        return self._ask("resume", job, *_wait(wait))

    def resize(self, job: str, gpus: int | str, *, wait: bool = False) -> Text:
        """Give a job another number of GPUs, or with ``"auto"`` any; with `wait`, until it has."""
        return self._ask("resize", job, str(gpus), *_wait(wait))

    def cancel(self, job: str, *, wait: bool = False) -> Text:
        """Cancel a job; with `wait`, return when it has ended."""
        return self._ask("cancel", job, *_wait(wait))

    def drain(self) -> Text:
        """Start nothing more; what runs may finish."""
        return self._ask("drain")

    def status(self, job: str | None = None) -> Text:
        """Return the table of all jobs, or of one."""
        return self._ask("status", *_named(job))

    def why(self, job: str | None = None) -> Text:
        """Return why jobs wait or run as they do."""
        return self._ask("why", *_named(job))

    def logs(self, job: str | None = None, lines: int | None = LOG_LINES) -> Text:
        """Return the last lines of what a job wrote; all of them if `lines` is None."""
        return self._ask("logs", *_named(job), *([] if lines is None else [f"--lines={lines}"]))

    def document(self) -> dict[str, Any]:
        """Return the state of all jobs for programs, as ``hpcext status --json`` prints it."""
        with one_line():
            return ask("status", str(self.directory), "--json").said

    def wait(self, *jobs: str, timeout_s: float = math.inf) -> Text:
        """Wait until these jobs, or all, have ended; interrupting that does nothing to them.

        Raises
        ------
        HpcextError
            One did not complete, or not in time.
        """
        with one_line():
            world = Follower(self.directory).engine().world
            ids = [find_job(world, str(job)).id for job in jobs]

            def look(world: World) -> waiting.RequestOutcome | None:
                return waiting.of_submit(ids or list(world.jobs))(world)

            ended = waiting.of_drain
            found = waiting.wait(self.directory, look, timeout_s=timeout_s, ended=ended)
            if found.status:
                left = found.status == waiting.LEFT
                do = pilots.how_to_go_on(self.directory) if left else ""
                raise HpcextError(found.text, do=do)
            return Text(found.text)

    def _ask(self, verb: str, *words: str) -> Text:
        with one_line():
            return ask(verb, str(self.directory), *map(str, words)).text()

    # How it shows itself.

    def __repr__(self) -> str:
        return View(self.directory).look().text

    def _repr_html_(self) -> str:
        return View(self.directory).look().html

    def _ipython_display_(self) -> None:
        """Show it in a cell that is kept up to date, until it is shown in another one."""
        from IPython.core.getipython import get_ipython  # noqa: PLC0415  (it is what calls us)
        from IPython.display import display  # noqa: PLC0415

        view = View(self.directory)
        seen = view.look()
        handle = self._cell = display(seen.bundle(), raw=True, display_id=True)
        # A terminal cannot change what it has printed.
        if hasattr(get_ipython(), "kernel"):
            args = (handle, seen, lambda: self._cell is handle)
            threading.Thread(
                target=view.follow, args=args, name="hpcext-notebook", daemon=True
            ).start()


def _begun(words: Sequence[str]) -> Path:
    """Begin a pilot in the background, as a command line says; return its directory."""
    return Path(ask("run", "--detach", "--json", *words).said["directory"])


def _begun_with(text: str, words: Sequence[str]) -> Path:
    """Begin a pilot with the text of a job file, in the background; return its directory."""
    args = parse(["run", "--detach", *words])
    if args.jobs is not None or args.resume is not None or commands.given(args):
        raise InputError("the jobs are stated twice", valid="options of hpcext run, and no jobs")
    for name in ("dry_run", "moved", "leave", "retry"):
        if getattr(args, name):
            raise InputError("cannot be given for a cell", where=f"--{name.replace('_', '-')}")
    settings, out = run.settings_of(args), Kept()
    specs = jobs_of_text(text, NOTEBOOK, settings, out)
    directory = run.create(StatedJobs(specs, NOTEBOOK, "", NOTEBOOK), args, settings)
    run.begin(directory, args, out)
    return directory


def _text(jobs: Sequence[Mapping[str, Any]]) -> str:
    """Return jobs as a job file, which is where they are checked."""
    listed = isinstance(jobs, Sequence) and all(isinstance(job, Mapping) for job in jobs)
    if not listed:
        valid = 'a job file, or a list as [{"name": "a", "command": "python train.py"}]'
        raise InputError("these are no jobs", where=NOTEBOOK, valid=valid)
    return job_text(
        *(
            {key: _plain(value, key) for key, value in job.items() if value is not None}
            for job in jobs
        )
    )


def _command(command: str | Sequence[str]) -> str | list[str]:
    """Return a command as a job file may have it; words may be numbers and paths, too."""
    if isinstance(command, str):
        return command
    if not isinstance(command, (list, tuple)):
        valid = 'a text, or a list of words as ["python", "train.py"]'
        raise InputError(shown(command), where=f"{NOTEBOOK}: command", valid=valid)
    return [str(word) for word in command]


def _plain(value: Any, key: str) -> Any:
    """Return a value as a job file may have it."""
    if isinstance(value, Mapping):
        return {str(name): _plain(each, key) for name, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(each, key) for each in value]
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if isinstance(value, (str, bool)):
        return value
    if isinstance(value, numbers.Real) and math.isfinite(value):
        # NumPy's, too.
        return int(value) if isinstance(value, numbers.Integral) else float(value)
    raise InputError(
        shown(value),
        where=f"{NOTEBOOK}: {key}",
        valid="text, numbers, True and False, and lists and dictionaries of these",
    )


def _named(job: str | None) -> list[str]:
    return [] if job is None else [job]


def _wait(wait: bool) -> list[str]:
    return ["--wait"] if wait else []
