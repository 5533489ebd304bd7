"""The files that jobs need from other pilots' directories."""

from __future__ import annotations

import contextlib
import os
import re
from pathlib import Path

from hpcext.core.errors import HpcextError
from hpcext.executors.attempt.launch_file import CHECKPOINT
from hpcext.manager import directory as pilots
from hpcext.manager.cleaning.places import entries
from hpcext.manager.submissions import Submissions
from hpcext.manager.views.reading import Follower


class Needs:
    """The places that jobs of all pilots need, which may lie in another pilot.

    Parameters
    ----------
    state_dir : pathlib.Path
    """

    def __init__(self, state_dir: Path) -> None:
        self._of = {path: _needs(path) for path, _ in pilots.known(state_dir)}

    def forget(self, directory: Path) -> None:
        """Leave out a pilot that no longer exists."""
        self._of.pop(directory, None)

    def who(self, place: Path) -> str:
        """Return the pilot that needs something in a place and is not itself there; empty: none."""
        inside = f"{os.path.realpath(place)}{os.sep}"
        for path, (places, words) in self._of.items():
            own = f"{os.path.realpath(path)}{os.sep}"
            if inside.startswith(own):
                continue
            if any(f"{each}{os.sep}".startswith(inside) for each in (own, *places)):
                return path.name
            names = "|".join(re.escape(each) for each in {inside[:-1], str(place)})
            # Not a longer name that begins alike.
            named = re.compile(rf"(?:{names})(?![\w.-])")
            if any(map(named.search, words)):
                return path.name
        return ""


def _needs(directory: Path) -> tuple[set[str], set[str]]:
    """Return where a pilot's checkpoints really are, and words of its jobs that name places."""
    own = f"{os.path.realpath(directory)}{os.sep}"
    places: set[str] = set()
    for job in entries(directory / "jobs"):
        for each in (job / CHECKPOINT, *entries(job / CHECKPOINT)):
            real = os.path.realpath(each)
            if not f"{real}{os.sep}".startswith(own):
                places.add(real)
    words: set[str] = set()
    with contextlib.suppress(HpcextError):
        submissions = Submissions(directory / "submissions")
        for job_id in unfinished(directory, submissions):
            spec = submissions.spec(job_id)
            every = (*spec.command, *spec.env.values(), spec.workdir)
            words |= {os.path.join(spec.workdir, word) for word in every if os.sep in word}
            words |= {os.path.normpath(each) for each in words}
    return places, words


def unfinished(directory: Path, submissions: Submissions) -> list[str]:
    """Return the jobs of a pilot that may still run; all of them, where that cannot be read."""
    try:
        follower = Follower(directory)
        if follower.begun():
            return [job.id for job in follower.engine().world.unfinished()]
    except HpcextError:
        pass
    return [job.id for job in submissions.jobs]
