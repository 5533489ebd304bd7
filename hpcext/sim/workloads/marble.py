"""MARBLE's jobs (Han et al., CCGRID 2020): its sets, and the speeds of its networks.

Figure 2, the scaling curves, has no numbers in the text. The text about it (sections IV-A, V-A,
V-C, VII-B) leaves a range for each point. These ranges are given here, and a curve has each point
in its range, in the middle or at random. The speeds on six GPUs follow from the times of the sets
under LSF (section VII-B). MARBLE's own times are never used for a speed.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

from hpcext.core.estimate import Estimate
from hpcext.core.values import Job
from hpcext.sim.replay.physics import Physics

GPUS = 6
"""GPUs of a node of Summit."""

WORKERS = 8
"""Worker nodes of the sets that run on several; one more is the parameter server (§VII-B2)."""

LSF_S = {1: 958.0, 2: 940.0, 3: 707.0}
MARBLE_S = {1: 496.0, 2: 608.0, 3: 501.0}
"""Completion times of sets 1 to 3 in seconds, under LSF and MARBLE (section VII-B1)."""

EPOCH = 39_936.0
"""Steps of each job in sets 7 to 9 (section VII-C)."""

R50, I3, R101, VGG = "ResNet-50", "Inception-v3", "ResNet-101", "VGG-16"

SETS: Mapping[int, tuple[tuple[str, float], ...]] = {
    1: ((R50, 800), (R50, 3600), (I3, 1400)),
    2: ((I3, 2400), (R50, 600), (R101, 1000)),
    3: ((R50, 900), (I3, 2000), (VGG, 800)),
    4: ((R50, 9000), (I3, 1200), (I3, 4200), (R50, 6000), (R101, 2000)),
    5: ((I3, 4800), (I3, 9000), (VGG, 9600), (R50, 3000), (I3, 3000)),
    6: ((R50, 8400), (VGG, 4800), (I3, 9300), (R50, 2000), (R101, 3000)),
    7: ((R101, EPOCH), (I3, EPOCH), (I3, EPOCH), (VGG, EPOCH)),
    8: ((I3, EPOCH), (R50, EPOCH), (VGG, EPOCH), (R50, EPOCH)),
    9: ((I3, EPOCH), (R50, EPOCH), (R50, EPOCH), (R101, EPOCH)),
}
"""Tables II to IV: network and steps, in the order of submission."""

ONE_NODE = (1, 2, 3)
"""The sets that run on one node; the others run on :data:`WORKERS`."""

BEST = {R50: 3, I3: 4, R101: 3, VGG: 5}
"""The number of GPUs on which each network is fastest: Figure 5; sections V-A and VII-B1."""

PARAMETERS = {R50: 25e6, I3: 24e6, R101: 45e6, VGG: 138e6}
"""Parameters of the networks (Table I)."""

LINK = 100e9 / 8
"""Bytes per second of the network (section VII-A)."""

RATIO = 142 / 218
"""Speed of Inception-v3 relative to ResNet-50: the only figure that neither LSF's times nor the
text gives. Here it is that of TensorFlow's own benchmark of the time (tensorflow.org/performance/
benchmarks: training on real data, one P100); random values are within 15 % of it."""

MOST_GAIN = 0.0291
"""Largest share of time that the best number of GPUs saves against six (section V-A: "the maximum
value of [alpha] is 2.91%"); it is VGG-16's, on five."""

SUSPEND_S = 66.0
"""Seconds of a suspension and resumption. Section VII-D1: they take 13.2 % of the time of set 1, in
which there can be one (65 s), and 26.6 % of that of set 3, in which there are two (133 s)."""

SIZES = tuple(range(1, GPUS + 1))

Pick = Callable[[float, float], float]
"""A function that chooses a point in a range."""


class Networks(NamedTuple):
    """The speeds of each network on one node, in steps per second by number of GPUs."""

    speed: Mapping[str, Mapping[int, float]]

    def on_workers(self, network: str, workers: int, gpus: int) -> float:
        """Return steps per second of asynchronous workers with a parameter server (§VII-B2).

        A worker fetches the parameters, computes, and sends as many back; the server's link carries
        the traffic of all workers in each direction.

        Parameters
        ----------
        network : str
        workers, gpus : int
            Nodes, and GPUs on each.
        """
        send_s = 4 * PARAMETERS[network] / LINK
        return min(workers / (1 / self.speed[network][gpus] + 2 * send_s), 1 / send_s)


def middle(low: float, high: float) -> float:
    """Return the middle of a range."""
    return (low + high) / 2


def at_random(seed: int, number: int) -> Networks:
    """Return random curves that agree with the text, by a seed and a number."""
    return networks(random.Random(f"marble/{seed}/{number}").uniform)


def networks(pick: Pick = middle) -> Networks:
    """Return curves that agree with the text, and exactly with LSF's times."""
    shapes = _shapes(pick)
    on_six = _on_six(RATIO if pick is middle else pick(0.85 * RATIO, 1.15 * RATIO))
    return Networks(
        {
            name: {gpus: on_six[name] * share for gpus, share in shape.items()}
            for name, shape in shapes.items()
        }
    )


def _on_six(ratio: float) -> dict[str, float]:
    """Return steps per second on six GPUs: LSF runs the jobs of a set one after the other."""
    # 800 + 3600 steps of ResNet-50 and 1400 of Inception-v3 in 958 s, and so on.
    r50 = (4400 + 1400 / ratio) / LSF_S[1]
    i3 = ratio * r50
    r101 = 1000 / (LSF_S[2] - 2400 / i3 - 600 / r50)
    vgg = 800 / (LSF_S[3] - 900 / r50 - 2000 / i3)
    return {R50: r50, I3: i3, R101: r101, VGG: vgg}


def _shapes(pick: Pick) -> dict[str, dict[int, float]]:
    """Return speeds relative to that on six GPUs."""
    # "ResNet-50 on two GPUs achieves substantial speedup as compared to using a single GPU.
    # However, training using 3 or 4 GPUs does not give substantial performance improvement".
    top = _top(pick)
    two = top * pick(0.80, 0.97)
    r50 = {1: two / pick(1.5, 2.0), 2: two, 3: top, **_falling(4, top, pick), 6: 1.0}
    # "training using more than 3 GPUs on a single node is not scalable"; fastest on four.
    top = _top(pick)
    three = top * pick(0.85, 1.0)
    two = three * pick(0.70, 0.95)
    i3 = {1: two / pick(1.5, 2.0), 2: two, 3: three, 4: top, **_falling(5, top, pick), 6: 1.0}
    # Section VII-B1: on two GPUs the third job of set 2 has not ended when the first one does. So
    # three GPUs are almost proportionally faster than two.
    top = _top(pick)
    two = top * pick(2 / 3, 0.72)
    r101 = {1: two / pick(1.5, 2.0), 2: two, 3: top, **_falling(4, top, pick), 6: 1.0}
    # "keeps increasing with 3, 4, or 5 GPUs"; "a training throughput gain of up to 3.3 times", six
    # against one; and no speed-up exceeds the number of GPUs.
    top = 1 / (1 - MOST_GAIN)
    two = pick(1.7, 2.0) / 3.3
    three = two * pick(1.3, 1.5)
    four = pick(max(three, top * 4 / 5), min(three * 4 / 3, top))
    vgg = {1: 1 / 3.3, 2: two, 3: three, 4: four, 5: top, 6: 1.0}
    return {R50: r50, I3: i3, R101: r101, VGG: vgg}


def _top(pick: Pick) -> float:
    """Return the relative speed on the best number of GPUs."""
    return 1 / (1 - pick(0.0, MOST_GAIN))


def _falling(first: int, top: float, pick: Pick) -> dict[int, float]:
    """Return speeds that fall from the best number of GPUs to six."""
    found, below = {}, top
    for gpus in range(first, GPUS):
        below = pick(1.0, below)
        found[gpus] = below
    return found


def nodes_of(number: int) -> int:
    """Return the number of worker nodes of each job in a set."""
    return 1 if number in ONE_NODE else WORKERS


def speed_of(number: int, network: str, known: Networks) -> dict[int, float]:
    """Return steps per second by total GPUs of a job that has all nodes of its set.

    Parameters
    ----------
    number : int
        Number of the set.
    network : str
    known : Networks
    """
    if number in ONE_NODE:
        return dict(known.speed[network])
    return {WORKERS * gpus: known.on_workers(network, WORKERS, gpus) for gpus in SIZES}


def stating(speed: Mapping[int, float], steps: float) -> Estimate:
    """Return the estimate of a job that states its speeds, its work and the cost of a change.

    Parameters
    ----------
    speed : Mapping[int, float]
        Steps per second by number of GPUs.
    steps : float
        Steps of the job.
    """
    return Estimate(stated=speed, work=steps, up_s=SUSPEND_S, down_s=SUSPEND_S)


def set_job(number: int, order: int, network: str, known: Estimate) -> Job:
    """Return a job of a set, which runs on its nodes with any number of GPUs on each.

    Parameters
    ----------
    number : int
        Number of the set.
    order : int
        Position in the set, from 1.
    network : str
    known : Estimate
        The facts that the job states.
    """
    nodes = nodes_of(number)
    return Job(
        str(order), network, order, SIZES, BEST[network], nodes=(nodes, nodes), estimate=known,
        suspend_timeout_s=10 * SUSPEND_S,
    )  # fmt: skip


def physics_of(speed: Mapping[int, float], steps: float) -> Physics:
    """Return the physics of a job in a set.

    All of the cost is in the suspension, because the cost of a first start is part of LSF's times.

    Parameters
    ----------
    speed : Mapping[int, float]
        Steps per second by number of GPUs.
    steps : float
        Steps of the job.
    """
    return Physics(speed, steps, suspend_s=SUSPEND_S)


def set_jobs(number: int) -> Iterator[tuple[Job, Physics]]:
    """Yield the jobs of a set; they state curves in the middle of all ranges."""
    known = networks()
    for order, (network, steps) in enumerate(SETS[number], start=1):
        speed = speed_of(number, network, known)
        job = set_job(number, order, network, stating(speed, steps))
        yield job, physics_of(speed, steps)
