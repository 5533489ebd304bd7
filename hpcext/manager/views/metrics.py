"""Metrics of pilots for a monitoring system: numbers with names, by Prometheus's conventions.

Labels have few values: pilots that run or ended within a day, states, uses of time. Names of jobs
are not among them: there may be thousands, and they are their users' words.
(https://prometheus.io/docs/practices/naming/)
"""

from __future__ import annotations

import collections
from collections.abc import Iterable, Iterator
from typing import Literal, NamedTuple

from hpcext.batch.standing import Is
from hpcext.core import silence
from hpcext.core.errors import HpcextError
from hpcext.core.history.node_time import Use, parts
from hpcext.core.values import State
from hpcext.harvest import account as lease_account
from hpcext.manager.views.reading import Reading
from hpcext.manager.views.report import held_gpus, outlook_of


class Metric(NamedTuple):
    """The description of a metric.

    Attributes
    ----------
    kind : {"gauge", "counter"}
        A counter never falls, and its name ends with ``_total``.
    text : str
    label : str
        A label beside ``pilot``; empty for none.
    """

    kind: Literal["gauge", "counter"]
    text: str
    label: str = ""


METRICS = {
    "hpcext_pilot_up": Metric("gauge", "Whether a manager runs the pilot."),
    "hpcext_jobs": Metric("gauge", "Jobs of the pilot.", "state"),
    "hpcext_nodes": Metric("gauge", "Nodes that the pilot has."),
    "hpcext_gpus": Metric("gauge", "GPUs, or slots, that the pilot has."),
    "hpcext_gpus_held": Metric("gauge", "GPUs, or slots, that its jobs have."),
    "hpcext_utility_ratio": Metric(
        "gauge",
        "Mean goodput of each of its GPUs as a share of that of one alone, where jobs report it.",
    ),
    "hpcext_gpu_held_seconds_total": Metric("counter", "GPU time that the pilot had."),
    "hpcext_gpu_use_seconds": Metric(
        "gauge", "What this time went into; lost work is moved out of training.", "use"
    ),
    "hpcext_starts_total": Metric("counter", "Starts of jobs, including those after suspensions."),
    "hpcext_suspensions_total": Metric("counter", "Suspensions that jobs acknowledged."),
    "hpcext_rescales_total": Metric("counter", "Changes of size without stopping."),
    "hpcext_lost_steps_total": Metric("counter", "Training steps that had to be done again."),
    "hpcext_nodes_set_aside": Metric(
        "gauge", "Nodes where nothing is started, since attempts failed or a user says so."
    ),
    "hpcext_lost_seconds_total": Metric(
        "counter", "Work in seconds, at most, that trainings without a session had to do again."
    ),
    "hpcext_hangs_total": Metric("counter", "Trainings found to hang: they did no step for long."),
    "hpcext_hanging_jobs": Metric("gauge", "Jobs that seem to hang at present."),
    "hpcext_leases_total": Metric("counter", "Leases of idle nodes that the harvester took."),
}

UNREADABLE = "hpcext_unreadable_pilots"
"""A further metric, without a label: a gauge."""
UNREADABLE_TEXT = "Pilots whose journal cannot be read."


class Sample(NamedTuple):
    """One number: its metric, its pilot, and the value of its label."""

    name: str
    pilot: str
    label: str
    value: float


def samples(readings: Iterable[Reading | HpcextError]) -> Iterator[Sample]:
    """Yield all numbers, those of :data:`UNREADABLE` last."""
    unreadable = 0
    for each in readings:
        if isinstance(each, HpcextError):
            unreadable += 1
        else:
            yield from _of(each)
    yield Sample(UNREADABLE, "", "", unreadable)


def _of(reading: Reading) -> Iterator[Sample]:
    world, gpus, pilot = reading.world, len(reading.pilot.gpus), reading.pilot.id
    states = collections.Counter(job.state for job in world.jobs.values())
    for state in State:
        yield Sample("hpcext_jobs", pilot, state.value, states[state])
    for use in Use:
        seconds = reading.node_time.spent.get(use, 0.0) * gpus
        yield Sample("hpcext_gpu_use_seconds", pilot, use.value, seconds)
    # What a pilot without a manager had last, it has no more.
    nodes = [node for node in world.nodes.values() if node.gpus and reading.alive]
    records = world.records.values()
    values = {
        "hpcext_pilot_up": reading.alive,
        "hpcext_nodes": round(sum(parts(nodes).values())),
        "hpcext_gpus": sum(node.real_gpus for node in nodes),
        "hpcext_gpus_held": held_gpus(world),
        "hpcext_gpu_held_seconds_total": reading.node_time.held_s * gpus,
        "hpcext_starts_total": sum(job.attempt for job in world.jobs.values()),
        "hpcext_suspensions_total": sum(record.suspends for record in records),
        "hpcext_rescales_total": sum(record.rescales for record in records),
        "hpcext_lost_steps_total": sum(record.lost_steps for record in records),
        "hpcext_nodes_set_aside": len(world.aside),
        "hpcext_lost_seconds_total": sum(record.lost_s for record in records),
        "hpcext_hangs_total": sum(record.hangs for record in records),
        "hpcext_hanging_jobs": sum(map(bool, map(silence.said, world.jobs.values()))),
    }
    if outlook := outlook_of(world):
        values["hpcext_utility_ratio"] = outlook.utility
    if reading.pilot.harvest is not None:
        values["hpcext_leases_total"] = lease_account.load(reading.directory).leases
    if reading.standing.state is Is.UNKNOWN:
        # Neither up nor down.
        del values["hpcext_pilot_up"]
    for name, value in values.items():
        yield Sample(name, pilot, "", float(value))
