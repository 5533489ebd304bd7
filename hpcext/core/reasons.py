"""The reason why a job waits or runs as it does, in words."""

from __future__ import annotations

from hpcext.core import silence
from hpcext.core.saving import said
from hpcext.core.values import Job
from hpcext.text import counted

ONCE_SAVED = "as soon as it can save its state; it has no session yet"
"""When something is done that would stop a job."""


def reason(job: Job) -> str:
    """Explain why a job waits or runs as it does, and which of its user's requests are pending."""
    unsaved = said(job)
    # Of one that has declined a suspension, the rest would say that it is suspended.
    rest = job.why if not unsaved or job.goal is not None else ""
    return "; ".join(part for part in (silence.said(job), unsaved, rest, _to_come(job)) if part)


def _to_come(job: Job) -> str:
    if job.hold_deferred:
        return f"will be suspended {ONCE_SAVED}"
    if job.stated and job.sessionless and job.has not in job.sizes:
        return f"gets {counted(job.optimal, 'GPU')} {ONCE_SAVED}"
    return ""
