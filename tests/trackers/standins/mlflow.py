"""What stands for MLflow where it is not installed, as its documentation says of ``start_run``.

If ``MLFLOW_RUN_ID`` is set, the run of that id is resumed, and the variable is taken out of the
environment; it is an error if there is none. Otherwise a run is made, with an id of its own. A
parameter keeps its value. Runs are files in the directory ``MLFLOW_TRACKING_URI`` names:
https://mlflow.org/docs/latest/api_reference/python_api/mlflow.html#mlflow.start_run
"""

from __future__ import annotations

import json
import os
import types
import uuid
from pathlib import Path

_RUNS = Path(os.environ["MLFLOW_TRACKING_URI"].removeprefix("file:"), "standin")
_active = []


def start_run():
    _RUNS.mkdir(parents=True, exist_ok=True)
    run_id = os.environ.pop("MLFLOW_RUN_ID", "")
    if run_id and not (_RUNS / run_id).exists():
        raise RuntimeError(f"Run '{run_id}' not found")
    run_id = run_id or uuid.uuid4().hex
    (_RUNS / run_id).touch()
    info, data = types.SimpleNamespace(run_id=run_id), types.SimpleNamespace(tags={})
    _active.append(types.SimpleNamespace(info=info, data=data))
    return _active[-1]


def active_run():
    return _active[-1] if _active else None


def log_param(key, value):
    for line in _lines():
        if line[:2] == ["param", key] and line[2] != value:
            raise RuntimeError(f"Changing param values is not allowed: {key} is {line[2]}")
    _write("param", key, value)


def log_metric(key, value, step):
    _write("metric", key, value, step)


def _path():
    return _RUNS / active_run().info.run_id


def _lines():
    return [json.loads(line) for line in _path().read_text().splitlines()]


def _write(*words):
    with _path().open("a") as file:
        file.write(json.dumps(words) + "\n")
