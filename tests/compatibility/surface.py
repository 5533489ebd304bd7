"""What other people's scripts rely on, as lines that can be compared with those of yesterday.

``python tests/compatibility/surface.py`` adds what is new to ``recorded``. It does not remove what
is gone: docs/compatibility.md says when that may be, and then ``--gone`` does.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import functools
import importlib
import inspect
import io
import json
import os
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping, Set
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
from msgspec.structs import replace

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
sys.path[:0] = [str(ROOT), str(HERE.parent)]

import manual  # noqa: E402

from hpcext import checkpointers, config, jobfile, seams  # noqa: E402
from hpcext.cli import main as cli  # noqa: E402
from hpcext.core import values  # noqa: E402
from hpcext.core.trials import Trial  # noqa: E402
from hpcext.harvest.leases import Terms  # noqa: E402
from hpcext.manager.journal import Entry  # noqa: E402

POLICIES_SEE = (
    values.Snapshot, values.Job, values.Run, values.Node, values.Target, values.Grant, values.Role,
)  # fmt: skip
"""What a policy is given, and what it answers with."""

PREFIX = "hpcext."
"""The beginning of the name of each schema."""


def commands() -> Iterator[str]:
    """Each command, its arguments and options, and the words that these take."""
    for make in manual.PROGRAMS.values():
        for prog, parser in manual.commands(make).items():
            yield prog
            for action in parser._actions:
                if action.help == argparse.SUPPRESS:
                    continue
                if not action.option_strings:
                    yield f"{prog} {action.metavar or action.dest}"
                for option in action.option_strings:
                    yield f"{prog} {option}" + ("" if action.nargs == 0 else " VALUE")
                    yield from (f"{prog} {option} {word}" for word in _words(action))


def _words(action: argparse.Action) -> Iterator[str]:
    # Policies have pages and entry points of their own; what a range may be is not a word.
    if isinstance(action.choices, (list, tuple)):
        yield from map(str, action.choices)


def keys() -> Iterator[str]:
    """What job files and settings may say, and the variables of the latter."""
    yield from (f"job file: {name}" for name in jobfile.KEYS)
    yield from (f"job file: checkpoint = {name}" for name in checkpointers.PRESETS)
    for name, row in config.SETTINGS.items():
        yield f"settings: {name}"
        yield f"environment: {row['variable']}"
    yield from (f"policy: {name}" for name in config.POLICIES)


def seams_of_others() -> Iterator[str]:
    """The groups of entry points, and what a policy and a batch system get and give."""
    groups = (seams.POLICIES, seams.BACKENDS, seams.PAPERS, seams.PREDICTORS)
    yield from (f"group {group}" for group in groups)
    for found in POLICIES_SEE:
        yield f"core.values.{found.__name__}"
        yield from (f"core.values.{found.__name__}.{name}" for name in _public(found))
    base = importlib.import_module("hpcext.backends.base")
    for found in (base.Backend, base.PilotOrder, base.PilotRun, base.JobPlace):
        yield f"backends.base.{found.__name__}"
        yield from (f"backends.base.{found.__name__}.{name}" for name in _public(found))
    speed = importlib.import_module("hpcext.scaling.speed")
    yield from (f"scaling.speed.Predictor.{name}" for name in _public(speed.Predictor))


def _public(found: type) -> Iterator[str]:
    """Yield fields, attributes and methods of a class, these with their parameters."""
    # Not those of an enum's int, or of a tuple.
    ours = [each for each in found.__mro__ if each.__module__.startswith(PREFIX)]
    names = {name for each in ours for name in (*vars(each), *getattr(each, "__annotations__", ()))}
    for name in sorted(names):
        if name.startswith("_"):
            continue
        member = inspect.getattr_static(found, name, None)
        if inspect.isfunction(member) or isinstance(member, (staticmethod, classmethod)):
            parameters = inspect.signature(getattr(found, name)).parameters
            yield f"{name}({', '.join(each for each in parameters if each != 'self')})"
        else:
            yield name


# Documents.


class Module(NamedTuple):
    """A module of ours, parsed."""

    name: str
    tree: ast.Module


@functools.cache
def modules() -> tuple[Module, ...]:
    paths = sorted((ROOT / "hpcext").rglob("*.py"))
    names = [".".join(path.relative_to(ROOT).with_suffix("").parts) for path in paths]
    return tuple(map(Module, names, (ast.parse(path.read_text()) for path in paths)))


def is_schema(value: object) -> bool:
    """Whether a string names a schema: ``hpcext.run/1``."""
    if not isinstance(value, str) or not value.startswith(PREFIX):
        return False
    name, _, number = value.removeprefix(PREFIX).partition("/")
    return number.isdecimal() and name.replace("-", "").isalpha()


def schemas() -> set[str]:
    """The names of all schemas in the code."""
    return {
        node.value
        for module in modules()
        for node in ast.walk(module.tree)
        if isinstance(node, ast.Constant) and is_schema(node.value)
    }


@functools.cache
def _constants() -> Mapping[str, Mapping[str, str]]:
    """Module → its constants that are names of schemas."""
    found: dict[str, dict[str, str]] = {}
    for module in modules():
        for node in module.tree.body:
            value = getattr(node, "value", None)
            if isinstance(value, ast.Constant) and is_schema(value.value):
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                for target in targets:
                    found.setdefault(module.name, {})[target.id] = str(value.value)
    return found


def _meant(node: ast.expr, module: Module) -> str | None:
    """The schema that an expression in a module is, if it is a constant."""
    if isinstance(node, ast.Constant):
        return str(node.value) if is_schema(node.value) else None
    if isinstance(node, ast.Name):
        return _seen_by(module).get(node.id)
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
        return _seen_by(module).get(f"{node.value.id}.{node.attr}")
    return None


def _seen_by(module: Module) -> dict[str, str]:
    """The constants of a module, and those that it imports, by their names there."""
    seen = dict(_constants().get(module.name, {}))
    for node in ast.walk(module.tree):
        if not isinstance(node, ast.ImportFrom):
            continue
        for each in node.names:
            name, theirs = each.asname or each.name, _constants()
            if each.name in theirs.get(str(node.module), {}):
                seen[name] = theirs[str(node.module)][each.name]
            for constant, value in theirs.get(f"{node.module}.{each.name}", {}).items():
                seen[f"{name}.{constant}"] = value
    return seen


def written() -> Iterator[str]:
    """The keys of documents that the code writes key by key."""
    for module in modules():
        for node in ast.walk(module.tree):
            if isinstance(node, ast.Dict):
                for key, value in zip(node.keys, node.values, strict=True):
                    if isinstance(key, ast.Constant) and key.value == "schema":
                        schema = _meant(value, module)
                        if schema:
                            yield from (f"{schema} {path}" for path in _paths(node))


def _paths(node: ast.expr, above: str = "") -> Iterator[str]:
    """The keys in a display of a dictionary, and in those that it has in it."""
    if isinstance(node, (ast.List, ast.ListComp)):
        parts = node.elts if isinstance(node, ast.List) else [node.elt]
        for part in parts:
            yield from _paths(part, f"{above}[]")
    elif isinstance(node, ast.Dict):
        for key, value in zip(node.keys, node.values, strict=True):
            if isinstance(key, ast.Constant):
                path = f"{above}.{key.value}" if above else str(key.value)
                yield path
                yield from _paths(value, path)


def declared() -> Iterator[str]:
    """The fields of documents that are structs, and of all that is in them, with their types."""
    for module in modules():
        found = vars(importlib.import_module(module.name)) if _declares(module) else {}
        for each in list(found.values()):
            if _is_document(each) and each.__module__ == module.name:
                yield from _fields(each)
    yield from (f"{PREFIX}journal entry: {line}" for line in _lines(msgspec.json.schema(Entry)))


def _declares(module: Module) -> bool:
    return any(
        isinstance(node, ast.AnnAssign)
        and isinstance(node.target, ast.Name)
        and node.target.id == "schema"
        for node in ast.walk(module.tree)
    )


def _is_document(found: object) -> bool:
    return (
        isinstance(found, type)
        and issubclass(found, msgspec.Struct)
        and "schema" in found.__struct_fields__
    )


def _fields(struct: type) -> Iterator[str]:
    described = msgspec.json.schema(struct)
    said = described["$defs"][struct.__name__]["properties"]["schema"]
    # One that may have any name reads the beginning of documents alone.
    names = said.get("enum") or [each for each in (said.get("default"),) if is_schema(each)]
    if not names:
        return
    yield from (f"{max(names)} {line}" for line in _lines(described))
    yield from (f"{name} is read" for name in names)


def _lines(described: Mapping[str, Any]) -> Iterator[str]:
    for name, one in described["$defs"].items():
        for field, kind in one.get("properties", {}).items():
            yield f"{name}.{field}: {_kind(kind)}"
        for place, kind in enumerate(one.get("prefixItems", ())):
            yield f"{name}[{place}]: {_kind(kind)}"


def _kind(kind: Mapping[str, Any]) -> str:
    """A type in a few words; bounds and defaults may change."""
    if "$ref" in kind:
        return str(kind["$ref"]).rpartition("/")[2]
    if "anyOf" in kind:
        return " | ".join(sorted({_kind(each) for each in kind["anyOf"]}))
    if "enum" in kind:
        return " | ".join(map(repr, sorted(map(str, kind["enum"]))))
    if kind.get("type") == "array":
        return f"[{_kind(kind.get('items') or {})}]"
    if kind.get("type") == "object" and isinstance(kind.get("additionalProperties"), dict):
        return f"{{{_kind(kind['additionalProperties'])}}}"
    return str(kind.get("type", "any"))


JOBS = """
[[job]]
name = "one"
command = "true"
gpus = {min = 1, max = 2}
scaling = {1 = 1.0, 2 = 1.5}
work = 100
"""

NAMES = {"one", "lr", os.uname().nodename.partition(".")[0]}
"""Keys that are names: of a job, of a setting of a trial, of this machine."""

PRINTED = (
    ("status", "pilot"),
    ("report", "--since", "1d"),
    ("nodes", "pilot"),
    ("trials", "sweep"),
    ("harvest", "report", "harvester"),
    ("plan", "jobs.toml", "--gpus", "2"),
    ("run", "jobs.toml", "--gpus", "2", "--dry-run"),
    ("simulate", "jobs.toml", "--nodes", "1x2"),
    ("config", "show"),
    ("prune", "--older-than", "0s", "--dry-run"),
)
"""Commands whose documents have parts that are written in several places."""


def printed() -> Iterator[str]:
    """The keys of what commands print about pilots that were made up, and about a job file."""
    from made_pilots import SPEC, make

    with tempfile.TemporaryDirectory() as place, contextlib.ExitStack() as after:
        after.callback(os.chdir, Path.cwd())
        os.chdir(place)
        for name in ("STATE", "CONFIG"):
            os.environ[f"XDG_{name}_HOME"] = f"{place}/{name.lower()}"
        Path("jobs.toml").write_text(JOBS)
        make("pilot")
        make("harvester", terms=Terms(partition="idle", gpus=2))
        make("sweep", spec=replace(SPEC, trial=Trial("sweep", {"lr": "1"}, "loss")))
        for words in PRINTED:
            said = io.StringIO()
            with contextlib.redirect_stdout(said):
                code = cli.main([*words, "--json"])
            assert code == 0, (words, said.getvalue())
            document = json.loads(said.getvalue())
            yield from (f"{document['schema']} {path}" for path in _keys(document))


def _keys(value: Any, above: str = "") -> Iterator[str]:
    if isinstance(value, list):
        for each in value:
            yield from _keys(each, f"{above}[]")
    elif isinstance(value, dict):
        for key, each in value.items():
            name = "*" if key in NAMES else key
            path = f"{above}.{name}" if above else name
            yield path
            yield from _keys(each, path)


def documents() -> Iterator[str]:
    """Every schema, and its fields: as the code writes, declares and prints them."""
    yield from schemas()
    yield from written()
    yield from declared()
    yield from printed()


SURFACE: Mapping[str, Callable[[], Iterator[str]]] = {
    "commands": commands,
    "keys": keys,
    "entry-points": seams_of_others,
    "documents": documents,
}
"""File of ``recorded`` → what its lines come from."""


def recorded(name: str) -> set[str]:
    """The lines that a file of ``recorded`` has."""
    path = HERE / "recorded" / f"{name}.txt"
    return set(path.read_text().splitlines()) if path.exists() else set()


def write(name: str, lines: Set[str]) -> None:
    (HERE / "recorded" / f"{name}.txt").write_text("".join(f"{line}\n" for line in sorted(lines)))


def read_jobs(path: Path) -> Any:
    """What a job file means, in types of JSON."""
    specs = jobfile.parse_jobs(path.read_text(), path.name, Path("/"))
    return json.loads(msgspec.json.encode(specs))


def write_jobs() -> None:
    """Write down the meaning of a job file where that is missing: of a new one, or if removed."""
    for path in HERE.glob("recorded/*/jobs.toml"):
        if not path.with_suffix(".json").exists():
            path.with_suffix(".json").write_text(json.dumps(read_jobs(path), indent=1) + "\n")


def main() -> int:
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("--gone", action="store_true", help="remove what is gone, too")
    args = parser.parse_args()
    write_jobs()
    left = []
    for name, lines in SURFACE.items():
        before, now = recorded(name), set(lines())
        gone = before - now
        write(name, now if args.gone else now | before)
        print(f"{name}: {len(now - before)} new, {len(gone)} gone")
        left += [] if args.gone else sorted(gone)
    for line in left:
        print(f"gone, and kept here: {line}", file=sys.stderr)
    return 1 if left else 0


if __name__ == "__main__":
    sys.exit(main())
