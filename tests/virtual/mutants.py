"""Plants bugs one by one, and says which of them the rooms find, and within how many seeds."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


ROOT = Path(__file__).resolve().parent.parent.parent


class Mutant(NamedTuple):
    """A planted bug: in which module, what is replaced by what, and in which room it is sought."""

    name: str
    module: str
    old: str
    new: str
    room: str = "local"

    def fits(self) -> bool:
        """Return whether the module still has the text that is replaced."""
        path = ROOT / f"{self.module.replace('.', '/')}.py"
        return self.old != self.new and self.old in path.read_text(encoding="utf-8")


def read() -> dict[str, Mutant]:
    """Read them all, by name."""
    text = Path(__file__).with_suffix(".toml").read_text(encoding="utf-8")
    return {each["name"]: Mutant(**each) for each in tomllib.loads(text)["mutant"]}


def hunt(names: Sequence[str], seeds: range, jobs: int) -> int:
    """Plant bugs; return 1 if one is not found.

    Parameters
    ----------
    names : sequence of str
        Empty: all of them.
    seeds : range
        Played for each until one fails.
    jobs : int
        Processes.
    """
    chosen = [each for name, each in read().items() if not names or name in names]

    def one(mutant: Mutant) -> tuple[str, float]:
        if not mutant.fits():
            return "does not fit its module any more", 0.0
        began_s = time.monotonic()
        words = [
            sys.executable, "-m", "tests.virtual", f"{seeds[0]}-{seeds[-1]}", "--jobs=1",
            "--until-found", f"--mutant={mutant.name}", f"--room={mutant.room}",
        ]  # fmt: skip
        ended = subprocess.run(
            words, cwd=ROOT, capture_output=True, text=True, check=False, env=dict(os.environ)
        )
        lines = [line for line in ended.stdout.splitlines() if line.startswith("seed ")]
        said = lines[0] if lines else "not found"
        return (said if ended.returncode in {0, 1} else ended.stderr), time.monotonic() - began_s

    found = 0
    with ThreadPoolExecutor(jobs) as pool:
        for mutant, (said, took_s) in zip(chosen, pool.map(one, chosen), strict=True):
            found += said.startswith("seed ")
            print(f"{mutant.name}: {said} ({took_s:.0f} s)", flush=True)
    print(f"{found} of {len(chosen)} found")
    return int(found < len(chosen))
