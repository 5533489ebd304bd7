"""The protocol's files, for jobs that speak it by themselves."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import Any

from account import attempt, note

from hpcext import documents, protocol
from hpcext.process import Process

assert attempt is not None
_state = attempt.checkpoint_dir / "state.json"
_registered_at = time.time()


def load() -> dict[str, Any]:
    """What was saved last."""
    attempt.checkpoint_dir.mkdir(parents=True, exist_ok=True)
    if not _state.exists():
        return {"step": 0, "sum": 0}
    document: dict[str, Any] = json.loads(_state.read_text())
    return document


def save(state: dict[str, Any]) -> bool:
    """Replace what was saved; on a full disk it stays, and training goes on."""
    try:
        documents.write_json(_state, state)
    except OSError:
        return False
    note("saved", step=state["step"])
    return True


def report(begin: int, step: int, saved: int, size: int, *, in_place: bool = False) -> None:
    """Tell the manager of progress."""
    document = {
        "schema": protocol.REPORT,
        "attempt": attempt.attempt,
        "op": attempt.op,
        "pid": os.getpid(),
        "start": Process.me().start,
        "world_size": size,
        "in_place": in_place,
        "step": step,
        "resumed_step": begin,
        "saved_step": saved,
        "done": float(step),
        "rate": None,
        "metrics": {},
        "registered_at": _registered_at,
        "restored_at": _registered_at,
        "first_step_at": time.time() if step > begin else None,
        "at": time.time(),
    }
    _write(attempt.report_dir / protocol.REPORT_FILE, document)
    if step == begin:
        news()


def acknowledge(step: int) -> bool:
    """Acknowledge a suspension; False if that cannot be written."""
    now = time.time()
    document = {
        "schema": protocol.SUSPENDED,
        "attempt": attempt.attempt,
        "op": attempt.op,
        "step": step,
        "manifest": _state.name,
        "agreed_at": now,
        "written_at": now,
        "acknowledged_at": now,
    }
    if not _write(attempt.report_dir / protocol.SUSPENDED_FILE, document):
        return False
    note("suspended", step=step)
    news()
    return True


def news() -> None:
    """Have the supervisor look."""
    if attempt.notify:
        attempt.notify.send(protocol.NEWS_SIGNAL)


def _write(path: Path, document: dict[str, Any]) -> bool:
    try:
        documents.write_json(path, document, durable=False)
    except OSError:
        return False
    return True
