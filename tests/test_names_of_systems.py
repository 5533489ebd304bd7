"""Nothing branches on the name of a batch system but the folders that are about it."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from hpcext import backends, config

HPCEXT = Path(backends.__file__).parents[1]

ABOUT = {
    "acceptance": "scenarios that the real Slurm and the real LSF go through",
    "admin": "what is installed for each",
    "backends": "one folder for each, and their table",
    "batch/lsf": "what LSF is asked, and says",
    "batch/slurm": "the same of Slurm",
    "doctor": "checks of each",
}
"""Folder → why names of batch systems stand there."""

NAMES = {name.lower() for name in backends.BUILT_IN}


def is_name(node: ast.AST) -> bool:
    return (
        isinstance(node, ast.Constant)
        and isinstance(node.value, str)
        and node.value.lower() in NAMES
    )


def branches(tree: ast.AST) -> Iterator[int]:
    """Lines in which something is compared with a name, matched with it, or looked up by it."""
    for node in ast.walk(tree):
        parts: list[ast.AST] = []
        if isinstance(node, ast.Compare):
            parts = [node.left, *node.comparators]
            parts += [each for one in parts for each in getattr(one, "elts", ())]
        elif isinstance(node, ast.Dict):
            parts = [key for key in node.keys if key is not None]
        elif isinstance(node, ast.Subscript):
            parts = [node.slice] if isinstance(node.ctx, ast.Load) else []
        elif isinstance(node, ast.MatchValue):
            parts = [node.value]
        if any(map(is_name, parts)):
            yield node.lineno  # type: ignore[attr-defined]


def imports(tree: ast.AST) -> Iterator[str]:
    """Modules of ours that are imported, as far as they lie in a folder about one system."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module:
            for each in (node.module, *(f"{node.module}.{alias.name}" for alias in node.names)):
                if each.split(".")[1:2] in (["backends"], ["batch"]) and NAMES & {*each.split(".")}:
                    yield each


def others() -> Iterator[tuple[str, ast.AST]]:
    for path in sorted(HPCEXT.rglob("*.py")):
        place = path.relative_to(HPCEXT).as_posix()
        if not any(place.startswith(f"{folder}/") for folder in ABOUT):
            yield place, ast.parse(path.read_text(encoding="utf-8"))


def test_nothing_branches_on_the_name_of_a_batch_system() -> None:
    found = [f"{place}:{line}" for place, tree in others() for line in branches(tree)]
    assert not found


def test_the_rule_finds_a_branch() -> None:
    for text in (
        'if system == "lsf": pass',
        'if system in {"slurm", "lsf"}: pass',
        'say = {"Slurm": 1}[system]',
        'say = table["slurm"]',
        'match system:\n    case "lsf": pass',
    ):
        assert list(branches(ast.parse(text))), text


def test_what_is_about_one_batch_system_is_imported_by_its_own_entry_points_alone() -> None:
    found = {place: sorted(set(imports(tree))) for place, tree in others()}
    assert {place for place, modules in found.items() if modules} == {
        # The help of an error that bsub prints.
        "batch/runner.py",
        # hpcext-batch, which only a site with Slurm has, becomes it.
        "cli/begin.py",
        # Slurm's configuration names the mail program of a site.
        "manager/senders.py",
    }


def test_settings_know_the_names_that_there_are() -> None:
    assert tuple(backends.BUILT_IN) == config.BACKENDS
    for name in backends.BUILT_IN:
        assert backends.find(name).name == name
