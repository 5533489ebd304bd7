"""CPU time and average JCT of Pollux's workloads on the simulator, beside the authors' own.

    python benchmarks/pollux_replay.py DATA [WORKLOAD ...]

DATA has `pollux/` in it. One process, one run after the other.
"""

from __future__ import annotations

import sys
import time
from pathlib import Path

from hpcext.papers.pollux import EXACT, GENETIC, OPTIMUS, PUBLISHED, TIRESIAS, WORKLOADS, summed
from hpcext.papers.pollux.runs import PolluxRun
from hpcext.sim.workloads.applications import application
from hpcext.sim.workloads.generated import FOLDER
from hpcext.sim.workloads.philly import SHARES

THEIRS_S = 1413.0
"""CPU-seconds of the authors' simulator for a workload under their Pollux."""


def main(data: Path, workloads: list[int], policies: tuple[str, ...]) -> None:
    """Print a line for each run."""
    begin_s = time.process_time()
    for name in SHARES:
        application(data / FOLDER, name)
    print(f"measurements read in {time.process_time() - begin_s:.2f} s")
    for policy in policies:
        for number in workloads:
            begin_s = time.process_time()
            found = summed(PolluxRun(data / FOLDER, policy, number))
            spent_s = time.process_time() - begin_s
            theirs = PUBLISHED[policy][number - 1]
            print(
                f"{policy:24} workload {number}: average JCT {found.jct_s:7.1f} s "
                f"({found.jct_s / theirs:.3f} of theirs), p99 {found.p99_s:6.0f} s, "
                f"makespan {found.makespan_s:6.0f} s; {spent_s:6.1f} CPU-seconds "
                f"(1/{THEIRS_S / spent_s:.0f} of their Pollux)",
                flush=True,
            )


if __name__ == "__main__":
    if len(sys.argv) < 2:
        raise SystemExit(__doc__)
    chosen = [int(each) for each in sys.argv[2:]] or list(WORKLOADS)
    main(Path(sys.argv[1]), chosen, (TIRESIAS, OPTIMUS, EXACT, GENETIC))
