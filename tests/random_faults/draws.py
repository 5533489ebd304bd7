"""Plays draws, several at once: ``python tests/random_faults/draws.py [FIRST-LAST | SEED ...]``.

A *draw* is a plan that its seed alone decides (``plan.py``): a pilot, its jobs, and what is done
to them. It is played for real (``play.py``, ``hands.py``): managers, supervisors, trainings. Then
it is judged by what the trainings wrote (``judge.py``): nothing lost, nothing done twice, no GPU
shared, no process left. One seed is one plan; when its faults meet the jobs differs by
milliseconds, so a failure that needs them to meet just so may take several runs to see again::

    python tests/random_faults/draws.py 17           # replays seed 17
    python tests/random_faults/draws.py 17 17 17     # three times
    python tests/random_faults/draws.py 0-1999       # the long run

A draw that lost something leaves its directory: ``plan.txt``, ``played.txt`` (what was done, and
when), ``accounts/``, the managers' logs, and the pilot.
"""

from __future__ import annotations

import functools
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

from plan import TORCH, draw

PLAY = Path(__file__).with_name("play.py")
AT_ONCE = 8
LIMIT_S = 200.0
_SPACE = ("unshare", "-Urm")


@functools.cache
def may_mount() -> bool:
    """Whether a draw can have a small disk of its own; without, its disk is not filled."""
    trial = [*_SPACE, "mount", "-t", "tmpfs", "none", "/tmp"]
    try:
        return subprocess.run(trial, capture_output=True, check=False).returncode == 0
    except FileNotFoundError:
        return False


def run(seed: int, directory: Path) -> tuple[bool, str]:
    """Play one draw.

    Returns
    -------
    well : bool
        Nothing was lost.
    said : str
        Then its seed, seconds and seconds of processor time; else what was lost, and the plan.
    """
    command = [sys.executable, str(PLAY), str(seed), str(directory)]
    if draw(seed).small_disk and may_mount():
        command = [*_SPACE, *command, "--small-disk"]
    try:
        ended = subprocess.run(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=LIMIT_S,
            check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired as error:
        return False, f"seed {seed}: {error}\nkept in {directory}"
    if ended.returncode == 0:
        return True, ended.stdout
    return False, f"{ended.stdout}kept in {directory}; again: {sys.executable} {PLAY} {seed} DIR"


def main() -> int:
    words = sys.argv[1:] or ["0-99"]
    seeds: list[int] = []
    for word in words:
        first, _, last = word.partition("-")
        seeds += range(int(first), int(last or first) + 1)
    root = Path(tempfile.mkdtemp(prefix="hpcext-draws-"))
    failed = 0
    figures: list[list[float]] = []
    began = time.monotonic()
    with ThreadPoolExecutor(AT_ONCE) as pool:
        games = [pool.submit(run, seed, root / f"{seed}.{turn}") for turn, seed in enumerate(seeds)]
        for number, game in enumerate(as_completed(games), start=1):
            well, said = game.result()
            if not well:
                failed += 1
                print(f"FAILED {said}", flush=True)
                continue
            figures.append([float(word) for word in said.split()])
            if number % 20 == 0:
                print(f"{number} of {len(seeds)}, {time.monotonic() - began:.0f} s", flush=True)
    for kind, wanted in (("PyTorch", True), ("other", False)):
        some = [figure for figure in figures if (figure[0] % 40 in TORCH) == wanted]
        if some:
            wall_s, cpu_s = (sum(figure[at] for figure in some) / len(some) for at in (1, 2))
            print(f"{len(some)} {kind} draws: {wall_s:.1f} s each, {cpu_s:.1f} s of processor")
    print(f"{len(seeds)} draws, {failed} failed, {time.monotonic() - began:.0f} s; {root}")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
