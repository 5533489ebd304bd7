"""Jobs whose checkpoints cannot be told apart: both find theirs by names that the other's have too.

Each of them would go on from the other's checkpoint, and be ended once the other has saved.
"""

from __future__ import annotations

import glob
import os
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from hpcext.core.errors import InputError
from hpcext.jobfile import place
from hpcext.jobspec import JobSpec
from hpcext.text import shown


class _Pattern(NamedTuple):
    """A pattern, up to its first placeholder of file names, and from there on.

    Attributes
    ----------
    root : str
        Absolute.
    rest : str
    everywhere : bool
        Whether `rest` may be in any directory below `root`.
    """

    root: str
    rest: str
    everywhere: bool

    def roots(self) -> Iterator[str]:
        """Yield the root, and each directory that it is in."""
        root = self.root
        while True:
            yield root
            above = os.path.dirname(root)
            if above == root:
                return
            root = above


def check_apart(specs: Sequence[JobSpec], where: str, beside: Sequence[JobSpec] = ()) -> None:
    """Refuse a job whose checkpoints could be taken for those of another one at the same time.

    Patterns are compared as they are written; two may be different, and have files in common. Jobs
    that follow each other in their order here may have the same.

    Parameters
    ----------
    specs : sequence of JobSpec
    where : str
        The place of the jobs, for messages.
    beside : sequence of JobSpec
        Jobs that were accepted before, and are not done.

    Raises
    ------
    InputError
        Names the first such job.
    """
    if not any(map(_pattern, specs)):
        return
    # The last job whose files are in this directory, or anywhere below it. It begins when those
    # before it are done, or it would have been refused.
    here: dict[tuple[str, str], JobSpec] = {}
    below: dict[tuple[str, str], JobSpec] = {}
    # All jobs that look further below this directory.
    within: defaultdict[tuple[str, str], list[JobSpec]] = defaultdict(list)
    named = {spec.name: spec for spec in (*beside, *specs)}
    for number, spec in enumerate((*beside, *specs), start=1 - len(beside)):
        pattern = _pattern(spec)
        if pattern is None:
            continue
        key, rest = (pattern.root, pattern.rest), pattern.rest
        others = [found for up in pattern.roots() if (found := below.get((up, rest)))]
        others += [here[key]] if key in here else []
        others += within[key] if pattern.everywhere else []
        for other in others if number > 0 else ():
            if not _follows(spec, other, named):
                raise _refusal(place(where, number, spec.name), spec, pattern, other)
        (below if pattern.everywhere else here)[key] = spec
        for up in pattern.roots():
            if up != pattern.root:
                within[up, rest].append(spec)


def _pattern(spec: JobSpec) -> _Pattern | None:
    """Return the pattern of a job's checkpoints; None if no other job has files of it."""
    text = spec.checkpoint.pattern(spec.command) if spec.checkpoint is not None else ""
    if not text or "{checkpoint_dir}" in text:
        return None
    text = os.path.join(spec.workdir, text.replace("{name}", spec.name))
    parts = os.path.normpath(text).split("/")
    first = next((at for at, part in enumerate(parts) if glob.has_magic(part)), len(parts) - 1)
    everywhere = parts[first] == "**"
    rest = parts[first + everywhere :]
    return _Pattern("/".join(parts[:first]) or "/", "/".join(rest), everywhere)


def _follows(spec: JobSpec, other: JobSpec, named: Mapping[str, JobSpec]) -> bool:
    """Return whether a job begins only when the other one is done."""
    seen: set[str] = set()
    left = list(spec.after)
    while left:
        name = left.pop()
        if name == other.name:
            return True
        if name not in seen and name in named:
            seen.add(name)
            left += named[name].after
    return False


def _refusal(stated: str, spec: JobSpec, pattern: _Pattern, other: JobSpec) -> InputError:
    option = spec.checkpoint.option if spec.checkpoint is not None else ""
    rest = f"**/{pattern.rest}" if pattern.everywhere else pattern.rest
    return InputError(
        f"its checkpoints, {shown(rest)} in {pattern.root}, could be those of job {other.name}",
        where=f"{stated}: checkpoint",
        valid="files that no other job writes",
        do=f"give each a directory of its own: {f'by {option}, or ' if option else ''}"
        f'by file = "out/{{name}}/{rest}" in checkpoint, where it writes then',
    )
