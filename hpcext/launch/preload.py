"""A process that has imported what a command imports, and forks supervisors whose command goes on.

Run as ``PYTHON [OPTION...] .../launch/preload.py FD PADDING alone|ranks MODULE...`` by the
interpreter of the job, in its environment, where FD is a socket of whoever starts supervisors. It
imports the modules, and then is a :mod:`~hpcext.launch.nursery`. The command of a supervisor that
it forks is not executed but run in a further fork, which already has the modules. For all that it
can see, but for our frames below its own, it was executed: its environment, arguments, signals,
files and ``__main__`` are those that it would have. ``ranks``: the command is ``hpcext launch``,
and this holds for each of its ranks.

Where that cannot be so, it is executed as usual: if the environment is another one than the modules
were imported in, if the file of one has changed since, or if the words are no script or module for
this interpreter.

A variable has ``null``, or what a session has found of its script's imports, as JSON; a command
line would show to everybody what variables a script sets. Nothing is forked here unless the import
of the first module explains all of that, for then the script has done nothing before it that could
have made a difference.

PADDING, and a variable of that name, make room for the words and the environment of the command.
"""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import json
import os
import signal
import socket
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

ALONE, RANKS = "alone", "ranks"
"""What the command is."""

PADDING = "PADDING_OF_HPCEXT"
"""The variable whose value is overwritten by the environment of the command."""

PREMISE = "PREMISE_OF_HPCEXT"
"""The variable that has the premise."""

_GPUS = ("/dev/nvidia", "/dev/kfd", "/dev/dri")
"""Devices that a process which is forked further must not have open."""

_ALSO = {"torch": ("torch._dynamo",)}
"""What is imported with a module, because any use of it imports that: here, an optimizer does."""


class UnfitError(Exception):
    """The reason why nothing can be forked from here."""


Premise = Mapping[str, Any] | None
"""``environ``: how the environment had changed, digests of new values by name, None for what was
removed; ``compiled``: packages with compiled modules that were imported before the framework, or by
it."""


def _import(modules: Sequence[str], premise: Premise, *, of_ranks: bool) -> None:
    """Import modules; afterwards this must be a process that can be forked without harm.

    Raises
    ------
    UnfitError
        It is not, or one cannot be imported, or asks for a variable that is set only later, or the
        first one does not explain the premise.
    """
    from hpcext.launch.node_ranks import OF_RANKS  # noqa: PLC0415  (found only now)
    from hpcext.launch.run_here import open_files  # noqa: PLC0415

    environ = dict(os.environ)
    for name in modules:
        try:
            with _asked() as asked:
                importlib.import_module(name)
                if premise is not None and name == modules[0]:
                    _explain(premise, environ)
                for also in _ALSO.get(name, ()):
                    with contextlib.suppress(ImportError):
                        importlib.import_module(also)
        except UnfitError:
            raise
        except BaseException as error:
            raise UnfitError(f"{name}: {type(error).__name__}: {error}") from None
        if of_ranks and (too_early := sorted(OF_RANKS & asked)):
            raise UnfitError(
                f"{name}: an import asks for {too_early[0]}, which each rank gets later"
            )
    if len(os.listdir("/proc/self/task")) > 1:
        raise UnfitError(f"{', '.join(modules)}: an import starts threads")
    if any(path.startswith(_GPUS) for path in open_files().values()):
        raise UnfitError(f"{', '.join(modules)}: an import opens a GPU")


def _explain(premise: Mapping[str, Any], before: Mapping[str, str]) -> None:
    """See whether an import has done all that a session has found.

    Raises
    ------
    UnfitError
        It has not.
    """
    from hpcext.protocol import digest  # noqa: PLC0415  (found only now)

    changes = {
        name: None if value is None else digest(value)
        for name, value in changes_of(before, os.environ).items()
    }
    if own := sorted(_differing(premise["environ"], changes)):
        raise UnfitError(f"the script sets {own[0]} before it imports")
    packages = {name.partition(".")[0] for name in sys.modules}
    if other := sorted(set(premise["compiled"]) - packages):
        raise UnfitError(f"the script imports {other[0]} first")


def changes_of(before: Mapping[str, str], after: Mapping[str, str]) -> dict[str, str | None]:
    """Return new values of variables by name, None for what was removed.

    Parameters
    ----------
    before, after : Mapping of str to str
        Environments.
    """
    names = before.keys() | after.keys()
    return {name: after.get(name) for name in names if before.get(name) != after.get(name)}


def _differing(one: Mapping[str, Any], other: Mapping[str, Any]) -> set[str]:
    """Return the names of which two do not say the same."""
    return {
        name
        for name in one.keys() | other.keys()
        if (name in one, one.get(name)) != (name in other, other.get(name))
    }


@contextlib.contextmanager
def _asked() -> Iterator[set[str]]:
    """Collect the names of variables that are asked for in ``os.environ``."""
    asked: set[str] = set()
    encode = os.environ.encodekey

    def noting(name: str) -> str:
        asked.add(name)
        return encode(name)

    # Whatever looks for a variable by its name encodes it.
    os.environ.encodekey = noting
    try:
        yield asked
    finally:
        os.environ.encodekey = encode


def _find_ours(root: str) -> None:
    """Make our package importable, as it is for the manager.

    Raises
    ------
    UnfitError
        The interpreter would import another copy of it: its release may be another one.
    """
    found = importlib.util.find_spec("hpcext")
    if found is None:
        sys.path.append(root)
        importlib.import_module("hpcext.launch")
        # Only what is imported already leads there from now on.
        sys.path.remove(root)
    elif not found.origin or os.path.realpath(os.path.dirname(found.origin)) != os.path.realpath(
        os.path.join(root, "hpcext")
    ):
        raise UnfitError("the interpreter has another copy of hpcext")


def main() -> int:
    """Import, and fork a supervisor for each message until the manager is gone."""
    # Blocked, as in a supervisor that begins by itself: see supervise.py.
    signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
    here = os.path.dirname(os.path.abspath(__file__))
    if sys.path and os.path.realpath(sys.path[0]) == os.path.realpath(here):
        # Of a script, whose modules nobody is to find here.
        del sys.path[0]
    os.environ.pop(PADDING, None)
    premise = json.loads(os.environ.pop(PREMISE, "null"))
    environ = dict(os.environ)
    fd, _, mode, *modules = sys.argv[1:]
    control = socket.socket(fileno=int(fd))
    try:
        _find_ours(os.path.dirname(os.path.dirname(here)))
        _import(modules, premise, of_ranks=mode == RANKS)
    except UnfitError as error:
        control.send(str(error).encode(errors="replace")[:1000])
        return 1
    from hpcext.launch import command, nursery  # noqa: PLC0415
    from hpcext.launch.run_here import Runner, open_files, set_environ  # noqa: PLC0415
    from hpcext.launch.supervision import supervise  # noqa: PLC0415

    changes = changes_of(environ, os.environ)
    # Supervisors are to have it as it was.
    set_environ(environ)
    words = sys.orig_argv[: sys.orig_argv.index(sys.argv[0])]
    files = open_files().keys() - {control.fileno()}
    command.run_here = Runner(environ, changes, words, files, of_ranks=mode == RANKS)
    nursery.serve(control, supervise, [*words, __file__, *modules])
    return 0


if __name__ == "__main__":
    # The manager may end at any moment.
    with contextlib.suppress(OSError):
        main()
    os._exit(0)
