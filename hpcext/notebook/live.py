"""A pilot as HTML and as text, and an output cell that follows it."""

from __future__ import annotations

import functools
import importlib.resources
import math
import re
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from hpcext.cli import verbs
from hpcext.core.errors import HpcextError, NoManagerError, refused
from hpcext.core.values import Job
from hpcext.dashboard import page
from hpcext.dashboard.document import pilot_view
from hpcext.manager import standing
from hpcext.manager.views import reading
from hpcext.manager.views.reading import REPLAY_SHARE, Follower, Reading
from hpcext.notebook.answers import Kept
from hpcext.render.markup import paragraph
from hpcext.text import clean, counted

UPDATE_S = 2.0
"""Seconds between two updates; more if reading the pilot takes long."""

QUEUE_S = 20.0
"""Seconds between two updates while the pilot waits in the queue of a batch system."""

MOST_JOBS = page.MOST_IN_EXCERPT
"""The largest number of jobs to show."""

MOST_LINES = 20
"""The largest number of lines below the table of jobs."""


class Handle(Protocol):
    """An output cell that can be changed: what is needed of IPython's ``DisplayHandle``."""

    def update(self, obj: Any, *, raw: bool) -> None:
        """Show something else."""


class Look(NamedTuple):
    """What was seen of a pilot.

    Attributes
    ----------
    text, html : str
    rest_s : float
        Seconds until it is worth another look; infinite if nothing more will happen.
    """

    text: str
    html: str
    rest_s: float

    def bundle(self) -> dict[str, str]:
        """Return it as IPython displays it."""
        return {"text/plain": self.text, "text/html": self.html}


class View:
    """What a notebook shows of a pilot: what ``hpcext status`` says, and who had which GPU.

    Parameters
    ----------
    directory : pathlib.Path
    """

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._follower = Follower(directory)

    def look(self) -> Look:
        """Look at it now; an error is shown in its place."""
        begun_s = time.monotonic()
        try:
            if not self._follower.begun():
                why = self._waits()
                return _look(why, paragraph(why), QUEUE_S)
            found = self._follower.read()
            if not found.alive:
                # Its manager may have written its last facts since they were read, and ended.
                found = reading.read(self._directory)
        except (HpcextError, OSError) as error:
            why = str(refused(error) if isinstance(error, OSError) else error)
            return _look(why, paragraph(why, "trouble"), math.inf)
        text, html = _shown(found)
        took_s = time.monotonic() - begun_s
        return _look(text, html, max(UPDATE_S, REPLAY_SHARE * took_s) if found.alive else math.inf)

    def follow(self, handle: Handle, seen: Look, wanted: Callable[[], bool]) -> None:
        """Keep an output cell up to date until nobody manages the pilot any more.

        Parameters
        ----------
        handle : Handle
        seen : Look
            What the cell shows.
        wanted : callable
            Tells whether the cell is still to be kept so.
        """
        while math.isfinite(seen.rest_s):
            time.sleep(seen.rest_s)
            if not wanted():
                return
            seen = self.look()
            try:
                handle.update(seen.bundle(), raw=True)
            except Exception:  # What it is depends on the frontend, which has gone.
                return

    def _waits(self) -> str:
        """Return why there is nothing to see yet."""
        found = standing.of_pilot(self._directory)
        if found.state.ended:
            raise NoManagerError("it has never run", where=str(self._directory), do=found.do)
        return f"{found.what}; {found.do}" if found.do else found.what


def _shown(found: Reading) -> tuple[str, str]:
    """Return a pilot as text and as HTML."""
    out = Kept()
    jobs = list(found.world.jobs.values())
    verbs.show(found, sorted(jobs, key=_interest)[:MOST_JOBS], out)
    lines = out.lines[:MOST_LINES]
    if more := len(out.lines[MOST_LINES:]):
        lines.append(f"{counted(more, 'more line')}: hpcext status")
    text = f"pilot {found.pilot.id}\n{out.text()}"
    if more := len(jobs[MOST_JOBS:]):
        text += f"\n{more} more; hpcext status shows all"
    return text, page.excerpt(pilot_view(found), lines)


def _interest(job: Job) -> tuple[bool, ...]:
    """Return a key that sorts jobs: running ones first, then failed, waiting and completed ones."""
    failed = job.state.final and not job.done
    return not job.state.active, not failed, job.state.final


def _look(text: str, html: str, rest_s: float) -> Look:
    # Notebooks would typeset what stands between dollar signs in names.
    kinds = "hpcext tex2jax_ignore mathjax_ignore"
    body = f'<div class="{kinds}"><style>{style()}</style>\n{html}</div>'
    return Look("\n".join(map(clean, text.split("\n"))), body, rest_s)


@functools.cache
def style() -> str:
    """Return the style sheet of the dashboard, made to hold within a part of a page alone."""
    sheet = importlib.resources.files("hpcext.dashboard") / "static" / "style.css"
    css = sheet.read_text(encoding="utf-8")
    light, dark = re.findall(r":root (\{.*?\})", css, re.DOTALL)
    css = css.replace(":root", "&").replace("\nbody {", "\n& {")
    # JupyterLab has a theme of its own choice; other programs follow the system's.
    css += f'[data-jp-theme-light="true"] & {light}\n[data-jp-theme-light="false"] & {dark}\n'
    css += "& { padding: .8rem 1rem; overflow-x: auto }\n"
    css += "table { table-layout: auto; font: inherit; color: inherit }\n"
    css += "tbody tr { background: none }\n"
    # Named thrice, it prevails over what JupyterLab says of tables.
    return f".hpcext.hpcext.hpcext {{\n{css}}}"
