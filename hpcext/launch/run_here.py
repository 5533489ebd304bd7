"""Runs a command in the process that was forked for it, as if it had been executed.

:mod:`~hpcext.launch.preload` tells what for. Standard library only, and what the command imports.
"""

from __future__ import annotations

import atexit
import builtins
import contextlib
import faulthandler
import importlib.machinery
import io
import os
import runpy
import signal
import sys
import threading
import types
from collections.abc import Callable, Mapping, Sequence
from typing import NoReturn

from hpcext.allocation import without_task
from hpcext.launch import devices, node_ranks, ranks, stderr, words

_PER_ATTEMPT = frozenset({
    "TORCH_ELASTIC_SHUTDOWN_TIMEOUT", "SPT_NOENV", "TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR",
    "TORCHINDUCTOR_FX_GRAPH_CACHE", "WANDB_RUN_ID", "WANDB_RESUME", "MLFLOW_RUN_ID",
    "MLFLOW_MAX_LOG_PARAMS",
})  # fmt: skip
"""Variables that a supervisor sets for an attempt; an import that asks for them asks again."""

_ARGUMENTS, _ENVIRONMENT = (47, 48), (49, 50)
"""Fields of ``/proc/PID/stat``, from 0: where these are in memory, from and to; proc(5)."""


class Runner:
    """Runs the command of a supervisor in the process that was forked for it.

    Parameters
    ----------
    environ : Mapping of str to str
        The environment in which the modules were imported.
    changes : Mapping of str to (str or None)
        What imports have changed in it: new values, None for what they removed.
    python : sequence of str
        The interpreter and its options, as they were given.
    files : set of int
        Descriptors that imports have left open.
    of_ranks : bool
        Whether the command is a launcher, each of whose ranks goes on here.
    """

    def __init__(
        self,
        environ: Mapping[str, str],
        changes: Mapping[str, str | None],
        python: Sequence[str],
        files: set[int],
        *,
        of_ranks: bool = False,
    ) -> None:
        self._changing = _PER_ATTEMPT | node_ranks.OF_RANKS if of_ranks else _PER_ATTEMPT
        self._environ = self._fixed(environ)
        self._changes = changes
        self._python = list(python)
        self._files = files
        paths = (getattr(module, "__file__", None) for module in list(sys.modules.values()))
        self._sources = {path: _facts(path) for path in paths if isinstance(path, str)}

    def __call__(self, argv: Sequence[str], environ: Mapping[str, str]) -> None:
        """Run a command and end with it; return at once if it has to be executed.

        Parameters
        ----------
        argv : sequence of str
        environ : Mapping of str to str
            Its whole environment.
        """
        try:
            main = self._launcher(argv, environ) or self._main(argv, environ)
            if main is None or not _place(argv, environ):
                return
        except (OSError, ValueError, IndexError):
            # Whatever the matter is, it can be executed.
            return

        def begin() -> None:
            _close_others(self._files)
            _as_python_begins(argv)
            main()

        # From here on there is no way back. The supervisor learns by the end of a pipe, which is
        # among the files that are closed, that it runs.
        _end(lambda: _status_of(begin))

    def _main(self, argv: Sequence[str], environ: Mapping[str, str]) -> Callable[[], object] | None:
        """Return what runs a command here; None if it has to be executed."""
        own = len(self._python)
        if list(argv[:own]) != self._python or self._fixed(environ) != self._environ:
            return None
        main = _main_of(argv[own:])
        if main is None or self._changed():
            return None

        def run() -> None:
            set_environ(environ, self._changes)
            main()

        return run

    def _launcher(
        self, argv: Sequence[str], environ: Mapping[str, str]
    ) -> Callable[[], object] | None:
        """Return what launches the ranks of a command, which then go on here; None if it has none.

        So it does only if they will.
        """
        found = words.launched(argv)
        if found is None or self._main(found.argv, without_task(environ)) is None:
            return None

        def run() -> None:
            set_environ(environ)
            code = ranks.launch(found.argv, found.ranks, environ, replace=found.replace)
            stderr.flush()
            os._exit(code)

        return run

    def _fixed(self, environ: Mapping[str, str]) -> dict[str, str]:
        """Return the variables that must be those with which the modules were imported."""
        return {
            name: value
            for name, value in environ.items()
            if not (
                name.startswith("HPCEXT_") or name in devices.OF_ATTEMPT or name in self._changing
            )
        }

    def _changed(self) -> bool:
        """Return whether the file of an imported module is another one by now."""
        return any(_facts(path) != facts for path, facts in self._sources.items())


# What a command is to find.


def _main_of(argv: Sequence[str]) -> Callable[[], object] | None:
    """Return what runs a script or a module with its arguments; None if that is Python's to do."""
    if len(argv) > 1 and argv[0] == "-m":
        return lambda: _run_module(argv[1:])
    if not argv or argv[0].startswith("-"):
        return None
    try:
        with io.open_code(os.path.abspath(argv[0])) as file:
            source = file.read()
    except OSError:
        # Also of a directory, which may have a __main__.
        return None
    # An archive, which may have one as well, or what is compiled.
    return None if b"\0" in source else lambda: _run_script(source, argv)


def _run_script(source: bytes, argv: Sequence[str]) -> None:
    sys.argv = list(argv)
    _first_on_path(os.path.dirname(os.path.realpath(argv[0])))
    main = _new_main()
    main.__file__ = argv[0]
    main.__dict__["__cached__"] = None
    main.__loader__ = importlib.machinery.SourceFileLoader("__main__", argv[0])
    # Without our own "from __future__".
    exec(compile(source, argv[0], "exec", dont_inherit=True), main.__dict__)


def _run_module(argv: Sequence[str]) -> None:
    sys.argv = ["-m", *argv[1:]]
    _first_on_path(os.getcwd())
    _new_main()
    # What the interpreter itself calls for -m.
    runpy._run_module_as_main(argv[0])  # type: ignore[attr-defined]


def _new_main() -> types.ModuleType:
    main = types.ModuleType("__main__")
    main.__dict__["__builtins__"] = builtins
    if sys.version_info < (3, 14):
        main.__annotations__ = {}
    sys.modules["__main__"] = main
    return main


def _first_on_path(directory: str) -> None:
    if not getattr(sys.flags, "safe_path", False):
        sys.path.insert(0, directory)


def set_environ(
    environ: Mapping[str, str], changes: Mapping[str, str | None] | None = None
) -> None:
    """Replace the environment of this process.

    Parameters
    ----------
    environ : Mapping of str to str
    changes : Mapping of str to (str or None), optional
        What imports have changed in it, as of :class:`Runner`.
    """
    os.environ.clear()
    os.environ.update(environ)
    for name, value in (changes or {}).items():
        if value is None:
            os.environ.pop(name, None)
        elif name not in _PER_ATTEMPT or name not in environ:
            os.environ[name] = value


def _as_python_begins(argv: Sequence[str]) -> None:
    """Set what an interpreter sets when it begins."""
    sys.orig_argv = list(argv)
    for signum in (signal.SIGPIPE, signal.SIGXFSZ):
        signal.signal(signum, signal.SIG_IGN)
    if signal.getsignal(signal.SIGINT) is signal.SIG_DFL:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    if faulthandler.is_enabled():
        # By an option or a variable; its handlers are gone.
        faulthandler.disable()
        faulthandler.enable()
    # Else all that were forked from here would draw the same. Python's own begins anew by itself,
    # and those of PyTorch for GPUs begin with a fixed seed.
    if "numpy.random.mtrand" in sys.modules:
        sys.modules["numpy.random"].seed()
    if "torch.random" in sys.modules:
        sys.modules["torch"].default_generator.seed()


def _facts(path: str) -> tuple[int, int] | None:
    """Return what shows that a file was changed, its time and its size; None if it is gone."""
    try:
        facts = os.stat(path)
    except (OSError, ValueError):
        return None
    return facts.st_mtime_ns, facts.st_size


# Memory and descriptors.


def _place(argv: Sequence[str], environ: Mapping[str, str]) -> bool:
    """Write the words and variables where ``/proc`` shows them; return whether there is room.

    Whoever looks for the processes of an attempt finds them by their variables.
    """
    texts = [f"{name}={value}" for name, value in environ.items()]
    regions = [(_region(_ARGUMENTS), argv), (_region(_ENVIRONMENT), texts)]
    blocks = [
        (start, end - start, b"".join(os.fsencode(text) + b"\0" for text in parts))
        for (start, end), parts in regions
    ]
    if any(len(block) > room for _, room, block in blocks):
        return False
    # What is in use of the old block is copied elsewhere first, by setenv(3).
    set_environ(dict(os.environ))
    with open("/proc/self/mem", "r+b", buffering=0) as memory:
        for start, room, block in blocks:
            memory.seek(start)
            memory.write(block.ljust(room, b"\0"))
    return True


def _region(fields: tuple[int, int]) -> tuple[int, int]:
    with open("/proc/self/stat", encoding="utf-8", errors="replace") as file:
        # The name may have blanks.
        found = ["", "", *file.read().rpartition(")")[2].split()]
    return int(found[fields[0]]), int(found[fields[1]])


def open_files() -> dict[int, str]:
    """Return what this process has open, by its descriptor."""
    found = {}
    for name in os.listdir("/proc/self/fd"):
        # That of the directory itself is closed by now.
        with contextlib.suppress(OSError):
            found[int(name)] = os.readlink(f"/proc/self/fd/{name}")
    return found


def _close_others(kept: set[int]) -> None:
    for fd in open_files().keys() - kept - {0, 1, 2}:
        os.close(fd)


# The end, as that of an interpreter.


def _status_of(main: Callable[[], object]) -> int:
    """Run it, and return its exit status after saying what Python says of an exception."""
    try:
        main()
    except SystemExit as exit_:
        if exit_.code is None or isinstance(exit_.code, int):
            return (exit_.code or 0) & 0xFF
        _print(exit_.code)
        return 1
    except BaseException as error:
        try:
            sys.excepthook(type(error), _bare(error), error.__traceback__)
        except BaseException as broken:
            # A hook of the program's own that fails itself. It is no part of what it was to show.
            broken.__context__ = None
            _print("Error in sys.excepthook:")
            sys.__excepthook__(type(broken), _bare(broken), broken.__traceback__)
            _print("\nOriginal exception was:")
            sys.__excepthook__(type(error), error, error.__traceback__)
        return -signal.SIGINT if isinstance(error, KeyboardInterrupt) else 1
    return 0


def _bare(error: BaseException) -> BaseException:
    """Take the frames of this module off an exception; they are the outermost ones."""
    trace = error.__traceback__
    while trace is not None and trace.tb_frame.f_code.co_filename == __file__:
        trace = trace.tb_next
    return error.with_traceback(trace)


def _print(what: object) -> None:
    with contextlib.suppress(Exception):
        sys.stderr.write(f"{what}\n")


def _end(run: Callable[[], int]) -> NoReturn:
    """Run what gives an exit status, and end this process as Python ends: threads, output."""
    status = 1
    try:
        status = run()
        threading._shutdown()  # type: ignore[attr-defined]
        atexit._run_exitfuncs()
    finally:
        # Nothing that is above us may go on here: it is a supervisor.
        try:
            for stream in (sys.stdout, sys.stderr):
                if stream is not None:
                    stream.flush()
        except BaseException:
            status = status or 120
        finally:
            if status == -signal.SIGINT:
                signal.signal(signal.SIGINT, signal.SIG_DFL)
                os.kill(os.getpid(), signal.SIGINT)
            os._exit(status & 0xFF)
