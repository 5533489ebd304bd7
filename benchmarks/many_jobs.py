"""What a run of many jobs prints, stores and takes: ``python benchmarks/many_jobs.py [N] [M]``.

N jobs whose command is ``true`` (1,000 if not said) run on six logical slots by ``hpcext run`` into
a pipe; then M of them (twice as many). The last column is how often the first figure is in the
second one: what grows with the jobs alone grows by M / N, what grows with jobs times events by the
square of that.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

Figures = dict[str, float]


def measure(place: Path, jobs: int) -> Figures:
    """Run so many jobs; what that printed and left, and how long it took."""
    file, pilot = place / f"{jobs}.toml", place / f"pilot-{jobs}"
    file.write_text("".join(f'[[job]]\nname = "t{i}"\ncommand = "true"\n' for i in range(jobs)))
    argv = [sys.executable, "-m", "hpcext", "run", str(file), "--gpus=6", "--policy=marble"]
    began_s = time.monotonic()
    environ = {**os.environ, "XDG_STATE_HOME": str(place), "HPCEXT_STATE_DIR": str(place / "state")}
    ended = subprocess.run(
        [*argv, "--dir", str(pilot)], capture_output=True, check=True, env=environ
    )
    took_s = time.monotonic() - began_s
    files = [path.lstat() for path in pilot.rglob("*")]
    return {
        "lines": len(ended.stdout.splitlines()),
        "bytes printed": len(ended.stdout),
        "journal, bytes": (pilot / "journal.jsonl").stat().st_size,
        "files and directories": len(files),
        "disk, bytes": sum(each.st_blocks * 512 for each in files),
        "seconds": took_s,
    }


def main() -> None:
    """Print a table of both."""
    few = int(sys.argv[1]) if len(sys.argv) > 1 else 1000
    many = int(sys.argv[2]) if len(sys.argv) > 2 else 2 * few
    with tempfile.TemporaryDirectory() as place:
        first, second = (measure(Path(place), jobs) for jobs in (few, many))
    print(f"| | {few:,} jobs | {many:,} jobs | times as much |")
    print("|---|---|---|---|")
    for name, value in first.items():
        print(f"| {name} | {value:,.0f} | {second[name]:,.0f} | {second[name] / value:.2f} |")


if __name__ == "__main__":
    main()
