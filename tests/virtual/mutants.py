"""Plants bugs one by one, and says which of them the rooms find, and within how many seeds."""

from __future__ import annotations

import os
import sys
import tempfile
import time
import traceback
import types
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


WARM = 3
"""How many seeds are played before any bug is planted."""

ROOT = Path(__file__).resolve().parent.parent.parent


class Mutant(NamedTuple):
    """A planted bug: in which module, what is replaced by what.

    Attributes
    ----------
    found : int
        Within how many seeds, from 0 on, it was found; 0: it was not.
    room : str
        In which kind of room it is sought.
    unseen : str
        Why no room can find it: what else does the same, or what is not modelled.
    """

    name: str
    module: str
    old: str
    new: str
    found: int = 0
    unseen: str = ""
    room: str = "local"

    def fits(self) -> bool:
        """Return whether the module has the text that is replaced, once."""
        path = ROOT / f"{self.module.replace('.', '/')}.py"
        return self.old != self.new and path.read_text(encoding="utf-8").count(self.old) == 1


def read() -> dict[str, Mutant]:
    """Read them all, by name."""
    text = Path(__file__).with_suffix(".toml").read_text(encoding="utf-8")
    return {each["name"]: Mutant(**each) for each in tomllib.loads(text)["mutant"]}


def hunt(names: Sequence[str], seeds: Sequence[int], jobs: int, *, guided: bool = False) -> int:
    """Plant bugs; return 1 if one is not found.

    Each is planted in a copy of this process, which has imported everything and played a few seeds.

    Parameters
    ----------
    names : sequence of str
        Empty: all of them that a room can find.
    seeds : sequence of int
        Played for each until one fails.
    jobs : int
        Processes.
    guided : bool
        Whether faults are chosen by what they lead to.
    """
    from virtual.room import Room

    chosen = [each for name, each in read().items() if name in names or not (names or each.unseen)]
    for seed in range(WARM):
        room = Room(seed)
        room.play()
        room.close()
    found, running, waiting = 0, {}, list(reversed(chosen))
    while running or waiting:
        while waiting and len(running) < jobs:
            mutant, said = waiting.pop(), tempfile.TemporaryFile("w+")  # noqa: SIM115
            running[_begin(mutant, seeds, said.fileno(), guided=guided)] = (
                mutant,
                said,
                time.monotonic(),
            )
        pid, status = os.wait()
        mutant, said, began_s = running.pop(pid)
        said.seek(0)
        lines = said.read().splitlines()
        seen = [line for line in lines if line.startswith("seed ")]
        what = seen[0] if seen else lines[-1] if status > 256 and lines else "not found"
        found += bool(seen)
        plays = next((line.split()[0] for line in lines if " seeds, " in line), "no")
        took_s = time.monotonic() - began_s
        print(f"{mutant.name}: {what} ({plays} plays, {took_s:.0f} s)", flush=True)
    print(f"{found} of {len(chosen)} found")
    return int(found < len(chosen))


def _begin(mutant: Mutant, seeds: Sequence[int], said: int, *, guided: bool) -> int:
    """Have another process look for a bug; return its pid."""
    sys.stdout.flush()
    if pid := os.fork():
        return pid
    os.dup2(said, 1)
    os.dup2(said, 2)
    try:
        from virtual import __main__ as rooms

        if not mutant.fits():
            print("does not fit its module any more")
            os._exit(2)
        if mutant.room != "local" or not alter(mutant):
            words = [rooms.named(seeds), "--jobs=1", "--until-found", f"--room={mutant.room}"]
            words += [f"--mutant={mutant.name}", *["--guided"] * guided]
            os.chdir(ROOT)
            os.execv(sys.executable, [sys.executable, "-m", "tests.virtual", *words])
        by = rooms.guide("local", seeds[0]) if guided else None
        code = rooms.many("local", seeds, by, until_found=True)
        sys.stdout.flush()
        os._exit(code)
    finally:
        traceback.print_exc()
        os._exit(2)


def alter(mutant: Mutant) -> bool:
    """Change functions of a module that is imported; return False if it is not in functions."""
    module = sys.modules.get(mutant.module)
    if module is None:
        return False
    path = str(module.__file__)
    text = Path(path).read_text(encoding="utf-8")
    codes = [compile(each, path, "exec") for each in (text, text.replace(mutant.old, mutant.new))]
    functions = {(each.__code__.co_name, each.__code__.co_firstlineno): each
                 for each in _functions(module, mutant.module)}  # fmt: skip
    changed: list[tuple[types.FunctionType, types.CodeType]] = []

    def differ(one: types.CodeType, other: types.CodeType) -> bool:
        """Note what differs; return True if that is outside of functions."""
        if function := functions.get((one.co_name, one.co_firstlineno)):
            if one != other:
                changed.append((function, other))
            return False
        parts = [[each for each in code.co_consts if isinstance(each, types.CodeType)]
                 for code in (one, other)]  # fmt: skip
        rests = [[each for each in code.co_consts if not isinstance(each, types.CodeType | int)]
                 for code in (one, other)]  # fmt: skip
        whole = [[each for each in code.co_consts if type(each) is int] for code in (one, other)]
        same = rests[0] == rests[1] and len(parts[0]) == len(parts[1])
        same = same and one.co_code == other.co_code and one.co_names == other.co_names
        # The line at which a class begins is a constant of its body.
        if not same or (whole[0] != whole[1] and one.co_name == "<module>"):
            return True
        return any(differ(*each) for each in zip(*parts, strict=True))

    if differ(*codes) or not changed:
        return False
    for function, code in changed:
        if function.__code__.co_freevars != code.co_freevars:
            return False
    for function, code in changed:
        function.__code__ = code
    return True


def _functions(holder: Any, name: str) -> Iterator[types.FunctionType]:
    for each in list(vars(holder).values()):
        inner = each
        for _ in range(3):
            inner = getattr(inner, "fget", None) or getattr(inner, "func", None) or inner
            inner = getattr(inner, "__func__", None) or getattr(inner, "__wrapped__", None) or inner
        if isinstance(inner, types.FunctionType):
            if inner.__module__ == name:
                yield inner
        elif isinstance(each, type) and each.__module__ == name and holder is not each:
            yield from _functions(each, name)
