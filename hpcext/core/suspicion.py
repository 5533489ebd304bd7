"""Nodes that are set aside: jobs fail there that go well elsewhere.

A broken node is a trap: whatever begins there soon fails, so it is always free, and takes job after
job. NVIDIA's resiliency extension excludes such a node from a restarted job; here it is set aside
for the whole pilot, with a reason, until its user says otherwise.

An attempt goes well where it does a step, or completes. Failures on a node count from the last time
that an attempt went well there, and only those that are nobody's wish. A job that has not gone well
elsewhere since proves nothing: it may fail everywhere.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from hpcext.text import counted, listed

JOBS = 2
"""Jobs that failed on a node and have gone well elsewhere since, for which it is set aside."""

_KEPT = 20
"""Failures that are kept of a node: some more than are ever needed."""


class Suspicion(msgspec.Struct, frozen=True, omit_defaults=True):
    """What speaks against a node.

    Attributes
    ----------
    failed : tuple of str
        Ids of the jobs of the attempts that failed there in a row, one after the other.
    went_on : frozenset of str
        Those of the jobs that have gone well elsewhere since.
    """

    failed: tuple[str, ...] = ()
    went_on: frozenset[str] = frozenset()

    @property
    def confirmed(self) -> bool:
        """Whether the node is to be set aside."""
        return len(self.went_on) >= JOBS


Suspicions = Mapping[str, Suspicion]
"""Node → what speaks against it."""


def after_failure(known: Suspicions, job: str, nodes: Iterable[str]) -> dict[str, Suspicion]:
    """Return what speaks against nodes once an attempt has failed on some.

    Parameters
    ----------
    known : Mapping of str to Suspicion
    job : str
        The id of its job.
    nodes : iterable of str
        All that it had: which of them is to blame is unknown.
    """
    found = dict(known)
    for name in nodes:
        before = found.get(name, Suspicion())
        failed = (*before.failed, job)[-_KEPT:]
        found[name] = Suspicion(failed, before.went_on - {job})
    return found


def after_success(known: Suspicions, job: str, nodes: Iterable[str]) -> dict[str, Suspicion]:
    """Return what speaks against nodes once an attempt has gone well on some.

    Parameters
    ----------
    known : Mapping of str to Suspicion
    job : str
        The id of its job.
    nodes : iterable of str
    """
    well = set(nodes)
    found = {}
    for name, before in known.items():
        if name in well:
            continue
        went_on = before.went_on | ({job} & set(before.failed))
        found[name] = Suspicion(before.failed, went_on)
    return found


def why(said: Suspicion, names: Mapping[str, str]) -> str:
    """Explain to a user why a node is set aside.

    Parameters
    ----------
    said : Suspicion
    names : Mapping of str to str
        Id of a job → its name.
    """
    went_on = [names.get(job, job) for job in dict.fromkeys(said.failed) if job in said.went_on]
    failures = counted(len(said.failed), "attempt")
    return f"{failures} in a row failed there, and {listed(went_on)} went on elsewhere"
