"""A command in a container of Apptainer or Singularity: how it begins, and what is not part of it.

Such a container shares pids, network and user with its node, so that signals and the end of the
process tree are as ever. What it would not take from its supervisor by itself a script brings in,
which its shell runs before the command (:data:`_INSIDE`): variables, as images set some of their
own and others are evaluated on the way (``APPTAINERENV_``); signals that are ignored, as Apptainer
sets them to their default actions; and hpcext itself, which is bound to a directory in that of the
attempt.

By pyxis, a plugin of Slurm, the step of an attempt begins in the container itself, and its
supervisor with it, which needs no more of the image than Python (:meth:`Container.step`).

Apptainer's own processes are not the command's. Its first one passes every signal on and stops
itself at SIGTSTP (monitor_linux.go), and a signal would end what has the image mounted
(``squashfuse``), and so the command in the middle of its checkpoint.
"""

from __future__ import annotations

import errno
import os
import re
import shlex
import signal
import stat
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from hpcext import documents, private, protocol
from hpcext.launch import devices, tree
from hpcext.launch.command import NOT_EXECUTABLE, NOT_FOUND, CommandError
from hpcext.process import Process

AUTO = "auto"

PROGRAMS = ("apptainer", "singularity")
"""The commands that run containers, the one to be preferred first. Both have the same options."""

PYXIS = "pyxis"
"""The plugin of Slurm that begins a step in a container."""

IMAGE = "hpcext.image/1"
IMAGE_FILE = "image.json"
"""In the directory of a job: which file its image was, to see that it is another one."""

NOT_BOUND = re.compile(r"[,:\"\\\n]")
"""Characters with a meaning in ``--bind``."""

_URI = re.compile(r"[a-z]+://")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")

_OWN = frozenset(
    {
        "apptainer",
        "singularity",
        "starter",
        "starter-suid",
        "appinit",
        "sinit",
        "squashfuse",
        "squashfuse_ll",
        "fuse2fs",
        "fuse-overlayfs",
        "gocryptfs",
    }
)
"""Names of the processes that Apptainer and Singularity have beside the command."""

_INSIDE = """\
# Made by hpcext: what the command of this attempt has in a container.
{exports}
PATH={bin}:$PATH
PYTHONPATH={python}${{PYTHONPATH:+:$PYTHONPATH}}
export PATH PYTHONPATH
{traps}
exec "$@"
"""

_HPCEXT = """\
#!/bin/sh
# Made by hpcext: the part of it that trainings call in a container.
if [ "$1" != launch ]; then
    echo "hpcext: in a container there is only: hpcext launch [--ranks N] COMMAND ..." >&2
    exit 2
fi
shift
ranks=0
case $1 in
--ranks) ranks=$2; shift 2 ;;
--ranks=*) ranks=${{1#--ranks=}}; shift ;;
esac
[ "$1" != -- ] || shift
case $ranks in
*[!0-9]* | "") echo "hpcext: --ranks: $ranks (valid: a number)" >&2; exit 2 ;;
esac
if [ $# -eq 0 ]; then
    echo "hpcext: no command (valid: hpcext launch [--ranks N] COMMAND ...)" >&2
    exit 2
fi
exec python3 -I -S {ranks} "$ranks" "$@"
"""

_PACKAGE = Path(os.path.abspath(__file__)).parents[1]


class Container:
    """The container of one attempt on one node.

    Parameters
    ----------
    document : Mapping
        ``container`` of ``launch.json``.
    directory : pathlib.Path
        Of the attempt, in that of its job.
    cwd : str
        Where the command runs.
    attempt : int
    index : int
        The index of this node.
    """

    def __init__(
        self,
        document: Mapping[str, Any],
        directory: Path,
        cwd: str,
        *,
        attempt: int,
        index: int = 0,
    ) -> None:
        self._image = str(document["image"])
        self._binds = [str(each) for each in document.get("binds", ())]
        self._runtime = str(document.get("runtime") or AUTO)
        self._directory = directory
        # Nodes have GPUs and a supervisor of their own, and write at the same time.
        self._own = protocol.node_directory(directory, index)
        self._cwd = cwd
        self._attempt = attempt
        self._first = index == 0

    def begin(
        self,
        argv: Sequence[str],
        environ: Mapping[str, str],
        added: Mapping[str, str],
        ignored: Collection[signal.Signals],
        say: Callable[[str], object],
    ) -> list[str]:
        """Prepare the container; return the command that runs the other one in it.

        Parameters
        ----------
        argv : sequence of str
            The command of the attempt.
        environ : Mapping of str to str
            The environment that the new command will have.
        added : Mapping of str to str
            Variables that hold in the container, whatever its image says.
        ignored : collection of signals
            Signals that the command begins with ignored.
        say : callable
            Writes a line into the log.

        Raises
        ------
        CommandError
            The container cannot be had here.
        OSError
            What it needs cannot be written.
        """
        if self._in_step:
            return ["/bin/sh", str(self._write(added, ignored)), *argv]
        program = find(self._runtime, environ)
        if not program:
            raise CommandError(NOT_FOUND, _no_runtime(self._runtime))
        self._look_at_image(say)
        inside = self._write(added, ignored)
        return [
            program,
            "exec",
            *_gpus(),
            *(f"--bind={each}" for each in self._visible()),
            f"--pwd={self._cwd}",
            self._image,
            "/bin/sh",
            str(inside),
            *argv,
        ]

    def step(self, say: Callable[[str], object]) -> tuple[list[str], list[str]]:
        """Prepare a step in the container, which pyxis makes.

        Parameters
        ----------
        say : callable
            Writes a line into the log.

        Returns
        -------
        tuple of list of str
            The options of srun, and the beginning of the command of a supervisor.

        Raises
        ------
        OSError
            There is no such image, or what the step needs cannot be made.
        """
        try:
            self._look_at_image(say)
            visible = self._visible()
        except CommandError as error:
            raise OSError(errno.ENOENT, str(error)) from None
        package = self._python / _PACKAGE.name
        for path in (self._python, package):
            private.make(path)
        options = [
            f"--container-image={self._image.removeprefix('docker://')}",
            f"--container-mounts={','.join(map(_mount, visible))}",
            f"--container-workdir={self._cwd}",
            # Otherwise files of this user are root's there, or an entry point is in the way.
            "--no-container-remap-root",
            "--no-container-entrypoint",
        ]
        return options, ["python3", "-I", "-S", str(package / "launch" / "supervise.py")]

    @property
    def _in_step(self) -> bool:
        """Whether this process is in the container already: its own package is bound there."""
        return self._directory / "python" == _PACKAGE.parent

    def inside(self, processes: Sequence[Process]) -> list[Process]:
        """Return those processes that are in the container; none while it is being made.

        Parameters
        ----------
        processes : sequence of Process
            All processes of the attempt.
        """
        return [each for each in processes if tree.title(each) not in _OWN]

    def _visible(self) -> list[str]:
        """Return what of the node is to be visible inside, each after what it lies in."""
        home = str(self._directory.parent)
        for path in (home, self._cwd):
            if found := NOT_BOUND.search(path):
                raise CommandError(
                    NOT_EXECUTABLE,
                    f"{path!r} cannot be seen in a container, because its name has a {found[0]!r}",
                )
        own = [home, *([] if self._cwd == "/" else [self._cwd])]
        return [*own, f"{_PACKAGE}:{self._python / _PACKAGE.name}:ro", *self._binds]

    @property
    def _python(self) -> Path:
        return self._own / "python"

    def _write(self, added: Mapping[str, str], ignored: Collection[signal.Signals]) -> Path:
        """Write what the shell in the container runs first; return where it is."""
        programs = self._own / "bin"
        python = _PACKAGE.parent if self._in_step else self._python
        for path in (programs, python, python / _PACKAGE.name):
            if not path.is_dir():
                private.make(path)
        ranks = python / _PACKAGE.name / "launch" / "ranks.py"
        launcher = _HPCEXT.format(ranks=shlex.quote(str(ranks)))
        documents.write_file(programs / "hpcext", launcher.encode(), mode=0o700)
        names = " ".join(sorted(each.name.removeprefix("SIG") for each in ignored))
        text = _INSIDE.format(
            exports="\n".join(_exports(added)),
            # A command that asks to be requeued finds its scontrol in that of the attempt.
            bin=":".join(shlex.quote(str(each / "bin")) for each in (self._own, self._directory)),
            python=shlex.quote(str(python)),
            traps=f"trap '' {names}" if names else "",
        )
        path = self._own / "inside.sh"
        documents.write_file(path, os.fsencode(text))
        return path

    def _look_at_image(self, say: Callable[[str], object]) -> None:
        """Refuse an image that is not there; say if it is not the one that it was."""
        if _URI.match(self._image):
            return
        before = self._before()
        try:
            facts = os.stat(self._image)
        except OSError as error:
            ran = f"; attempt {before['attempt']} ran in it: put it back" if before else ""
            what = f"no container image {self._image!r}: {error.strerror}{ran}"
            raise CommandError(NOT_FOUND, what) from None
        now = {"image": self._image, **_identity(facts)}
        if before and any(before.get(key) != value for key, value in now.items()):
            other = "" if before.get("image") == self._image else f" in place of {before['image']}"
            say(
                f"the container image {self._image}{other} is not the one in which attempt "
                f"{before['attempt']} ran: what is resumed now may need the other one"
            )
        if self._first:
            document = {"schema": IMAGE, "attempt": self._attempt, **now}
            documents.write_json(self._directory.parent / IMAGE_FILE, document, durable=False)

    def _before(self) -> dict[str, Any]:
        """Return what the image was in the last attempt; empty if it is unknown."""
        try:
            found = documents.read_json(self._directory.parent / IMAGE_FILE, IMAGE)
            return {**found, "attempt": int(found["attempt"]), "image": str(found["image"])}
        except documents.UNFIT:
            return {}


def _identity(facts: os.stat_result) -> dict[str, int]:
    """Return what tells an image from another one; of a directory, the files in it do not."""
    if stat.S_ISDIR(facts.st_mode):
        return {"inode": facts.st_ino}
    return {"size": facts.st_size, "mtime_ns": facts.st_mtime_ns}


def find(runtime: str, environ: Mapping[str, str]) -> str:
    """Return the program that runs containers; empty if there is none.

    Parameters
    ----------
    runtime : str
        ``auto``, or one of :data:`PROGRAMS`.
    environ : Mapping of str to str
        Its PATH is searched.
    """
    import shutil  # noqa: PLC0415  (slow to import, and few commands are in containers)

    names = PROGRAMS if runtime == AUTO else {runtime}.intersection(PROGRAMS)
    found = (shutil.which(name, path=environ.get("PATH", os.defpath)) for name in names)
    return next(filter(None, found), "")


def _exports(added: Mapping[str, str]) -> list[str]:
    """Return lines for a shell; what it has no name for stays as the container has it."""
    return [
        f"export {name}={shlex.quote(value)}"
        for name, value in added.items()
        if _NAME.fullmatch(name)
    ]


def _mount(bind: str) -> str:
    """Return a bind as pyxis takes it, which wants both paths."""
    return bind if ":" in bind else f"{bind}:{bind}"


def _gpus() -> list[str]:
    """Return the option that makes the GPUs of this machine visible."""
    if not devices.present():
        return []
    return ["--nv" if devices.name() == devices.CUDA else "--rocm"]


def _no_runtime(runtime: str) -> str:
    if runtime == PYXIS:
        return "cannot run a container: pyxis begins steps of pilots on Slurm, and nothing else"
    names = " nor ".join(PROGRAMS) if runtime == AUTO else runtime
    is_there = "neither " if runtime == AUTO else "no "
    return f"cannot run a container: {is_there}{names} is in PATH here"
