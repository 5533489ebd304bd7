"""Variables of experiment trackers, so that the attempts of a job continue one run.

Weights & Biases makes the run of a new id, and resumes that of a known one
(https://docs.wandb.ai/models/runs/resuming). MLflow makes ids itself, and resumes the run in
``MLFLOW_RUN_ID`` if there is one (``mlflow.start_run``), so the training has to note its id in the
first attempt: its session does. What a user has set is never changed.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hpcext import documents, protocol
from hpcext.launch.launch_file import Launch
from hpcext.numerals import whole

WANDB_RUN, WANDB_RESUME, MLFLOW_RUN = "WANDB_RUN_ID", "WANDB_RESUME", "MLFLOW_RUN_ID"
MLFLOW_PARAMS = "MLFLOW_MAX_LOG_PARAMS"
"""Transformers' own (``MLflowCallback``). It logs all of its arguments, and MLflow refuses another
value of one in the same run, such as that of a batch on another number of GPUs."""

_MOST_CHARS = 256  # of an id of MLflow


def without_inherited(environ: Mapping[str, str]) -> dict[str, str]:
    """Return an environment without what was set here for the attempt in which a manager runs.

    Parameters
    ----------
    environ : Mapping of str to str
        That of a supervisor. Below an attempt of another job it has variables of that job's run.
    """
    left = dict(environ)
    run = left.get("HPCEXT_RUN_ID", "")
    if run and left.get(WANDB_RUN, "").partition("-")[0] == run:
        del left[WANDB_RUN]
        left.pop(WANDB_RESUME, None)
    noted = _noted(left.get("HPCEXT_CHECKPOINT_DIR", ""))
    if noted and left.get(MLFLOW_RUN) == noted:
        del left[MLFLOW_RUN]
    # MLflow takes its own variable out of the environment of a process.
    if noted and left.get(MLFLOW_PARAMS) == "0":
        del left[MLFLOW_PARAMS]
    return left


def variables(launch: Launch, environ: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that hold unless the user has set them.

    Parameters
    ----------
    launch : Launch
        The attempt's launch file.
    environ : Mapping of str to str
        The environment of the command so far.
    """
    if not protocol.wants_trackers(environ):
        return {}
    found = {}
    if run := launch.environ.get("HPCEXT_RUN_ID", ""):
        # Two processes must not write into one run, and on each node there may be one that would.
        found[WANDB_RUN] = f"{run}-node-{launch.index}" if launch.index else run
        found[WANDB_RESUME] = "allow"
    noted = "" if launch.index else _noted(launch.environ.get("HPCEXT_CHECKPOINT_DIR", ""))
    if noted and not _failed_at_once(_before(launch)):
        found |= {MLFLOW_RUN: noted, MLFLOW_PARAMS: "0"}
    return found


def restart_step(launch: Launch) -> str:
    """Return the step at which the attempt goes on, in decimal digits; empty if it is unknown.

    Parameters
    ----------
    launch : Launch
        The attempt's launch file.
    """
    if launch.attempt == 1:
        return "0"
    try:
        names = os.listdir(launch.environ.get("HPCEXT_CHECKPOINT_DIR") or os.devnull)
    except OSError:
        names = []
    saved = [key for name in names if (key := _committed(name)) is not None]
    if saved:
        return str(max(saved)[1])
    if any(name.endswith(".opened") for name in names):
        # A session has begun, and has saved nothing.
        return "0"
    step = _read(_before(launch) / protocol.SUSPENDED_FILE, protocol.SUSPENDED).get("step")
    return str(step) if type(step) is int and step >= 0 else ""


def _committed(name: str) -> tuple[int, int] | None:
    """Return the attempt and the step of a session's checkpoint; None if it is none."""
    said, _, rest = name.removeprefix("step-").partition(".attempt-")
    attempt, step = whole(rest.partition(".")[0]), whole(said)
    if not name.startswith("step-") or attempt is None or step is None:
        return None
    return attempt, step


def _noted(checkpoints: str) -> str:
    """Return the id of the run of MLflow that a training has noted; empty if there is none."""
    if not checkpoints:
        return ""
    try:
        said = documents.read_untrusted(Path(checkpoints, protocol.MLFLOW_NOTE))
    except (OSError, ValueError):
        return ""
    run = said.decode(errors="replace").strip()
    valid = run.isascii() and run.replace("-", "").replace("_", "").isalnum()
    return run if valid and len(run) <= _MOST_CHARS else ""


def _before(launch: Launch) -> Path:
    """Return the directory of the attempt before."""
    own = Path(launch.environ.get("HPCEXT_REPORT_DIR", ""))
    return own.with_name(f"attempt-{launch.attempt - 1:04d}")


def _failed_at_once(directory: Path) -> bool:
    """Return whether an attempt has failed by itself before its training began.

    That may be MLflow's refusal of the run: it was deleted, is in another experiment, or has
    another value of a parameter. A job must not fail again and again because of a run.
    """
    end = _read(directory / protocol.EXIT_FILE, protocol.EXIT)
    told = {"not_started", "checkpoint"} & end.keys() or any(
        end.get(key) for key in ("suspended", "kill_asked_at", "notice_at")
    )
    registered = os.path.lexists(directory / protocol.REPORT_FILE)
    return bool(end.get("exit_code")) and not told and not registered


def _read(path: Path, schema: str) -> dict[str, Any]:
    """Return a document of an attempt; empty if there is none."""
    try:
        return documents.read_json(path, schema)
    except (OSError, ValueError):
        return {}
