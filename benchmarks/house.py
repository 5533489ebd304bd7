"""How large the package is, and how far it is through it: counted, for some revisions.

Lines are physical ones, by what stands on them: code, docstring, comment; blank ones do not count.
A way is the longest chain of modules from one to another, each of which imports the next, also
inside of a function: what a reader may have to follow, as far as imports say it. Modules that need
each other count as one step each.

Run: ``python benchmarks/house.py [--paths] [REVISION ...]``; without a revision, the working tree.
"""

from __future__ import annotations

import argparse
import ast
import functools
import graphlib
import io
import statistics
import subprocess
import sys
import tarfile
import tempfile
import tokenize
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import grimp

ROOT = Path(__file__).parents[1]
LONG_MODULE, LONG_FUNCTION = 400, 40

WAYS = {
    "a job, from `hpcext run` to its supervisor": ("cli/run.py", "launch/supervise.py"),
    "a suspension, from `hpcext suspend` to the protocol": ("cli/verbs.py", "protocol.py"),
    "a suspension, from the manager to its supervisor": ("manager/pilot.py", "launch/supervise.py"),
    "a suspension, from a PyTorch session to the protocol": (
        "training/torch: class Session",
        "protocol.py",
    ),
    "a decision, from the driver to `Target`": ("class Driver", "class Target"),
    "a decision, from the policies to `Target`": ("policies/__init__.py", "class Target"),
}
"""What goes a way → the modules where it begins and ends: files, or what these define."""


class Lines(NamedTuple):
    """Lines of a module."""

    code: int
    docstring: int
    comment: int


def lines_of(text: str) -> Lines:
    """Count the lines of a module by what stands on them."""
    docstring = set()
    for node in ast.walk(ast.parse(text)):
        body = getattr(node, "body", None)
        if not isinstance(body, list):
            continue
        for each in body:
            # Also what stands below a constant, to say what that is.
            value = each.value if isinstance(each, ast.Expr) else None
            if isinstance(value, ast.Constant) and isinstance(value.value, str):
                docstring.update(range(each.lineno, (each.end_lineno or 0) + 1))
    code, comment = set(), set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            comment.add(token.start[0])
        elif token.type not in {tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT,
                                tokenize.ENDMARKER}:  # fmt: skip
            code.update(range(token.start[0], token.end[0] + 1))
    code -= docstring
    return Lines(len(code), len(docstring), len(comment - code))


def functions(text: str) -> Iterator[int]:
    """Yield the length of each function, lines."""
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            yield (node.end_lineno or 0) - node.lineno + 1


class House:
    """A package in a directory.

    Parameters
    ----------
    directory : pathlib.Path
        The one that has ``hpcext`` in it.
    """

    def __init__(self, directory: Path) -> None:
        package = directory / "hpcext"
        self.texts = {
            str(path.relative_to(package)): path.read_text() for path in package.rglob("*.py")
        }
        sys.path.insert(0, str(directory))
        try:
            graph = grimp.build_graph("hpcext", exclude_type_checking_imports=True, cache_dir=None)
        finally:
            sys.path.remove(str(directory))
        self._imports: Mapping[str, set[str]] = {
            each: graph.find_modules_directly_imported_by(each) for each in graph.modules
        }
        missing = {_module(file) for file in self.texts} - self._imports.keys()
        assert not missing, f"another hpcext was read: {missing}"

    def lines(self, folder: str = "") -> Lines:
        """Sum up the lines of all modules below a folder."""
        counts = [lines_of(text) for file, text in self.texts.items() if file.startswith(folder)]
        return Lines(*map(sum, zip(*counts, strict=True))) if counts else Lines(0, 0, 0)

    def modules(self, folder: str = "") -> int:
        """Count the modules below a folder that have more in them than a docstring."""
        texts = (text for file, text in self.texts.items() if file.startswith(folder))
        return sum(lines_of(text).code > 0 for text in texts)

    def functions(self) -> list[int]:
        """Return the lengths of all functions, lines."""
        return [length for text in self.texts.values() for length in functions(text)]

    def where(self, what: str) -> str | None:
        """Find the module of a file, or the first that defines something; None: there is none."""
        if what.endswith(".py"):
            return _module(what) if what in self.texts else None
        folder, _, defined = what.rpartition(": ")
        found = (
            _module(file)
            for file, text in self.texts.items()
            if any(line.startswith((f"{defined}(", f"{defined}:")) for line in text.splitlines())
            and file.startswith(folder)
        )
        return min(found, default=None)

    def circles(self) -> int:
        """Return 1 if modules need each other, else 0."""
        try:
            graphlib.TopologicalSorter(self._imports).prepare()
        except graphlib.CycleError:
            return 1
        return 0

    def way(self, first: str, last: str) -> tuple[str, ...]:
        """Return the longest chain of imports from one module to another; empty if there is none.

        Where modules need each other, they stand in it one after the other.
        """
        parts = list(_components(self._imports))
        part_of = {module: index for index, part in enumerate(parts) for module in part}
        end = part_of[last]

        @functools.cache
        def longest(index: int) -> tuple[str, ...]:
            here = tuple(sorted(parts[index]))
            if index == end:
                return here
            below = {part_of[need] for module in here for need in self._imports[module]} - {index}
            found = max((longest(each) for each in sorted(below)), key=len, default=())
            return (*here, *found) if found else ()

        return longest(part_of[first])


def _module(file: str) -> str:
    parts = file.removesuffix(".py").removesuffix("__init__").rstrip("/").split("/")
    return ".".join(["hpcext", *filter(None, parts)])


def _components(imports: Mapping[str, Iterable[str]]) -> Iterator[frozenset[str]]:
    """Yield the sets of modules that need each other, most of which are single ones (Kosaraju)."""
    users: dict[str, list[str]] = {each: [] for each in imports}
    for module, needs in imports.items():
        for need in needs:
            users[need].append(module)
    seen: set[str] = set()
    found: list[str] = []
    for module in sorted(imports):
        _visit(module, imports, seen, found)
    seen = set()
    for module in reversed(found):
        if module not in seen:
            part: list[str] = []
            _visit(module, users, seen, part)
            yield frozenset(part)


def _visit(
    module: str, imports: Mapping[str, Iterable[str]], seen: set[str], found: list[str]
) -> None:
    """Append all that a module leads to, each after what it leads to itself."""
    if module in seen:
        return
    seen.add(module)
    for need in sorted(imports[module]):
        _visit(need, imports, seen, found)
    found.append(module)


def figures(house: House, *, paths: bool) -> dict[str, str]:
    """Return what is counted of a house, by name."""
    every, core, lengths = house.lines(), house.lines("core/"), house.functions()
    large = sum(each > LONG_FUNCTION for each in lengths)
    long = sum(len(text.splitlines()) > LONG_MODULE for text in house.texts.values())
    found = {
        "modules": f"{house.modules():,}",
        "lines of code": f"{every.code:,}",
        "lines of docstrings": f"{every.docstring:,}",
        "lines of comments": f"{every.comment:,}",
        "code of `core/`": f"{core.code:,}",
        "modules of `core/`": f"{house.modules('core/'):,}",
        f"modules of more than {LONG_MODULE} lines": f"{long:,}",
        "functions, their median length": f"{len(lengths):,}, {statistics.median(lengths):g} lines",
        f"functions of more than {LONG_FUNCTION} lines": f"{large:,}",
        "modules need each other": "yes" if house.circles() else "no",
    }
    for name, (first, last) in WAYS.items():
        begin, end = house.where(first), house.where(last)
        way = house.way(begin, end) if begin and end else ()
        found[f"longest way of {name}"] = " ".join(way) if paths else f"{len(way)} modules"
    return found


def house_of(revision: str) -> House:
    """Read the package of a revision."""
    done = subprocess.run(
        ["git", "-C", str(ROOT), "archive", revision, "hpcext"], capture_output=True, check=True
    )
    with tempfile.TemporaryDirectory() as place:
        with tarfile.open(fileobj=io.BytesIO(done.stdout)) as archive:
            archive.extractall(place)
        return House(Path(place))


def main() -> int:
    """Print a table, a column for each revision."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("revisions", nargs="*", metavar="REVISION")
    parser.add_argument("--paths", action="store_true", help="name the modules of each way")
    args = parser.parse_args()
    sys.setrecursionlimit(10_000)
    names = args.revisions or ["working tree"]
    houses = [house_of(each) for each in args.revisions] or [House(ROOT)]
    columns = [figures(each, paths=args.paths) for each in houses]
    print("| | " + " | ".join(names) + " |")
    print("|---" * (len(names) + 1) + "|")
    for name in columns[0]:
        print(f"| {name} | " + " | ".join(column[name] for column in columns) + " |")
    return 0


if __name__ == "__main__":
    sys.exit(main())
