"""Liu et al., *BFTrainer: Low-Cost Training of Neural Networks on Unfillable Supercomputer Nodes*.

The nodes that the main queue of an HPC system leaves idle, the trainers of §4.2 on them, and their
utilisation: Figures 7 to 16, Tables 3 and 4. Also the replay of the authors' published program, and
a policy that considers how long nodes stay.
"""

from __future__ import annotations

from pathlib import Path

from hpcext.core.errors import InputError
from hpcext.papers.bftrainer.hpo import forward, networks, rescaling, windows
from hpcext.papers.bftrainer.lifetime import lifetimes
from hpcext.papers.bftrainer.parallel import objectives, parallel
from hpcext.papers.bftrainer.parts import Setup, longest_first
from hpcext.papers.bftrainer.program import SKIP, program
from hpcext.papers.bftrainer.replay import replay
from hpcext.papers.bftrainer.setup import DOWN_S, MIX, UP_S, WEEK_S, Idle
from hpcext.papers.bftrainer.solver import solver
from hpcext.papers.bftrainer.survival import calibrated
from hpcext.papers.study import Extent, Study, many

NODES = 1024
"""Number of nodes in section 4.3, arbitrarily chosen ones of Summit."""

QUICK_S = 86_400.0

FOLDER = "bftrainer"
TRACE = "summit_idle_week1.csv.gz"
HPO, MIXTURE = "trainers_hpo_shufflenet.csv", "trainers_imagenet_mix.csv"


def study(how: Extent) -> Study:
    """Run all experiments; a quick study has one day of idle nodes, and the ends of each figure.

    Raises
    ------
    InputError
        A file of the data is missing or damaged.
    """
    setup = _setup(how)
    parts = [
        program(setup),
        forward(setup),
        windows(setup),
        objectives(setup),
        parallel(setup),
        networks(setup),
        rescaling(setup),
        solver(),
        calibrated(setup),
        lifetimes(setup),
    ]
    found = many(replay, longest_first(parts), how.workers)
    return Study(
        "bftrainer",
        "BFTrainer: training on unfillable supercomputer nodes (Liu et al., 2021)",
        tuple(table for part in parts for table in part.tables(found)),
        _assumed(setup),
    )


def _setup(how: Extent) -> Setup:
    until_s = QUICK_S if how.quick else WEEK_S
    seed = how.seeds[0] if how.seeds else 0
    if how.data is None:
        made_up = Idle(seed=seed, lowest=NODES, again=True)
        return Setup(made_up, None, "ShuffleNet", MIX, until_s, how.quick)
    trace, hpo, mix = (_file(how.data, name) for name in (TRACE, HPO, MIXTURE))
    recorded = Idle(trace, lowest=NODES, again=True)
    return Setup(recorded, Idle(trace, skip=SKIP), hpo, mix, until_s, how.quick)


def _file(data: Path, name: str) -> str:
    path = data / FOLDER / name
    if not path.is_file():
        raise InputError("no such file", where=str(path), do="see --data")
    return str(path)


def _assumed(setup: Setup) -> tuple[str, ...]:
    if setup.whole:
        nodes = f"the 1,024 nodes are those with the lowest numbers of the recorded week of {TRACE}"
        trained = f"trainers are those of {HPO} and {MIXTURE}"
    else:
        nodes = (
            "idle nodes are generated from the paper's figures for Summit (4,608 nodes, §2.1, "
            "Figure 1), and the 1,024 are those with the lowest numbers; one seed, the first"
        )
        trained = (
            f"speeds are those of Table 2; growing costs {UP_S:g} s and shrinking {DOWN_S:g} s, "
            "which are in the published files and not in the paper"
        )
    return (
        f"{nodes}; the paper says neither which nodes it took nor from which week",
        f"{trained}; 130 million samples each, on 1 to 64 nodes, one submitted every 36 s",
        "replays that need more than the week repeat it from its beginning",
        "speeds between two measured sizes are interpolated linearly (§3.4.1); policies are told "
        "them",
        "U = A_e / A_s (§4.1), where A_s is for N_eq nodes that stay, without costs. With `same "
        "Pjmax` it has as many trainers at once as A_e, with `single nodes` one on each node: the "
        "paper does not say which it means",
        "a start from nothing takes R_up here, but is free in the paper and its program; if a node "
        "is lost during it, the trainer starts again",
        "a trainer pauses for R_down after it has lost a node, and for R_up when it grows; a node "
        "that leaves is gone at once. A trainer that loses all of its nodes loses no samples",
        "decisions are made when nodes or trainers arrive or leave, and when a trainer becomes "
        "ready after a change; in the program only when nodes change",
        "MILP stands for the exact division, which is the optimum of the paper's integer program",
        "where the paper's figures are curves without numbers, the range of their axis is given",
    )
