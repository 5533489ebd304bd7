"""What becomes of the only training of a job, called ``only``, whose last step of 40 is gated."""

from __future__ import annotations

from site_of_test import Site, wait_for
from slurm_cluster import Cluster
from test_pilot import again
from test_pilot_ends import requeued
from test_suspendable import Batch


def suspended_and_resumed(place: Site) -> None:
    """Have the user of a pilot suspend it and resume it."""
    place.run_until_done("suspend", str(place.pilot), "only")
    why = ("why", str(place.pilot), "only")
    wait_for(lambda: "is suspended" in place.run(*why).out, "suspension")
    assert place.run("resume", str(place.pilot), "only").code == 0
    again(place, "1", 2)


def preempted_it_goes_on(slurm: Cluster, place: Site, batch: Batch) -> None:
    """Preempt its job, which is on node n1: each step is done once."""
    batch.preempt("n1")
    requeued(slurm, batch.id)
    place.open("only")
    batch.wait_is("COMPLETED")
    assert batch.counted() == list(range(1, 41))
