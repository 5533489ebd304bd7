"""The house: modules that can be read at one sitting, and functions that say what they take."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from pathlib import Path

import hpcext

HOUSE = Path(hpcext.__file__).parent

MOST_LINES = 400
"""Lines that a module may have."""

FEW = 2
"""Parameters that a name, a type and a summary may describe."""

ELSEWHERE = (":func:", ":meth:", ":class:", ":data:")
"""What a docstring that refers to another one for its parameters has."""

Function = ast.FunctionDef | ast.AsyncFunctionDef


def modules() -> dict[str, ast.Module]:
    """Path in the house → module."""
    paths = sorted(HOUSE.rglob("*.py"))
    assert len(paths) > 300
    return {str(path.relative_to(HOUSE)): ast.parse(path.read_text()) for path in paths}


def test_a_module_is_read_at_one_sitting() -> None:
    """A module that grows past it holds two concepts, and is divided by them."""
    lines = {str(path): len(path.read_text().splitlines()) for path in HOUSE.rglob("*.py")}
    assert {path: count for path, count in lines.items() if count > MOST_LINES} == {}


def names(function: Function) -> list[str]:
    """Return the names of its parameters."""
    taken = function.args
    several = [each for each in (taken.vararg, taken.kwarg) if each is not None]
    every = [*taken.posonlyargs, *taken.args, *taken.kwonlyargs, *several]
    return [each.arg for each in every if each.arg not in ("self", "cls")]


def public(tree: ast.Module | ast.ClassDef) -> Iterator[tuple[ast.ClassDef | None, Function]]:
    """Yield public functions, with the class of a method."""
    for node in tree.body:
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
            yield from ((within or node, function) for within, function in public(node))
        elif isinstance(node, Function) and not node.name.startswith("_"):
            yield None, node


def bases(node: ast.ClassDef) -> list[str]:
    """Return the last names of the bases of a class."""
    words = (base.value if isinstance(base, ast.Subscript) else base for base in node.bases)
    return [ast.unparse(word).rpartition(".")[2] for word in words]


def inherits(node: ast.ClassDef, method: str, classes: Mapping[str, ast.ClassDef]) -> bool:
    """Return whether a method is of a base, where it is documented; so are hooks of frameworks."""
    for name in bases(node):
        base = classes.get(name)
        if base is None or base is node:
            return True
        own = any(isinstance(each, Function) and each.name == method for each in base.body)
        if own or inherits(base, method, classes):
            return True
    return False


def test_a_function_with_several_parameters_describes_them() -> None:
    """Itself, or where it refers to, or where its base or its module does for many."""
    trees = modules()
    nodes = [node for tree in trees.values() for node in ast.walk(tree)]
    classes = {node.name: node for node in nodes if isinstance(node, ast.ClassDef)}
    silent = []
    for path, tree in trees.items():
        module = ast.get_docstring(tree) or ""
        for within, function in public(tree):
            said, taken = ast.get_docstring(function) or "", names(function)
            if len(taken) <= FEW or "\nParameters\n" in said:
                continue
            if within is not None and inherits(within, function.name, classes):
                continue
            of_class = (ast.get_docstring(within) or "") if within else ""
            if any(word in said or word in of_class.partition("\n")[0] for word in ELSEWHERE):
                continue
            told = f"{module} {said} {of_class}"
            if sum(f"`{name}`" not in told for name in taken) > FEW:
                silent.append(f"{path}:{function.lineno} {function.name}({', '.join(taken)})")
    assert not silent, "\n".join(silent)
