"""What our rules in ``job_submit.lua`` cost slurmctld: submissions per second with and without.

``python benchmarks/submissions.py [ROUNDS] [JOBS]``, as root, on the private cluster of the tests.
One program of an ordinary user submits held jobs, one after the other; before each batch the site's
script is put in place, with our lines at its end or without them, in turn. Each ratio is of two
batches that follow each other, and the one that goes first changes: of the seconds that they take,
and of those of a processor that slurmctld uses, which other work on the machine changes less. Then
the same of one job with a million lines.
"""

from __future__ import annotations

import os
import random
import statistics
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "system"))

from slurm_cluster import Cluster, cluster

from hpcext.admin import slurm_conf

ROOT = Path(__file__).parents[1]
SITE = (ROOT / "site_configs" / "slurm" / "job_submit.lua").read_text()
OPTION = "_SLURM_SPANK_OPTION_hpcext_hpcext_suspendable=60"
KINDS = {"a plain job": ("0",), "one with --hpcext-suspendable": ("0", OPTION)}
LARGE = ("1000000", OPTION)


Found = dict[str, list[tuple[float, float]]]
"""For each of the scripts its batches: seconds, and those of slurmctld's processor."""


class Bench:
    """The cluster, and the two scripts of its site."""

    def __init__(self, one: Cluster) -> None:
        self.one = one
        self.program = one.root / "bin" / "submit"
        source = ROOT / "tests" / "system" / "submit.c"
        subprocess.run(["cc", "-O2", "-o", str(self.program), str(source), "-lslurm"], check=True)
        without = SITE.partition("-- hpcext:")[0]
        # Where the installed rules would lie.
        lines = slurm_conf.snippet(Path("@"), "", "job_submit.lua")
        ours = "\n".join(lines).replace("@/lua", str(ROOT / "spank_hooks" / "lua"))
        self.scripts = {"without": without, "with": f"{without}{ours}\n"}
        self._clock = 0
        self._script = one.root / "etc" / "job_submit.lua"
        self._script.write_text(without)
        with open(one.root / "etc" / "slurm.conf", "a") as file:
            file.write("JobSubmitPlugins=lua\nMaxJobCount=100000\nMinJobAge=2\n")
        one.stop_ctld()
        one.start_ctld()

    def use(self, script: str) -> None:
        """slurmctld reads a script again when it is newer; its times are whole seconds."""
        self._script.write_text(self.scripts[script])
        self._clock += 1
        when = self._script.stat().st_mtime + 2 * self._clock
        os.utime(self._script, (when, when))
        self.batch(1, "0")

    def batch(self, jobs: int, *lines: str) -> tuple[float, float]:
        """Seconds that one takes, and of slurmctld's processor; nothing of it is left."""
        before = self.one.ctld_cpu_s()
        said = self.one.as_user(str(self.program), str(jobs), *lines, timeout_s=300)
        if said.returncode:
            raise SystemExit(said.stderr)
        used = self.one.ctld_cpu_s() - before
        self.one.run("scancel", "--user", self.one.user)
        return float(said.stdout), used

    def compare(self, rounds: int, jobs: int, lines: Sequence[str]) -> Found:
        """Each batch, with and without."""
        found: Found = {"without": [], "with": []}
        for number in range(rounds):
            for script in sorted(found, reverse=bool(number % 2)):
                self.use(script)
                found[script].append(self.batch(jobs, *lines))
        return found


def interval(ratios: Sequence[float]) -> tuple[float, float]:
    """95 % of the median, by drawing again."""
    draw = random.Random(1)
    medians = sorted(statistics.median(draw.choices(ratios, k=len(ratios))) for _ in range(2000))
    return medians[50], medians[1949]


def show(what: str, jobs: int, found: Found) -> None:
    """Rates, and how many times as much it takes with our rules."""
    rates = {name: jobs / statistics.median(each[0] for each in found[name]) for name in found}
    print(f"{what}: {rates['without']:.1f} a second without, {rates['with']:.1f} with")
    for index, name in enumerate(("seconds", "slurmctld's processor")):
        pairs = zip(found["with"], found["without"], strict=True)
        ratios = [one[index] / other[index] for one, other in pairs if other[index]]
        low, high = interval(ratios)
        median = statistics.median(ratios)
        print(f"    {name}: {median:.3f} ({low:.3f}-{high:.3f}), {len(ratios)} pairs", flush=True)


def main(rounds: int, jobs: int) -> None:
    """Print a line for each kind of job."""
    with cluster() as one:
        bench = Bench(one)
        print(f"load {os.getloadavg()[0]:.1f}")
        for what, lines in KINDS.items():
            show(what, jobs, bench.compare(rounds, jobs, lines))
        show("a job with a million lines", 1, bench.compare(max(rounds // 4, 4), 1, LARGE))
        print(f"load {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    numbers = [int(word) for word in sys.argv[1:]] + [60, 200][len(sys.argv) - 1 :]
    main(*numbers)
