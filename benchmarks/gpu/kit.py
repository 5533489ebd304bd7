"""Everything that only a GPU can answer, in one run of a few minutes; ``run`` starts it.

Each part has a process of its own and a time limit; one that fails stops no other. Results are
written as they come: ``gpu.json``, ``gpu.md`` (tables for RESULTS.md) and ``gpu.log``. A run that
finds results of an earlier one goes on with the parts that lack answers.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import needs
import results
from part import Bench, Part, answers_of, print_error, read_answers

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
NAMES = ("facts", "training", "nccl", "mps", "transparent", "agent", "marble", "programs")
"""The modules of the parts, the most valuable first."""

MINUTES = 9.0
SLOWER = 6.0
"""Times as long, and more, as all may take in a rehearsal, which is about nothing that is timed."""

SPARE_S = 8.0
"""What is left of the time of a run for its end."""

REAPED_S = 5.0

PROGRAMS = ("/usr/local/nvidia/bin", "/usr/local/cuda/bin")
"""Where containers have NVIDIA's programs, perhaps not in PATH."""


def environ(work: Path, *, rehearse: bool) -> dict[str, str]:
    """Return the environment of the parts."""
    paths = [str(ROOT), str(needs.SITE)]
    sys.path[:0] = paths
    before = filter(None, [os.environ.get("PYTHONPATH")])
    os.environ["PYTHONPATH"] = os.pathsep.join([*paths, *before])
    mine = {"GPU_BENCHMARK": str(work), "PYTHONUNBUFFERED": "1", "OMP_NUM_THREADS": "1"}
    found = {key: value for key, value in os.environ.items() if not key.startswith("HPCEXT_")}
    found["PATH"] = os.pathsep.join([os.environ.get("PATH", os.defpath), *PROGRAMS])
    if rehearse:
        found |= importlib.import_module("machine").stand_ins(work)
    return found | mine


class Run:
    """A run of some parts.

    Parameters
    ----------
    args : argparse.Namespace
    document : dict
        The results so far.

    Attributes
    ----------
    code : int
        The exit status: not 0 if it was told to end.
    """

    def __init__(self, args: argparse.Namespace, document: dict[str, Any]) -> None:
        self.args, self.document = args, document
        self._slower = SLOWER if args.rehearse else 1.0
        self._end_s = time.monotonic() + 60 * args.minutes * self._slower - SPARE_S
        self._log = args.out / "gpu.log"
        self.code = 0

    def parts(self, work: Path) -> None:
        """Run those that are wanted, one after the other."""
        surroundings = environ(work, rehearse=self.args.rehearse)
        for number, name in enumerate(NAMES, start=1):
            if self.args.parts and str(number) not in self.args.parts:
                continue
            found = self.document["parts"].get(name)
            again = self.args.again or self.args.only
            if found and not again and results.is_whole(found, self.args.rehearse):
                continue
            try:
                made = self._made(importlib.import_module(name).PART, work, surroundings)
            except ImportError as error:
                # The others may not need what is missing.
                print(f"part {name}: {error}", file=sys.stderr)
                none = Part(name, name, 0.0, 0.0, {}, print)
                made = results.of_part(none, {}, "failed", str(error), 0.0, real=False)
            self.document["parts"][name] = results.kept(found, made)
            results.write(self.args.out, self.document, NAMES)
            if self.code:
                return

    def _made(self, part: Part, work: Path, surroundings: dict[str, str]) -> dict[str, Any]:
        """Run a part if there is time for it; return its results."""
        left_s, began_s = self._end_s - time.monotonic(), time.monotonic()
        if left_s < part.least_s:
            state, why = "skipped", f"{left_s:.0f} s were left, and it needs {part.least_s:.0f}"
        else:
            limit_s = min(left_s, part.limit_s * self._slower)
            print(f"part {part.title}: at most {limit_s:.0f} s", flush=True)
            try:
                state, why = self._run(part, work, limit_s, surroundings)
            except (KeyboardInterrupt, SystemExit) as told:
                state, why = "ended early", "the run was told to end"
                self.code = told.code if isinstance(told, SystemExit) else 130
        took_s = time.monotonic() - began_s
        answers = read_answers(answers_of(work, part.name))
        return results.of_part(part, answers, state, why, took_s, real=not self.args.rehearse)

    def _run(
        self, part: Part, work: Path, limit_s: float, surroundings: dict[str, str]
    ) -> tuple[str, str]:
        """Run a part in a process of its own; return how it ended, and why."""
        words = ["--be-part", part.name, "--work", str(work), "--limit", str(limit_s)]
        words += ["--rehearse"] if self.args.rehearse else []
        words += ["--only", ",".join(self.args.only)] if self.args.only else []
        with self._log.open("ab", buffering=0) as log:
            log.write(f"\n===== {part.name} =====\n".encode())
            process = subprocess.Popen(
                [sys.executable, __file__, *words],
                env=surroundings,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
            try:
                code = process.wait(limit_s)
            except subprocess.TimeoutExpired:
                return "ended early", f"it took longer than {limit_s:.0f} s"
            finally:
                process.kill()
                # One that hangs in the driver cannot be waited for.
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(REAPED_S)
                sweep(str(work))
        return ("failed", "see gpu.log") if code else ("done", "")


def sweep(mark: str) -> None:
    """End what a part has left: trainings, managers, daemons."""
    machine = importlib.import_module("machine")
    for signum in (signal.SIGCONT, signal.SIGKILL):
        for _ in range(50):
            left = machine.left_behind(mark)
            for pid in left:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signum)
            if not left or signum == signal.SIGCONT:
                break
            time.sleep(0.1)


def run_part(args: argparse.Namespace) -> int:
    """Be the process of a part."""
    part: Part = importlib.import_module(args.be_part).PART
    bench = Bench(part, args.work, args.limit, rehearse=args.rehearse, only=args.only or ())
    try:
        part.run(bench)
    except Exception as error:
        print_error(error)
        return 1
    return int(bench.failed)


def main() -> int:
    """Read the command line, and run."""
    listed = "; ".join(f"{number} {name}" for number, name in enumerate(NAMES, start=1))
    parser = argparse.ArgumentParser(prog="run", description=__doc__, epilog=f"parts: {listed}")
    out = Path(os.environ.get("OUT") or ROOT / "build" / "gpu")
    parser.add_argument("--out", type=Path, default=out,
                        help="where results go (default: $OUT, or build/gpu)")  # fmt: skip
    parser.add_argument("--earlier", type=Path, metavar="gpu.json",
                        help="go on from these results (default: those in --out)")  # fmt: skip
    parser.add_argument("--parts", type=lambda text: text.split(","), metavar="N,N")
    parser.add_argument("--again", action="store_true", help="also what has answers already")
    parser.add_argument("--only", type=lambda text: text.split(","), metavar="NAME,NAME",
                        help="only questions of these names, and these again")  # fmt: skip
    parser.add_argument("--minutes", type=float, default=MINUTES)
    parser.add_argument("--scratch", type=Path, default=ROOT / "build",
                        help="a disk for checkpoints, 44 GB at most (default: build)")  # fmt: skip
    parser.add_argument("--rehearse", action="store_true", help="by stand-ins, without a GPU")
    parser.add_argument("--be-part", help=argparse.SUPPRESS)
    parser.add_argument("--work", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--limit", type=float, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.be_part:
        return run_part(args)
    numbers = [str(number) for number in range(1, len(NAMES) + 1)]
    if wrong := [each for each in args.parts or () if each not in numbers]:
        parser.error(f"--parts: {wrong[0]!r} (valid: 1 to {len(NAMES)})")
    args.out, args.scratch = args.out.absolute(), args.scratch.absolute()
    try:
        for each in (args.out, args.scratch):
            each.mkdir(parents=True, exist_ok=True)
        document = results.read(args.earlier or args.out / "gpu.json", given=bool(args.earlier))
        needs.install()
    except (OSError, ValueError) as error:
        parser.error(str(error))
    # Private, and short enough for the paths of sockets.
    work = Path(tempfile.mkdtemp(prefix="gpu-", dir=args.scratch))
    run = Run(args, document)
    try:
        run.parts(work)
    finally:
        sweep(str(work))
        shutil.rmtree(work, ignore_errors=True)
    print(results.table(document, NAMES))
    return run.code


if __name__ == "__main__":
    # What a part has begun is ended, whoever ends the run.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    sys.exit(main())
