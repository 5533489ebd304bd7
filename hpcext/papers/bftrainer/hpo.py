"""BFTrainer §5.1 and 5.4: one network, the forward-looking time, and the cost of rescaling."""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Mapping, Sequence

from hpcext.papers.bftrainer.parts import (
    AT_ONCE,
    FORWARD_S,
    HEURISTIC,
    HOUR_S,
    Experiment,
    Found,
    Setup,
    UtilisationFigures,
    both,
    equal_use,
    lost_rows,
    milp,
    offered_node_s,
)
from hpcext.papers.bftrainer.replay import Replayed, ReplayRun
from hpcext.papers.bftrainer.setup import BY_SCALING, Idle
from hpcext.papers.bftrainer.watch import Done
from hpcext.papers.study import Row, Table, figure

WHY_SAME = (
    "the paper does not say how many trainers A_s has at once: if it has as few as A_e, it has the "
    "cost of scaling as well, so only pauses and uneven numbers of nodes lower U; the row for "
    "single nodes has the other reading"
)
WHY_SINGLE = (
    "if A_s has as many trainers at once as nodes, it has none of the cost of scaling: eight nodes "
    "give a ShuffleNet 90 % of the speed of eight single nodes, and an AlexNet 71 %; the row for "
    "same Pjmax has the other reading"
)

WINDOW_S = 6 * HOUR_S

FIRST_S = 60 * HOUR_S
"""The duration in Figure 15, in seconds."""


def times(setup: Setup) -> tuple[float, ...]:
    """Return the values of T_fwd to try."""
    return (10.0, FORWARD_S) if setup.quick else (10.0, 30.0, 60.0, 120.0, 180.0, 300.0)


def forward(setup: Setup) -> Experiment:
    """Reproduce Figures 7 to 9: the forward-looking time."""
    policies = {f"T_fwd {each:g} s": milp(forward_s=each) for each in times(setup)}
    policies["heuristic"] = HEURISTIC
    cases = {name: marked(setup, policy) for name, policy in policies.items()}

    def tables(found: Found) -> tuple[Table, ...]:
        ran = {name: found[case] for name, case in cases.items()}
        return (_preempted(setup), _costs(setup, ran), _uses(setup, ran))

    return Experiment(tuple(cases.values()), tables)


def marked(setup: Setup, policy: str, *, known: bool = False) -> ReplayRun:
    """Return the run of HPO with marks at window ends, and for two policies at all changes.

    Parameters
    ----------
    setup : Setup
    policy : str
    known : bool
        Whether the policy knows when each node will leave.
    """
    marks = set(window_ends(setup))
    if policy in {HEURISTIC, milp()}:
        marks.update(_instants(setup))
    marks_s = tuple(sorted(marks))
    return ReplayRun(setup.hpo, policy, setup.idle, setup.until_s, marks_s, known=known)


def dearer(setup: Setup, policy: str, times: float, *, known: bool = False) -> ReplayRun:
    """Return the run of HPO with the cost of rescaling multiplied by `times`.

    Parameters
    ----------
    setup : Setup
    policy : str
    times : float
    known : bool
        Whether the policy knows when each node will leave.
    """
    if times == 1:
        return marked(setup, policy, known=known)
    return ReplayRun(setup.hpo, policy, setup.idle, setup.until_s, rescale=times, known=known)


def multiples(setup: Setup) -> tuple[float, ...]:
    """Return the factors on the cost of rescaling in Figure 16."""
    return (1.0, 10.0) if setup.quick else (1.0, 2.0, 5.0, 10.0)


def window_ends(setup: Setup) -> list[float]:
    """Return the ends of the windows of six hours."""
    return [WINDOW_S * number for number in range(1, int(setup.until_s / WINDOW_S) + 1)]


def _instants(setup: Setup) -> list[float]:
    """Return the instants of all changes but the first one."""
    changes = itertools.islice(setup.idle.changes(), 1, None)
    return [c.time_s for c in itertools.takewhile(lambda c: c.time_s < setup.until_s, changes)]


def _preempted(setup: Setup) -> Table:
    rows = []
    for forward_s in (10.0, 60.0, 120.0, 170.0, 300.0):
        share = 100 * preempted(setup.idle, setup.until_s, forward_s)
        paper = 90.0 if forward_s == 170.0 else None
        why = (
            "this depends on the trace alone, and the paper used other 1,024 nodes; it does not "
            "say what counts as a preemption, here any idle node that leaves"
        )
        rows.append(figure(f"within {forward_s:g} s", share, paper, "%", why))
    title = "Figure 7a: changes after which a node leaves within T_fwd"
    return Table(title, tuple(rows))


def preempted(idle: Idle, until_s: float, forward_s: float) -> float:
    """Return the share of changes of idle nodes after which a node leaves within a time.

    Parameters
    ----------
    idle : Idle
    until_s : float
        End of the observed time.
    forward_s : float
        The time within which a node leaves.
    """
    changes = list(itertools.takewhile(lambda c: c.time_s < until_s, idle.changes()))
    follows, next_s = 0, math.inf
    for change in reversed(changes):
        follows += next_s - change.time_s <= forward_s
        if change.left:
            next_s = change.time_s
    return follows / len(changes)


Ran = Mapping[str, Replayed]


def _costs(setup: Setup, ran: Ran) -> Table:
    changes = len(_instants(setup)) + 1
    each = {name: one.lost.rescaling / changes for name, one in ran.items()}
    rows = [
        figure(
            f"rescaling cost per change, {name}",
            cost,
            {"T_fwd 10 s": 1.03e6 / 76, "heuristic": 1.03e6}.get(name),
            "samples",
            _WHY_COST,
        )
        for name, cost in each.items()
    ]
    ratio = each["heuristic"] / each["T_fwd 10 s"]
    rows.append(figure("heuristic / T_fwd 10 s", ratio, 76.0, "times", _WHY_COST))
    rows += [
        Row(f"return on investment, {name}", one.done.samples / one.lost.rescaling, None, "times")
        for name, one in ran.items()
    ]
    note = "return on investment: samples trained over samples lost to rescaling"
    return Table("Figures 7b and 8: rescaling cost by T_fwd", tuple(rows), note)


_WHY_COST = (
    "the paper used other 1,024 nodes, whose changes affect other numbers of nodes; here a pause "
    "that the next lost node or suspension cuts short costs only the time it lasted"
)


def hpo_use(setup: Setup, done: Done) -> UtilisationFigures:
    """Return U of HPO with at most ten trainers at once."""
    (offered,) = offered_node_s(setup.idle, (setup.until_s,))
    return equal_use(setup.hpo, done, offered, setup.until_s, AT_ONCE)


def _uses(setup: Setup, ran: Ran) -> Table:
    used = {name: hpo_use(setup, one.done) for name, one in ran.items()}
    rows = []
    for name, use in used.items():
        paper = {"heuristic": 75.0}.get(name)
        rows.append(figure(f"{name}, same Pjmax", use.same, paper, "%"))
        rows.append(figure(f"{name}, single nodes", use.single, paper, "%"))
    note = "the paper's curve rises from just above 78 % to just below 84 % and is flat from 120 s"
    return Table("Figure 9: U by T_fwd, HPO", tuple(rows), note)


def windows(setup: Setup) -> Experiment:
    """Reproduce Figures 10 and 11: U in windows of six hours, and the gain between changes."""
    cases = {"MILP": marked(setup, milp()), "heuristic": marked(setup, HEURISTIC)}

    def tables(found: Found) -> tuple[Table, ...]:
        ran = {name: found[case] for name, case in cases.items()}
        return (_in_windows(setup, cases, ran), _between(setup, cases, ran))

    return Experiment(tuple(cases.values()), tables)


def _at(case: ReplayRun, ran: Replayed, marks_s: Sequence[float]) -> list[Done]:
    """Return the outcome in each interval between marks, the first from the beginning."""
    places = {mark_s: number for number, mark_s in enumerate(case.marks_s)}
    reached = [Done(), *(ran.outcomes[places[mark_s]] for mark_s in marks_s)]
    return [
        Done(later.samples - before.samples, later.alone_s - before.alone_s)
        for before, later in itertools.pairwise(reached)
    ]


def window_uses(setup: Setup, case: ReplayRun, ran: Replayed) -> list[UtilisationFigures]:
    """Return U in each window in which some node is idle.

    Parameters
    ----------
    setup : Setup
    case : ReplayRun
        Its marks include the ends of the windows.
    ran : Replayed
        Its outcome.
    """
    marks = window_ends(setup)
    reached = (0.0, *offered_node_s(setup.idle, tuple(marks)))
    offered = [later - before for before, later in itertools.pairwise(reached)]
    return [
        equal_use(setup.hpo, part, nodes, WINDOW_S, AT_ONCE)
        for part, nodes in zip(_at(case, ran, marks), offered, strict=True)
        if nodes
    ]


def _in_windows(setup: Setup, cases: Mapping[str, ReplayRun], ran: Ran) -> Table:
    used = {name: window_uses(setup, cases[name], one) for name, one in ran.items()}
    rows = []
    for number, how in enumerate(("same Pjmax", "single nodes")):
        why = (WHY_SAME, WHY_SINGLE)[number]
        of = {name: [use[number] for use in each] for name, each in used.items()}
        best = statistics.fmean(sorted(of["MILP"])[-3:])
        gain = max(a / b - 1 for a, b in zip(of["MILP"], of["heuristic"], strict=True) if b)
        rows += [
            figure(f"mean, MILP, {how}", statistics.fmean(of["MILP"]), 80.0, "%", why),
            Row(f"mean, heuristic, {how}", statistics.fmean(of["heuristic"]), None, "%"),
            figure(f"mean of the best three, MILP, {how}", best, 90.0, "%", why),
        ]
    rows.append(figure("largest gain over the heuristic", 100 * gain, 32.0, "%", _WHY_GAIN))
    return Table("Figure 10: U in windows of six hours, HPO", tuple(rows), _windows_note(setup))


_WHY_GAIN = (
    "this is the single window in which nodes change most per trainer, and the paper used other "
    "nodes"
)


def _windows_note(setup: Setup) -> str:
    return f"{len(window_ends(setup))} windows; those without any idle node are left out"


def _between(setup: Setup, cases: Mapping[str, ReplayRun], ran: Ran) -> Table:
    marks = _instants(setup)
    done = {
        name: [part.samples for part in _at(cases[name], one, marks)] for name, one in ran.items()
    }
    both = list(zip(done["MILP"], done["heuristic"], strict=True))
    speedups = [ours / base for ours, base in both if base > 0]

    def share(count: int) -> float:
        return 100 * count / len(both)

    worse = share(sum(ours < base for ours, base in both))
    twice, five = (
        share(sum(ours > base and ours >= times * base for ours, base in both)) for times in (2, 5)
    )
    rows = (
        figure("worse than the heuristic", worse, 6.9, "%", _WHY_EACH),
        figure("twice as good", twice, 11.0, "%", _WHY_EACH),
        figure("five times as good", five, 3.0, "%", _WHY_EACH),
        Row("median speed-up", statistics.median(speedups), None, "times"),
    )
    return Table("Section 5.1.2: outcome from change to change, MILP over heuristic", rows)


_WHY_EACH = (
    "here a pause takes time, and may last beyond the next change or end before it; the paper's "
    "program counts its whole cost at the change. Between two changes that are 10 or 20 s apart, "
    "trainers under the heuristic, which pause most, may do almost nothing"
)


def networks(setup: Setup) -> Experiment:
    """Reproduce Figure 15: HPO of each network, over the first 60 hours."""
    until_s = min(FIRST_S, setup.until_s)
    names = ("AlexNet", "DenseNet") if setup.quick else BY_SCALING
    cases = {name: ReplayRun(name, milp(), setup.idle, until_s) for name in names}

    def tables(found: Found) -> tuple[Table, ...]:
        (offered,) = offered_node_s(setup.idle, (until_s,))
        rows = []
        for name, case in cases.items():
            use = equal_use(name, found[case].done, offered, until_s, AT_ONCE)
            paper = {"AlexNet": 75.0, "DenseNet": 83.0}.get(name)
            rows.append(figure(f"{name}, same Pjmax", use.same, paper, "%", WHY_SAME))
            rows.append(figure(f"{name}, single nodes", use.single, paper, "%", WHY_SINGLE))
        return (Table("Figure 15: U by network, HPO", tuple(rows)),)

    return Experiment(tuple(cases.values()), tables)


def rescaling(setup: Setup) -> Experiment:
    """Reproduce Figure 16: rescaling at a higher cost."""
    cases = {each: dearer(setup, milp(), each) for each in multiples(setup)}

    def tables(found: Found) -> tuple[Table, ...]:
        rows: list[Row] = []
        for each, case in cases.items():
            use = hpo_use(setup, found[case].done)
            rows += both(f"{each:g} times", use)
        (offered,) = offered_node_s(setup.idle, (setup.until_s,))
        for each, case in cases.items():
            rows += lost_rows(f"{each:g} times", found[case])
            held = 100 * found[case].held_node_s / offered
            rows.append(Row(f"{each:g} times, nodes that trainers hold", held, None, "%"))
        note = (
            "the paper's bars become only a little lower, far less than in proportion to the cost; "
            "ours fall more. A start from nothing is free in Eq. 16, and so for the policy, but "
            "takes R_up here: that costs most. From seven times on, R_up exceeds T_fwd, so "
            "trainers hardly grow and nodes stay idle, as the paper says"
        )
        return (Table("Figure 16: U by rescaling cost, HPO", tuple(rows), note),)

    return Experiment(tuple(cases.values()), tables)
