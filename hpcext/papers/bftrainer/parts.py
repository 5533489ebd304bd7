"""The common parts of BFTrainer's evaluation: the replays, and utilisation efficiency.

``U = A_e / A_s`` (§4.1) is the outcome of trainers on idle nodes over that of the same trainers on
N_eq nodes that stay, without costs. The paper does not say whether the latter are as few at once as
the former, so there are two figures here:

- *same*: they are. With equal trainers, A_s is the best division (:func:`fluid_rate`); with several
  networks, it is simulated under the same policy.
- *single*: there are as many at once as nodes, each on one. The work is then measured by the time
  that it takes on a single node, so that networks can be added.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

from hpcext.papers.bftrainer.replay import Replayed, ReplayRun
from hpcext.papers.bftrainer.setup import Idle, node_s, trainers
from hpcext.papers.bftrainer.watch import Done
from hpcext.papers.study import Row, Table
from hpcext.sim.evaluate.bounds import fluid_rate

HOUR_S = 3600.0

AT_ONCE = 10
FORWARD_S = 120.0

HEURISTIC = f"equal_share:parallel={AT_ONCE},rest=first"

Found = Mapping[ReplayRun, Replayed]


class Experiment(NamedTuple):
    """An experiment: its runs, and the tables that are made from them."""

    cases: tuple[ReplayRun, ...]
    tables: Callable[[Found], tuple[Table, ...]]


class Setup(NamedTuple):
    """The setting of replays.

    Attributes
    ----------
    idle : Idle
        The nodes of the paper's experiments.
    whole : Idle or None
        All nodes of the recorded week, from its change 1,000 on; None without data.
    hpo, mix : str
        The trainers of HPO, and of the mixture of networks.
    until_s : float
        Seconds for which utilisation is observed.
    quick : bool
    """

    idle: Idle
    whole: Idle | None
    hpo: str
    mix: str
    until_s: float
    quick: bool


def milp(
    objective: str = "throughput", forward_s: float = FORWARD_S, parallel: int = AT_ONCE
) -> str:
    """Return BFTrainer's policy with the exact division, as on a command line.

    Parameters
    ----------
    objective : str
    forward_s : float
        ``T_fwd``.
    parallel : int
        ``Pjmax``.
    """
    return f"bftrainer:parallel={parallel},objective={objective},forward_s={forward_s:g}"


def lifetime(objective: str = "throughput", parallel: int = AT_ONCE) -> str:
    """Return the policy that considers how long nodes stay, as on a command line."""
    return f"bftrainer-lifetime:parallel={parallel},objective={objective}"


@functools.lru_cache(maxsize=256)
def offered_node_s(idle: Idle, marks_s: tuple[float, ...]) -> tuple[float, ...]:
    """Return the node-seconds until each of some instants (Eq. 17).

    Parameters
    ----------
    idle : Idle
    marks_s : tuple of float
        Instants, ascending.
    """
    return tuple(node_s(idle.changes(), marks_s))


class UtilisationFigures(NamedTuple):
    """Utilisation efficiency in percent, in the two readings that the module describes."""

    same: float
    single: float


def equal_use(
    trained: str, done: Done, offered: float, lasted_s: float, at_once: int
) -> UtilisationFigures:
    """Return U of trainers that are all alike.

    Parameters
    ----------
    trained : str
        The trainers, as for :func:`~hpcext.papers.bftrainer.setup.trainers`.
    done : Done
        Their outcome on idle nodes.
    offered : float
        Node-seconds of idle nodes.
    lasted_s : float
        Seconds of observation.
    at_once : int
        Largest number of trainers at once.
    """
    nodes = offered / lasted_s
    ideal = fluid_rate(_speed(trained), nodes, at_once) * lasted_s
    return UtilisationFigures(100 * done.samples / ideal, 100 * done.alone_s / offered)


@functools.lru_cache(maxsize=64)
def _speed(trained: str) -> Mapping[int, float]:
    (job, _), *_ = trainers(trained)
    return job.estimate.stated


def staying(setup: Setup, policy: str, until_s: float) -> ReplayRun:
    """Return the run of the same trainers on as many nodes that stay, without costs.

    Parameters
    ----------
    setup : Setup
    policy : str
    until_s : float
    """
    nodes = offered_node_s(setup.idle, (until_s,))[0] / until_s
    return ReplayRun(setup.mix, policy, round(nodes), until_s, rescale=0.0)


def mixed_use(
    setup: Setup, policy: str, done: Done, until_s: float, found: Found
) -> UtilisationFigures:
    """Return U of several networks, with compensation of the rounding of the nodes that stay.

    Parameters
    ----------
    setup : Setup
    policy : str
    done : Done
        Their outcome on idle nodes.
    until_s : float
        Seconds of observation.
    found : Mapping[ReplayRun, Replayed]
        Replays, that of :func:`staying` among them.
    """
    (offered,) = offered_node_s(setup.idle, (until_s,))
    case = staying(setup, policy, until_s)
    assert isinstance(case.idle, int)
    ideal = found[case].done.samples * (offered / until_s) / case.idle
    return UtilisationFigures(100 * done.samples / ideal, 100 * done.alone_s / offered)


def both(what: str, use: UtilisationFigures, unit: str = "%") -> list[Row]:
    """Return the rows of a utilisation in both readings.

    Parameters
    ----------
    what : str
        The beginning of the label.
    use : UtilisationFigures
    unit : str
    """
    return [
        Row(f"{what}, same Pjmax", use.same, None, unit),
        Row(f"{what}, single nodes", use.single, None, unit),
    ]


def lost_rows(what: str, ran: Replayed) -> list[Row]:
    """Return the costs of pauses as shares of the work done."""
    shares = ((name, 100 * lost / ran.done.samples) for name, lost in ran.lost._asdict().items())
    return [Row(f"{what}, lost to {name}", share, None, "% of done") for name, share in shares]


def longest_first(parts: Iterable[Experiment]) -> list[ReplayRun]:
    """Return all runs, with those without an end first, because they take longest."""
    return sorted((case for part in parts for case in part.cases), key=lambda case: -case.until_s)
