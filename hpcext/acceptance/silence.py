"""The scenario of a batch system that does not answer for a while."""

from __future__ import annotations

import math
import shlex
import time
from pathlib import Path

from hpcext.acceptance.scenario import FailedError, NotTriedError, Passed, Scenario
from hpcext.acceptance.stage import Stage
from hpcext.acceptance.trial import LEAD_S, Suspendable
from hpcext.acceptance.verbs import GOES_ON
from hpcext.text import clean

MARGIN_S = 20.0
"""Seconds before the suspension of the job at which the batch system must answer again."""


def minutes(cut_s: float) -> int:
    """Return a time limit, in minutes, that is reached only after the batch system answers again.

    Parameters
    ----------
    cut_s : float
        The seconds without answers.
    """
    return math.ceil((cut_s + MARGIN_S + LEAD_S) / 60)


_WRAPPER = """#!/bin/sh
if [ -e {cut} ]; then
    echo >>{asked}
    echo "{name}: {silent}" >&2
    exit 255
fi
PATH={path}
export PATH
exec {name} "$@"
"""

UNTRUE = ("forgotten by", "no manager runs", "not running here")
"""Words that must not be said of a running job because the batch system does not answer."""


def silence(stage: Stage, scenario: Scenario) -> Passed:
    """Check that a job is suspended before its limit all the same, and nothing untrue is said."""
    place = stage.place("cut")
    cut, path = _wrap_queries(stage, place)
    cut.touch()
    limit = minutes(stage.terms.cut_s)
    it = Suspendable(stage, scenario, minutes=limit, environ={"PATH": path})
    stage.begins(it.job, "its begin")
    latest_s = time.monotonic() + 60 * limit - LEAD_S - MARGIN_S
    it.runs()
    until_s = min(latest_s, time.monotonic() + stage.terms.cut_s)
    words = stage.hpcext("pilot", "list", path=path)
    stage.pause(max(0.0, until_s - time.monotonic()))
    asked = (place / "asked").exists()
    cut.unlink()
    it.again()
    it.ends()
    seen = it.judged("it was suspended in time, and went on in its second run")
    lines = [line for line in words.splitlines() if any(each in line for each in UNTRUE)]
    if lines:
        raise FailedError(f"hpcext pilot list says about a running job: {clean(lines[0])[:100]}")
    if not asked:
        raise NotTriedError("its manager has another PATH than its job, and finds other commands")
    return seen


def _wrap_queries(stage: Stage, place: Path) -> tuple[Path, str]:
    """Create commands that fail while a file exists; return it, and a PATH that finds them."""
    plain = stage.environ().get("PATH", "/usr/bin:/bin")
    cut, folder = place / "cut", place / "bin"
    folder.mkdir()
    for name in stage.system.queries:
        text = _WRAPPER.format(
            cut=shlex.quote(str(cut)),
            asked=shlex.quote(str(place / "asked")),
            name=name,
            silent=stage.system.silent,
            path=shlex.quote(plain),
        )
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)
    return cut, f"{folder}:{plain}"


def scenarios(cut_s: float) -> list[Scenario]:
    """Return the scenario.

    Parameters
    ----------
    cut_s : float
        The seconds without answers.
    """
    limit = f"a time limit of {minutes(cut_s)} min, suspended {LEAD_S} s before it"
    tried = f"no answers for {cut_s:g} s, {limit}"
    expected = f"{GOES_ON}; nothing unknown is reported as a fact"
    return [Scenario("silence", tried, expected, silence)]
