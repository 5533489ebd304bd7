"""Modules of ours, run on virtual system calls: what they import is what decides.

In a process of the room every ``import os`` of a module of ours gives the virtual `os`, and every
built-in ``open`` is the virtual one. So the code under test has no second version, and no seam that
a new module could go around: a module that nobody has made virtual fails at its first call.
"""

from __future__ import annotations

import builtins
import ctypes
import errno
import importlib
import importlib.abc
import importlib.machinery
import os
import sys
import sysconfig
import types
from collections.abc import Sequence
from typing import Any

from virtual import calls

OURS = "hpcext"
RERUN = ("genericpath", "posixpath", "os", "pathlib", "shutil", "glob", "tempfile", "subprocess")
"""Modules of the standard library that are run once more, on virtual system calls."""
MOST_PATHS = 20_000

_modules: dict[str, Any] = {}
_import = builtins.__import__
_planted: list[Any] = []


def begin() -> None:
    """Have all modules of ours that are imported from here on be virtual."""
    if _modules:
        return
    loaded = [name for name in sys.modules if name.partition(".")[0] == OURS]
    assert not loaded, f"imported before the room was: {loaded[:3]}"
    _modules.update(
        posix=calls.as_posix(),
        time=calls.as_time(),
        signal=calls.as_signal(),
        resource=calls.as_resource(),
        sys=_Sys("sys"),
        io=_io(),
        ctypes=_ctypes(),
        # The objects of all processes of the room are in one.
        gc=types.SimpleNamespace(get_objects=list),
        threading=_threading(),
        filelock=_filelock(),
        secrets=_secrets(),
        uuid=_uuid(),
        random=types.SimpleNamespace(
            Random=_Chance, random=_any_number, uniform=lambda a, b: a + (b - a) * _any_number()
        ),
        importlib=_importlib(),
        pynvml=_pynvml(),
        atexit=types.SimpleNamespace(register=_at_exit),
        _posixsubprocess=types.SimpleNamespace(fork_exec=calls.fork_exec),
        fcntl=types.SimpleNamespace(LOCK_EX=2, flock=calls.flock),
        socket=_socket(),
        multiprocessing=_refused("multiprocessing"),
    )
    for name in RERUN:
        _modules[name] = _rerun(name)
    # They were run before there was a virtual `os`.
    _modules["posixpath"].os = _modules["genericpath"].os = _modules["os"]
    _remember_parts(_modules["pathlib"])
    _modules["os"].environ = Environ()
    _modules["os"].getenv = lambda key, default=None: _modules["os"].environ.get(key, default)
    _modules["os"].fsencode, _modules["os"].fsdecode = os.fsencode, os.fsdecode
    # What forks here begins another program at once, and has nothing to tidy.
    _modules["os"].register_at_fork = lambda **_: None
    from virtual import loop

    _modules["asyncio"] = loop.as_asyncio()
    sys.meta_path.insert(0, Finder())


def plant(bug: Any) -> None:
    """Plant a bug: a module is run as if its text were another one."""
    _planted.append(bug)


def module(name: str) -> Any:
    """Return a virtual module."""
    return _modules[name]


class Finder(importlib.abc.MetaPathFinder):
    """Finds our own modules, which get virtual built-ins."""

    def find_spec(self, name: str, path: Sequence[str] | None, target: Any = None) -> Any:
        if name.partition(".")[0] != OURS:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        if spec is not None and isinstance(spec.loader, importlib.machinery.SourceFileLoader):
            spec.loader = Loader(spec.loader.name, spec.loader.path)
        return spec


class Loader(importlib.machinery.SourceFileLoader):
    """Runs a module with virtual built-ins."""

    def exec_module(self, module: types.ModuleType) -> None:
        module.__dict__["__builtins__"] = _builtins()
        bugs = [bug for bug in _planted if bug.module == module.__name__]
        if not bugs:
            super().exec_module(module)
            return
        source = self.get_source(module.__name__) or ""
        for bug in bugs:
            source = source.replace(bug.old, bug.new)
        exec(compile(source, self.path, "exec"), module.__dict__)


def _builtins() -> dict[str, Any]:
    return {**vars(builtins), "__import__": _virtual_import, "open": calls.open_file}


def _virtual_import(
    name: str, globals_: Any = None, locals_: Any = None, wanted: Any = (), level: int = 0
) -> Any:
    if level == 0:
        if name == "os.path":
            return _modules["posixpath"] if wanted else _modules["os"]
        if name in _modules:
            return _modules[name]
    return _import(name, globals_, locals_, wanted, level)


def _rerun(name: str) -> types.ModuleType:
    """Run a module of the standard library once more."""
    path = f"{sysconfig.get_paths()['stdlib']}/{name}.py"
    again = types.ModuleType(name)
    again.__dict__["__builtins__"] = _builtins()
    again.__file__ = path
    with open(path, "rb") as file:
        code = compile(file.read(), path, "exec")
    exec(code, again.__dict__)
    return again


def _remember_parts(pathlib: Any) -> None:
    """Have paths be taken apart once: that is a tenth of a room's time (until Python 3.12)."""
    pure = pathlib.PurePath
    pure.__fspath__ = pure.__str__
    if not hasattr(pure, "_parse_args"):
        return
    slow = pure._parse_args.__func__
    known: dict[str, tuple[str, str, list[str]]] = {}

    def parse_args(cls: Any, args: Any) -> tuple[str, str, list[str]]:
        if len(args) == 1 and type(args[0]) is str:
            if (parts := known.get(args[0])) is None:
                if len(known) > MOST_PATHS:
                    known.clear()
                parts = known[args[0]] = slow(cls, args)
            return parts[0], parts[1], parts[2].copy()
        return slow(cls, args)

    pure._parse_args = classmethod(parse_args)


class Environ:
    """The environment of the present process."""

    def __getattr__(self, name: str) -> Any:
        return getattr(calls.mine().environ, name)

    def __getitem__(self, key: str) -> str:
        return calls.mine().environ[key]

    def __setitem__(self, key: str, value: str) -> None:
        calls.mine().environ[key] = value

    def __delitem__(self, key: str) -> None:
        del calls.mine().environ[key]

    def __contains__(self, key: object) -> bool:
        return key in calls.mine().environ

    def __iter__(self) -> Any:
        return iter(calls.mine().environ)

    def __len__(self) -> int:
        return len(calls.mine().environ)


class _Sys(types.ModuleType):
    """The module `sys`, of which a few things are the present process's."""

    def __getattr__(self, name: str) -> Any:
        if name == "argv":
            words = calls.mine().argv
            first = next((at for at in range(1, len(words)) if words[at][:1] != "-"), 0)
            return list(words[first:])
        if name in {"stderr", "stdout"}:
            return Said(2 if name == "stderr" else 1)
        if name == "modules":
            return {}
        return getattr(sys, name)


class Said:
    """A standard stream of the present process."""

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def write(self, text: str) -> int:
        calls.write(self._fd, text.encode())
        return len(text)

    def flush(self) -> None:
        """Do nothing: nothing is kept back."""

    def isatty(self) -> bool:
        return False

    def fileno(self) -> int:
        return self._fd


def _refused(name: str) -> types.ModuleType:
    class Refused(types.ModuleType):
        def __getattr__(self, what: str) -> Any:
            if what.startswith("__"):
                raise AttributeError(what)
            raise NotImplementedError(f"{name}.{what} is not virtual")

    return Refused(name)


def _socket() -> types.ModuleType:
    """Return sockets with which a free port can be found, and nothing else be done."""

    class Probe:
        def __enter__(self) -> Probe:
            return self

        def __exit__(self, *_: object) -> None:
            pass

        def bind(self, address: tuple[str, int]) -> None:
            self._host = address[0]

        def getsockname(self) -> tuple[str, int]:
            return self._host, calls.kernel().chance.randint(32_768, 60_999)

    found: Any = _refused("socket")
    found.socket = Probe
    return found  # type: ignore[no-any-return]


def _ctypes() -> Any:
    """Return what calls the C library; there is no other library, such as a driver's."""
    libc = types.SimpleNamespace(prctl=calls.prctl, tgkill=calls.tgkill)

    def library(name: str | None, **_: Any) -> Any:
        if name is not None:
            raise OSError(errno.ENOENT, "no such library", name)
        return libc

    return types.SimpleNamespace(**{**vars(ctypes), "CDLL": library, "get_errno": lambda: 0})


def _importlib() -> types.ModuleType:
    """Return what imports by name."""
    again = types.ModuleType("importlib")
    again.__dict__.update(vars(importlib))
    again.import_module = lambda name, package=None: (  # type: ignore[attr-defined]
        _modules.get(name) or importlib.import_module(name, package)
    )
    return again


def _pynvml() -> Any:
    """Return the library of a machine without a driver, whatever the real one has."""

    class NVMLError(Exception):
        pass

    def initialise() -> None:
        raise NVMLError

    return types.SimpleNamespace(NVMLError=NVMLError, nvmlInit=initialise)


def _io() -> types.ModuleType:
    import io

    again = types.ModuleType("io")
    again.__dict__.update(vars(io))
    again.open = again.open_code = calls.open_file  # type: ignore[attr-defined]
    again.FileIO = calls.FileIO  # type: ignore[attr-defined]
    return again


def _secrets() -> Any:
    return types.SimpleNamespace(
        token_hex=lambda size=16: calls.urandom(size).hex(), token_bytes=calls.urandom
    )


def _threading() -> types.ModuleType:
    """Return threads that have their turn when they are joined: as late as a real one may."""
    import threading

    class Thread:
        def __init__(
            self, target: Any = None, args: Any = (), kwargs: Any = None, **_: Any
        ) -> None:
            self._rest: Any = lambda: target(*args, **(kwargs or {}))

        def start(self) -> None:
            """Wait for a turn."""

        def is_alive(self) -> bool:
            return self._rest is not None

        def join(self, timeout: float | None = None) -> None:
            rest, self._rest = self._rest, None
            if rest is not None:
                rest()

    again = types.ModuleType("threading")
    again.__dict__.update(vars(threading))
    again.Thread = Thread  # type: ignore[attr-defined]
    return again


def _uuid() -> Any:
    import uuid

    return types.SimpleNamespace(uuid4=lambda: uuid.UUID(bytes=calls.urandom(16), version=4))


def _at_exit(last: Any) -> None:
    calls.me().exits.append(last)


def _any_number() -> float:
    return calls.kernel().chance.random()


class _Chance:
    """Random numbers of the present room; modules keep such an object for good."""

    def __init__(self, *_: object) -> None:
        pass

    def __getattr__(self, name: str) -> Any:
        return getattr(calls.kernel().chance, name)


def _filelock() -> Any:
    """Return what locks are to ours: advisory, and gone with the process."""

    class Timeout(Exception):
        pass

    class BaseFileLock:
        def __init__(self, path: Any, *_: Any, **__: Any) -> None:
            self._path, self._fd = path, -1

        @property
        def is_locked(self) -> bool:
            return self._fd >= 0

        def acquire(self, timeout: float = -1, **_: Any) -> Any:
            fd = calls.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            opened = calls.me().fds[fd]
            inode: Any = opened.inode
            deadline = None if timeout < 0 else calls.kernel().now + timeout
            if not calls.kernel().wait(lambda: inode.locked_by is None, deadline):
                calls.close(fd)
                raise Timeout
            inode.locked_by, self._fd = opened, fd
            return self

        def release(self, *_: Any) -> None:
            if self._fd >= 0:
                fd, self._fd = self._fd, -1
                calls.close(fd)

        __enter__ = acquire

        def __exit__(self, *_: object) -> None:
            self.release()

    class UnixFileLock(BaseFileLock):
        pass

    return types.SimpleNamespace(
        Timeout=Timeout, BaseFileLock=BaseFileLock, UnixFileLock=UnixFileLock, FileLock=UnixFileLock
    )
