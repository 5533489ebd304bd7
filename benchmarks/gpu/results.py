"""The results of the benchmarks on a GPU: a document, and tables of it."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from part import NOT_ASKED, Part

SCHEMA = "hpcext.gpu/1"


def read(path: Path, *, given: bool) -> dict[str, Any]:
    """Read the results of an earlier run, or begin new ones.

    Parameters
    ----------
    path : pathlib.Path
    given : bool
        Whether somebody named that file, which must be there then.

    Raises
    ------
    OSError, ValueError
        It cannot be read, or is something else.
    """
    if not given and not path.exists():
        return {"schema": SCHEMA, "parts": {}}
    try:
        found = json.loads(path.read_text())
    except ValueError as error:
        raise ValueError(f"{path}: {error}; --out another directory begins anew") from None
    if not isinstance(found, dict) or found.get("schema") != SCHEMA:
        raise ValueError(f"{path}: has no results of these benchmarks (schema {SCHEMA})")
    return found


def of_part(
    part: Part,
    answers: Mapping[str, dict[str, Any]],
    state: str,
    why: str,
    took_s: float,
    *,
    real: bool,
) -> dict[str, Any]:
    """Return what became of a part.

    Parameters
    ----------
    part : Part
    answers : Mapping of str to dict
        By question.
    state, why : str
        How it ended.
    took_s : float
    real : bool
        Whether that was on a GPU.
    """
    reason = why or "the part ended without an answer"
    silent = {"verdict": NOT_ASKED, "says": reason, "figures": {}}
    return {
        "title": part.title,
        "state": state,
        "why": why,
        "took_s": round(took_s, 1),
        "real": real,
        "machine": _machine(),
        "answers": {
            name: {"asks": asks, **{key: answers.get(name, silent)[key] for key in silent}}
            for name, asks in part.questions.items()
        },
    }


def _machine() -> dict[str, Any]:
    asked = ["git", "-C", str(Path(__file__).parent), "rev-parse", "--short", "HEAD"]
    try:
        commit = subprocess.run(asked, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        commit = None
    return {
        "at": time.strftime("%Y-%m-%d %H:%M", time.gmtime()),
        "python": sys.version.split()[0],
        "kernel": platform.release(),
        "cores": len(os.sched_getaffinity(0)),
        "commit": commit,
    }


def is_whole(found: Mapping[str, Any], rehearse: bool) -> bool:
    """Return whether a part need not run again: it ran to its end, on a GPU unless this is none."""
    return found["state"] == "done" and (found["real"] or rehearse)


def kept(before: dict[str, Any] | None, now: dict[str, Any]) -> dict[str, Any]:
    """Return the results to keep: an answer is not given up for none, nor a real for a rehearsed.

    Parameters
    ----------
    before : dict or None
        Of an earlier run.
    now : dict
    """
    if before is None or (now["real"] and not before["real"]):
        return now
    if before["real"] and not now["real"]:
        return before
    answers = {
        name: before["answers"].get(name, answer) if answer["verdict"] == NOT_ASKED else answer
        for name, answer in now["answers"].items()
    }
    return {**now, "answers": answers}


def write(out: Path, document: Mapping[str, Any], names: Iterable[str]) -> None:
    """Put document and tables in place."""
    for name, text in (("gpu.json", json.dumps(document, indent=1)), ("gpu.md", "")):
        draft = out / f"{name}.new"
        draft.write_text((text or table(document, names)) + "\n")
        draft.replace(out / name)


def table(document: Mapping[str, Any], names: Iterable[str]) -> str:
    """Return tables of all parts, and which of them were real."""
    lines: list[str] = []
    real: list[str] = []
    other: list[str] = []
    for name in names:
        found = document["parts"].get(name)
        if found is None:
            other.append(f"{name} (not run)")
            continue
        (real if found["real"] and found["state"] != "skipped" else other).append(
            name if found["real"] else f"{name} (rehearsed by stand-ins)"
        )
        ended = found["state"] + (f", {found['why']}" if found["why"] else "")
        kind = "" if found["real"] else ", **rehearsed, no GPU**"
        lines += [f"### {found['title']}", "", f"{ended}, {found['took_s']} s{kind}", ""]
        lines += ["| question | answer | figures |", "|---|---|---|"]
        for answer in found["answers"].values():
            said = f"{answer['verdict']}{': ' if answer['says'] else ''}{answer['says']}"
            lines.append(
                f"| {_cell(answer['asks'])} | {_cell(said)} | {_cell(_told(answer['figures']))} |"
            )
        lines.append("")
    lines.append(f"Real: {', '.join(real) or 'none'}. Not real: {', '.join(other) or 'none'}.")
    return "\n".join(lines)


def _told(figures: Mapping[str, Any]) -> str:
    return "; ".join(f"{name} {_number(value)}" for name, value in figures.items())


def _number(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    if isinstance(value, list):
        return ", ".join(map(_number, value))
    if isinstance(value, dict):
        return "(" + ", ".join(f"{key} {_number(each)}" for key, each in value.items()) + ")"
    return str(value)


def _cell(text: str) -> str:
    return " ".join(text.replace("|", "/").split())
