"""BFTrainer §3.6: the paper's programme and the exact division have equally good results."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from hpcext.core.errors import HpcextError
from hpcext.papers.bftrainer.parts import FORWARD_S, Experiment
from hpcext.papers.bftrainer.setup import DOWN_S, NODES, TABLE_2, UP_S, curve
from hpcext.papers.study import Row, Table
from hpcext.policies.solve.apportion import apportion
from hpcext.policies.solve.milp import Trainer, gain_table, solve_map
from hpcext.policies.solve.solvers import SearchLimit, find_solver

DRAWN = 5
TRAINERS, IDLE = 5, 12

LIMIT = SearchLimit(nodes=10_000)


def solver() -> Experiment:
    """Compare them on random maps of networks of Table 2 to nodes, some just lost or gained."""
    return Experiment((), lambda _: (_compared(),))


def _compared() -> Table:
    what = f"exact division / program, {DRAWN} maps of {TRAINERS} trainers to {IDLE} nodes"
    title = "Section 3.6: the value of Eq. 16"
    note = (
        "how long the program takes is not compared here, because the solver is another one; "
        "hpcext's benchmarks measure it"
    )
    try:
        find_solver()
    except HpcextError as error:
        return Table(title, (Row(what, None, 1.0, "times", str(error)),), note)
    ratios = [_ratio(seed) for seed in range(DRAWN)]
    known = [ratio for ratio in ratios if ratio is not None]
    why = f"proven optimal in {len(known)} of {DRAWN} searches; the others are left out"
    rows = (
        Row(f"{what}: least", min(known, default=None), 1.0, "times", why),
        Row(f"{what}: most", max(known, default=None), 1.0, "times", why),
    )
    return Table(title, rows, note)


def _ratio(seed: int) -> float | None:
    """Return the ratio of the exact division's value to the programme's; None if not proven."""
    rng = np.random.default_rng([seed, 36])
    trainers = [
        Trainer(1, NODES[-1], {0: 0.0, **curve(name)}, UP_S, DOWN_S)
        for name in rng.choice(list(TABLE_2), TRAINERS)
    ]
    current: NDArray[np.bool_] = np.zeros((TRAINERS, IDLE), dtype=np.bool_)
    for node in np.flatnonzero(rng.random(IDLE) < 0.7):
        current[rng.integers(TRAINERS), node] = True
    answer = solve_map(trainers, current, FORWARD_S, LIMIT)
    if not answer.proven:
        return None
    has = current.sum(axis=1)
    tables = [
        gain_table(trainer, int(nodes), FORWARD_S)
        for trainer, nodes in zip(trainers, has, strict=True)
    ]
    return apportion(tables, IDLE).value / answer.value
