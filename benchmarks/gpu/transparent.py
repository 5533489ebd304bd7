"""Part 5: a program that saves nothing is taken off the GPU by the driver, and put back."""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import psutil
from driver import MOVES, Driver, DriverError, resident_bytes
from machine import Gpu, Watch, site
from part import HERE, MEASURED, NOT_ASKED, Bench, Part, in_words, wait_for

from hpcext.doctor import counter
from hpcext.launch.transparent.criu import Criu

MIB = 1 << 20
SLACK_BYTES = 64 * MIB
SIZES = (10_000_000, 100_000_000, 1_000_000_000, 5_000_000_000, 20_000_000_000)
COMPUTES_S = 1.0
UNAWARE = ("--steps", "300", "--ballast", "1000000000")
"""A training of some seconds, with 1 GB more on the GPU than it needs."""

NOBODY = 65534
PYTHONS = ("/usr/bin/python3", "/usr/local/bin/python3")
PR_CAPBSET_DROP = 24
"""prctl(2)."""

PROGRAM = "cuda-checkpoint"


class Target:
    """A program on the GPU.

    Parameters
    ----------
    bench : Bench
    **options
        Of ``subprocess.Popen``.
    """

    def __init__(self, bench: Bench, **options: Any) -> None:
        self._process = subprocess.Popen(
            bench.script("held"),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            bufsize=1,
            **options,
        )
        self.pid = self._process.pid
        self.device = self.hear()["device"]

    def say(self, word: str, number: float) -> None:
        """Give it a command."""
        assert self._process.stdin is not None
        self._process.stdin.write(f"{word} {number}\n")
        self._process.stdin.flush()

    def hear(self) -> dict[str, Any]:
        """Wait for its answer."""
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"the program on the GPU ended with {self._process.wait()}")
        found: dict[str, Any] = json.loads(line)
        return found

    def ask(self, word: str, number: float) -> dict[str, Any]:
        """Give it a command, and wait for what comes of it."""
        self.say(word, number)
        found = self.hear()
        return self.hear() if "computes" in found else found

    def close(self) -> None:
        """Kill it, in whatever state it is."""
        self._process.kill()
        self._process.communicate()


def run(bench: Bench) -> None:
    """Find the answers."""
    try:
        driver = Driver()
    except (OSError, DriverError) as error:
        for each in bench.part.questions:
            bench.answer(each, NOT_ASKED, f"the driver: {error}")
        return
    bench.ask(lambda: _by_size(bench, driver), "same", "off", "between")
    bench.ask(lambda: _by_program(bench), "program")
    bench.ask(lambda: _by_users(bench), "same-user", "other-user")
    bench.ask(lambda: _by_hpcext(bench), "suspended")
    bench.ask(lambda: _in_memory(bench), "stays")
    bench.ask(lambda: _job(bench), "job")


def _by_hpcext(bench: Bench) -> None:
    """By a job's supervisor, with CRIU: as ``hpcext doctor`` tries it."""
    if bench.rehearse:
        says = "the stand-in has no memory; tests/launch/test_transparent_driver.py has another one"
        bench.answer("suspended", NOT_ASKED, says)
        return
    criu = Criu(os.environ)
    if why := criu.probe():
        bench.answer("suspended", NOT_ASKED, f"CRIU: {why}")
        return
    said = _counted(bench.scratch / "job", "gpu")
    bench.answer("suspended", "failed" not in said, str(said.pop("failed", "")), **said)


def _in_memory(bench: Bench) -> None:
    """By a job's supervisor, without CRIU: the program stays in memory, as the doctor tries it."""
    if bench.rehearse:
        says = "the stand-in has no memory; tests/launch/test_resident.py has another one"
        bench.answer("stays", NOT_ASKED, says)
        return
    programs = bench.scratch / "without-criu"
    programs.mkdir()
    (programs / "criu").write_text("#!/bin/sh\nexit 1\n")
    (programs / "criu").chmod(0o755)
    path = f"{programs}:{os.environ['PATH']}"
    said = _counted(bench.scratch / "stays", "gpu", "stays", path=path)
    bench.answer("stays", "failed" not in said, str(said.pop("failed", "")), **said)


def _counted(directory: Path, *words: str, path: str | None = None) -> dict[str, Any]:
    """Return what the doctor's trial says."""
    command = [sys.executable, "-m", counter.__name__, str(directory), *words]
    environ = os.environ if path is None else {**os.environ, "PATH": path}
    done = subprocess.run(command, env=environ, stdout=subprocess.PIPE, text=True, check=False)
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def _job(bench: Bench) -> None:
    """By a pilot: a training that knows nothing of hpcext is suspended for another one."""
    if bench.rehearse:
        says = "the stand-in has no memory; tests/launch/test_transparent_driver.py has another one"
        bench.answer("job", NOT_ASKED, says)
        return
    place = site(bench.scratch / "pilot")
    names = ("straight", "suspended", "other")
    place.write_jobs(*(
        {
            "name": name,
            "command": bench.script("unaware", *UNAWARE),
            "checkpoint": "transparent",
            "retries": 0,
        }
        for name in names
    ))  # fmt: skip

    def log(name: str) -> str:
        return place.run("logs", str(place.pilot), name).out

    def line(name: str, begins: str) -> str:
        found = [each for each in log(name).splitlines() if each.startswith(begins)]
        return found[-1] if found else ""

    gpu = Gpu()
    with Watch(gpu) as watch:
        manager = place.start("run", str(place.jobs), "--gpus", "1", "--dir", str(place.pilot))
        wait_for(lambda: line("suspended", "step 60"), "its steps", bench.left_s - 5)
        began_s = time.monotonic()
        place.run_until_done("suspend", str(place.pilot), "suspended")
        wait_for(lambda: line("other", "step"), "the other one", bench.left_s - 5)
        handed_s = time.monotonic() - began_s
        place.run_until_done("resume", str(place.pilot), "suspended")
        out, err = manager.communicate(timeout=max(1.0, bench.left_s - 2))
    print(out, err, log("suspended"))
    ends = {name: line(name, "end") for name in names}
    jobs = place.document("status", str(place.pilot))["jobs"]
    mine = next(job for job in jobs if job["name"] == "suspended")
    bench.answer(
        "job",
        manager.returncode == 0 and len(set(ends.values())) == 1 and "end" in ends["other"],
        in_words(sorted(set(ends.values()))),
        suspends=mine["suspends"],
        lost_steps=mine["lost_steps"],
        seconds_from_suspend_to_the_other=handed_s,
        most_at_once=max((len(each.pids) for each in watch.seen), default=0),
    )


def _steps(bench: Bench, target: Target) -> int:
    """As many as take a second, so that a lock meets a program that computes."""
    if bench.rehearse:
        target.ask("pace", 0.01)
        return 10
    return max(3, int(3 * COMPUTES_S / max(target.ask("steps", 3)["seconds"], 1e-3)))


def _results(told: Mapping[str, Any]) -> tuple[Any, Any]:
    return told["sums"], told["bits"]


def _cycle(
    target: Target, steps: int, off: Callable[[], object], on: Callable[[], object]
) -> dict[str, Any]:
    """Take a program off the GPU while it computes, and put it back; say what became of it."""
    gpu = Gpu()
    straight = target.ask("steps", steps)
    held, host = gpu.used_bytes, resident_bytes(target.pid)
    target.say("steps", steps)
    target.hear()
    time.sleep(min(0.3, straight["seconds"] / 3))
    off()
    freed, more = held - gpu.used_bytes, resident_bytes(target.pid) - host
    on()
    told = target.hear()
    return {
        "same": _results(told) == _results(straight),
        "freed_mb": freed / 1e6,
        "host_mb": more / 1e6,
    }


def _by_size(bench: Bench, driver: Driver) -> None:
    with contextlib.closing(Target(bench)) as target:
        _sizes(bench, driver, target)


def _sizes(bench: Bench, driver: Driver, target: Target) -> None:
    rows: list[dict[str, Any]] = []
    sizes = SIZES[:1] if bench.rehearse else SIZES
    between: dict[str, Any] = {}
    for size in sizes:
        # The driver moves it into host memory.
        fits = 1.5 * size < psutil.virtual_memory().available and 1.3 * size < Gpu().total_bytes
        if not fits or bench.left_s < 15 + size / 1e9:
            break
        target.ask("grow", size)
        times: dict[str, float] = {}
        last = size == sizes[min(2, len(sizes) - 1)]

        def off(times: dict[str, float] = times, last: bool = last) -> None:
            for what in MOVES[:2]:
                times[what] = driver.move(what, target.pid)
            if last:
                between.update(_other(bench))

        def on(times: dict[str, float] = times) -> None:
            for what in MOVES[2:]:
                times[what] = driver.move(what, target.pid)

        found = _cycle(target, _steps(bench, target), off, on)
        rows.append({"mb": size / 1e6, **found, **{f"{what}_s": times[what] for what in MOVES}})
        # What is known stays if a larger one takes too long.
        _tell(bench, rows, target.device)
        if last:
            bench.answer("between", between.pop("worked"), **between)


def _tell(bench: Bench, rows: list[dict[str, Any]], device: str) -> None:
    columns = {name: [row[name] for row in rows] for name in rows[0]}
    same = columns.pop("same")
    bench.answer("same", all(same), f"on {device}", sizes=len(same))
    bench.answer("off", MEASURED, **columns)


def _other(bench: Bench) -> dict[str, Any]:
    """Run another program on the GPU, which takes most of it."""
    gpu = Gpu()
    began_s = time.monotonic()
    with contextlib.closing(Target(bench)) as other:
        size = 1 << 20 if bench.rehearse else int(0.7 * (gpu.total_bytes - gpu.used_bytes))
        held = other.ask("grow", size)["size"]
        told = other.ask("steps", 2)
    return {
        "worked": "sums" in told,
        "other_mb": held / 1e6,
        "other_s": time.monotonic() - began_s,
    }


def _by_program(bench: Bench) -> None:
    """By NVIDIA's own program, if it is there."""
    program = shutil.which(PROGRAM)
    if program is None:
        bench.answer("program", NOT_ASKED, f"there is no {PROGRAM} in PATH")
        return
    times: list[float] = []

    with contextlib.closing(Target(bench)) as target:

        def toggle() -> None:
            began_s = time.monotonic()
            subprocess.run([program, "--toggle", "--pid", str(target.pid)], check=True)
            times.append(time.monotonic() - began_s)

        target.ask("grow", SIZES[2])
        found = _cycle(target, _steps(bench, target), toggle, toggle)
    bench.answer("program", found.pop("same"), off_s=times[0], on_s=times[1], **found)


def _by_users(bench: Bench) -> None:
    """Try it without privileges: on a program of one's own, and on another user's."""
    with contextlib.closing(Target(bench, preexec_fn=_drop_capabilities)) as target:
        code, told = _moved([sys.executable], target.pid, preexec_fn=_drop_capabilities)
        bench.answer("same-user", code == 0, str(told.pop("error", "")), **told)
    if os.geteuid() != 0:
        bench.answer("other-user", NOT_ASKED, "only root can begin a program as somebody else")
        return
    nobody = {"user": NOBODY, "group": NOBODY, "extra_groups": [], "cwd": "/"}
    with contextlib.closing(Target(bench)) as target:
        # Our own Python may be in a directory that they cannot enter.
        python = next(filter(os.path.exists, PYTHONS), sys.executable)
        code, told = _moved([python], target.pid, **nobody)
        bench.answer("other-user", code == 0, str(told.pop("error", "")), **told)


def _drop_capabilities() -> None:
    """Have none from the next program on; root then is a user like others."""
    libc = ctypes.CDLL(None)
    for capability in range(64):
        libc.prctl(PR_CAPBSET_DROP, capability, 0, 0, 0)


def _moved(python: list[str], pid: int, **options: Any) -> tuple[int, dict[str, Any]]:
    """Take a program off the GPU and put it back, in a process with these options."""
    done = subprocess.run(
        [*python, "-", str(pid), *MOVES],
        input=(HERE / "driver.py").read_text(),
        capture_output=True,
        text=True,
        check=False,
        **options,
    )
    if not done.stdout.startswith("{"):
        return done.returncode or 1, {"error": done.stderr.strip()[-200:]}
    return done.returncode, json.loads(done.stdout)


PART = Part(
    "transparent",
    "5. Programs taken off the GPU as they are, by the driver",
    120.0,
    25.0,
    {
        "same": "Does a program that was taken off the GPU while it computed end with the same "
        "bits?",
        "off": "How long does that take, how much of the GPU is freed, and how much host memory "
        "does it need, by size of state?",
        "between": "Can another program that takes most of the GPU run in between?",
        "suspended": "Can hpcext suspend a program with memory on the GPU as it is, with CRIU, and "
        "does it go on?",
        "stays": "Can hpcext suspend such a program without CRIU, so that it stays in memory?",
        "job": "Does a training that knows nothing of hpcext, with loader workers and half "
        "precision, end with the same bits in a pilot that suspends it as it is for another one?",
        "program": "Does NVIDIA's `cuda-checkpoint` do the same?",
        "same-user": "May one without any capability do it to a program of the same user?",
        "other-user": "May somebody without privileges do it to another user's program?",
    },
    run,
)
