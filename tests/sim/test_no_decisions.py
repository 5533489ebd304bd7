"""The simulator has no decision code of its own: only the engine asks policies and reconciles.

Read from the source, which finds what no scenario happens to reach, and seen in a run. That the
reading finds something is shown on modules that decide, each as somebody might write it who is in
a hurry: a second loop that asks the policy itself, a start that no engine ordered.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hpcext.core import facts as f
from hpcext.core import values as v
from hpcext.core.engine import Engine
from hpcext.policies import find_policy
from hpcext.sim.replay.executor import SimulatedExecutor
from hpcext.sim.replay.physics import Physics
from hpcext.sim.replay.run import Named, Scenario, run

SIM = Path(__file__).parents[2] / "hpcext" / "sim"

MADE_BY_ENGINE = ("reconcile", "allocate", "carry_out", "Grant", "Action")
"""Calls by which something is decided, or a decision is noted."""

COUNTED = ("run.py", "_Counted")
"""The one that hands a call of the engine's on to its policy."""


def deciding(text: str, file: str = "new.py") -> list[str]:
    """What in a module decides something."""
    tree = ast.parse(text)
    found = [(line, what) for line, what in (*_imports(tree), *_calls(tree, file))]
    return [f"{file}:{line}: {what}" for line, what in sorted(found)]


def _imports(tree: ast.Module) -> Iterator[tuple[int, str]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names = [name.name for name in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [f"{node.module}.{name.name}" for name in node.names]
        else:
            continue
        for name in names:
            if "reconcile" in name.split("."):
                yield node.lineno, f"imports {name}"


def _calls(tree: ast.Module, file: str) -> Iterator[tuple[int, str]]:
    handed_on = {
        call
        for node in tree.body
        if isinstance(node, ast.ClassDef) and (file, node.name) == COUNTED
        for call in ast.walk(node)
    }
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call) or node in handed_on:
            continue
        called = node.func
        if isinstance(called, ast.Call) and _name(called.func) == "find_policy":
            yield node.lineno, "calls a policy"
        name = _name(called)
        if name in MADE_BY_ENGINE:
            yield node.lineno, f"calls {name}"
        elif name.strip("_").lower() == "policy":
            yield node.lineno, "calls a policy"


def _name(node: ast.expr) -> str:
    return node.id if isinstance(node, ast.Name) else getattr(node, "attr", "")


@pytest.mark.parametrize(
    "path", sorted(SIM.rglob("*.py")), ids=lambda path: str(path.relative_to(SIM))
)
def test_nothing_of_the_simulator_decides(path: Path) -> None:
    assert deciding(path.read_text(encoding="utf-8"), path.name) == []


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("from hpcext.core.reconcile import reconcile", "imports hpcext.core.reconcile.reconcile"),
        ("import hpcext.core.reconcile as r", "imports hpcext.core.reconcile"),
        ("from hpcext.core import reconcile as r", "imports hpcext.core.reconcile"),
        ("for action in core.reconcile(now): pass", "calls reconcile"),
        ("target = policy(now)", "calls a policy"),
        ("target = self._policy(snapshot)", "calls a policy"),
        ("target = find_policy('marble')(now)", "calls a policy"),
        ("target = marble.allocate(now)", "calls allocate"),
        ("executor.perform(Action(Kind.START, 'j', 1, 1))", "calls Action"),
        ("grant = values.Grant(alloc, role, why)", "calls Grant"),
    ],
)
def test_who_decides_is_found(text: str, found: str) -> None:
    assert deciding(text) == [f"new.py:1: {found}"]


def test_handing_a_policy_to_an_engine_is_no_decision() -> None:
    assert deciding("engine = Engine(policy)\nrun(scenario, find_policy(name), named)") == []


def test_only_the_named_wrapper_may_call_a_policy() -> None:
    """Its name in another file, or another name in its file, is found."""
    text = "class _Counted:\n    def __call__(self, now):\n        return self._policy(now)"
    assert deciding(text, "run.py") == []
    assert deciding(text, "other.py") == ["other.py:3: calls a policy"]
    assert deciding(text.replace("_Counted", "_Mine"), "run.py") == ["run.py:3: calls a policy"]


def test_in_a_run_only_the_engine_asks_and_only_its_actions_are_carried_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    deciding_now, asked, ordered, done = [False], [], [], []
    ask, step, perform = Engine._ask, Engine.step, SimulatedExecutor.perform

    def asking(engine: Engine, now_s: float, cause: v.Cause) -> None:
        deciding_now[0] = True
        ask(engine, now_s, cause)
        deciding_now[0] = False

    def stepped(engine: Engine, now_s: float, facts: Any) -> Any:
        actions, wake_s = step(engine, now_s, facts)
        ordered.extend(actions)
        return actions, wake_s

    def performed(executor: SimulatedExecutor, action: v.Action) -> None:
        done.append(action)
        perform(executor, action)

    monkeypatch.setattr(Engine, "_ask", asking)
    monkeypatch.setattr(Engine, "step", stepped)
    monkeypatch.setattr(SimulatedExecutor, "perform", performed)
    equal_share = find_policy("equal_share")

    def spy(now: v.Snapshot) -> v.Target:
        asked.append(deciding_now[0])
        return equal_share(now)

    physics = Physics({1: 1.0, 2: 1.5, 3: 2.0}, 50, elastic=True, suspend_s=1.0)
    jobs = [v.Job(f"{n}", "j", n, (1,), 1, nodes=(1, 3), submitted_s=5.0 * n) for n in range(5)]
    there = tuple(v.Node(f"n{n}", 1) for n in range(4))
    changes = [(30.0, (f.NodeLost("n1"),)), (60.0, (f.NodeJoined(there[1]),))]
    found = run(Scenario([(job, physics) for job in jobs], there, changes), spy, Named("spy"))
    assert {each.state for each in found.jobs} == {"completed"}
    assert set(asked) == {True}
    assert len(asked) == found.decisions
    assert done == ordered
    assert {action.kind for action in done} >= {v.Kind.START, v.Kind.RESCALE}
