"""Part 4: small trainings that share the GPU by MPS, beside each other and beside time slicing."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import machine
from part import FORKS, MEASURED, NOT_ASKED, SCRIPTS, Bench, Part, wait_for

from hpcext.launch.mps import ASK_S, CONTROL, Seat
from hpcext.process import Process

TOGETHER = (2, 4)
NEIGHBOURS = ("terminated", "killed", "fault", "anew", "daemon")
"""Questions of trainings that share the GPU while one of them ends."""

WINDOW_S = 4.0
GOES_ON_S, BEGINS_S = 5.0, 30.0
"""Seconds in which a neighbour has to make steps, and a new client to have made some."""


def run(bench: Bench) -> None:
    """Find the answers."""
    bench.ask(lambda: _speeds(bench), "speed")
    bench.ask(lambda: _neighbours(bench), *NEIGHBOURS)


def _neighbours(bench: Bench) -> None:
    if shutil.which(CONTROL) is None:
        for each in NEIGHBOURS:
            bench.answer(each, NOT_ASKED, f"there is no {CONTROL} on this machine")
    else:
        Neighbours(bench).ask()


def _words(bench: Bench, place: Path, number: int, together: int) -> list[str]:
    window_s = 0.3 if bench.rehearse else WINDOW_S
    small = ["--width", "4", "--batch", "16"] if bench.rehearse else []
    return [
        "--window", str(window_s), "--meet", str(place / "met"), "--together", str(together),
        "--account", str(place / f"{number}.account"),
        "--result", str(place / f"{number}.result"), *small,
    ]  # fmt: skip


def _rates(place: Path, together: int) -> list[float]:
    """Steps per second of each."""
    found = [json.loads((place / f"{number}.result").read_text()) for number in range(together)]
    return [each["steps"] / each["seconds"] for each in found]


def _place(bench: Bench, name: str) -> Path:
    place = bench.scratch / name
    (place / "met").mkdir(parents=True)
    return place


def _sliced(bench: Bench, counts: Sequence[int]) -> list[list[float]]:
    """So many beside each other without MPS: the driver gives the GPU to one after the other."""
    places = [_place(bench, f"sliced-{together}") for together in counts]
    runs = [
        [
            {"words": _words(bench, place, number, together), "environ": {},
             "log": str(place / "log")}
            for number in range(together)
        ]
        for place, together in zip(places, counts, strict=True)
    ]  # fmt: skip
    path = bench.scratch / "sliced.json"
    path.write_text(json.dumps(runs))
    bench.run_script("trained", "--runs", path, environ=FORKS)
    return [_rates(place, together) for place, together in zip(places, counts, strict=True)]


def _shared(bench: Bench, together: int) -> list[float]:
    """On seats of a pilot."""
    place = _place(bench, f"mps-{together}")
    site = machine.site(place / "site")
    site.write_jobs(*(
        {
            "name": f"small-{number}",
            "command": [
                sys.executable, *machine.client(), str(SCRIPTS / "trained.py"),
                *_words(bench, place, number, together),
            ],
            "mps": True,
            "retries": 0,
        }
        for number in range(together)
    ))  # fmt: skip
    words = ["--gpus", "1", "--mps", str(together), "--dir", str(site.pilot)]
    manager = site.start("run", str(site.jobs), *words)
    try:
        out, err = manager.communicate(timeout=max(1.0, bench.left_s - 2))
    except subprocess.TimeoutExpired:
        manager.kill()
        out, err = manager.communicate()
    print(out, err)
    return _rates(place, together)


def _speeds(bench: Bench) -> None:
    counts = TOGETHER[:1] if bench.rehearse else TOGETHER
    (alone,), *sliced = _sliced(bench, (1, *counts))
    figures: dict[str, Any] = {"alone_steps_s": alone}

    def told(rates: list[float]) -> dict[str, Any]:
        return {
            "total_steps_s": sum(rates),
            "times_as_fast_as_one_after_the_other": sum(rates) / alone,
            "slowdown_of_each": [alone / rate for rate in rates],
        }

    for together, rates in zip(counts, sliced, strict=True):
        figures[f"sliced_{together}"] = told(rates)
    # What is known stays if the rest takes too long.
    bench.answer("speed", MEASURED, "without MPS", **figures)
    if shutil.which(CONTROL) is None:
        bench.answer("speed", NOT_ASKED, f"there is no {CONTROL} on this machine", **figures)
        return
    for together in counts:
        rates = _shared(bench, together)
        figures[f"mps_{together}"] = told(rates)
        gains = sum(rates) > max(alone, sum(sliced[counts.index(together)]))
        bench.answer("speed", gains, f"{together} together", **figures)


class PatientSeat(Seat):
    """A seat that waits longer for the daemon of a rehearsal.

    Parameters
    ----------
    where : Mapping of str to str
        As of any seat.
    patience_s : callable
        Makes of a usual time the one to wait.
    """

    def __init__(self, where: Mapping[str, str], patience_s: Callable[[float], float]) -> None:
        super().__init__(where)
        self._patience_s = patience_s

    def _ask(self, question: str, timeout_s: float = ASK_S) -> str | None:
        return super()._ask(question, self._patience_s(timeout_s))


class Neighbours:
    """Trainings that share the GPU, one of which ends in each of the ways there are.

    Parameters
    ----------
    bench : Bench
    """

    def __init__(self, bench: Bench) -> None:
        self._bench, self._place = bench, _place(bench, "neighbours")
        self._uuid = machine.Gpu().uuid
        where = {"directory": str(self._place / "mps"), "device": self._uuid}
        self._seat = PatientSeat(where, bench.patience_s)
        self._clients: list[subprocess.Popen[bytes]] = []

    def ask(self) -> None:
        """Find the answers."""
        began_s = time.monotonic()
        self._seat.take()
        started_s = time.monotonic() - began_s
        try:
            for number in range(3):
                self._start(number, 3)
            for number in range(3):
                wait_for(
                    lambda number=number: self._steps(number),
                    "a client",
                    self._bench.patience_s(60),
                )
            self._terminate()
            self._kill()
            self._fault()
            self._anew()
        finally:
            for each in self._clients:
                if each.poll() is None:
                    self._release(each)
                    each.kill()
                each.wait()
            began_s = time.monotonic()
            self._seat.leave()
            ended_s = time.monotonic() - began_s
        log = self._place / "mps" / "log" / "control.log"
        print(log.read_text()[-3000:] if log.exists() else "the daemon has no control.log")
        gone = not (self._place / "mps" / "pipe").exists()
        self._bench.answer("daemon", gone, start_s=started_s, quit_s=ended_s)

    def _environ(self) -> dict[str, str]:
        return {**os.environ, **self._seat.environ(), "CUDA_VISIBLE_DEVICES": self._uuid}

    def _start(self, number: int, together: int, window_s: float = 600.0) -> None:
        words = _words(self._bench, self._place, number, together)
        words[1] = str(window_s)
        command = [sys.executable, *machine.client(), str(SCRIPTS / "trained.py"), *words]
        self._clients.append(
            subprocess.Popen(command, env=self._environ(), stdin=subprocess.DEVNULL)
        )

    def _steps(self, number: int) -> int:
        try:
            return int((self._place / f"{number}.account").read_text())
        except (OSError, ValueError):
            return 0

    def _go_on(self, numbers: Sequence[int]) -> dict[str, bool]:
        """Which of them make steps."""
        before = {number: self._steps(number) for number in numbers}
        deadline_s = time.monotonic() + self._bench.patience_s(GOES_ON_S)
        # More than those that were under way.
        while time.monotonic() < deadline_s and not all(
            self._steps(number) > before[number] + 20 for number in numbers
        ):
            time.sleep(0.05)
        return {
            f"neighbour_{number}": self._steps(number) > before[number] + 20
            and self._clients[number].poll() is None
            for number in numbers
        }

    def _release(self, client: subprocess.Popen[bytes]) -> float:
        """Take a client off the GPU, as a supervisor does before it kills one; return seconds."""
        process = Process.of(client.pid)
        began_s = time.monotonic()
        if process is not None:
            self._seat.release({process})
        return time.monotonic() - began_s

    def _terminate(self) -> None:
        first = self._clients[0]
        took_s = self._release(first)
        try:
            code: int | str = first.wait(2)
        except subprocess.TimeoutExpired:
            code = "goes on, and is killed"
            first.kill()
        go_on = self._go_on((1, 2))
        self._bench.answer(
            "terminated", all(go_on.values()), terminate_client_s=took_s, itself=code, **go_on
        )

    def _kill(self) -> None:
        self._clients[1].kill()
        go_on = self._go_on((2,))
        self._bench.answer("killed", all(go_on.values()), **go_on)

    def _fault(self) -> None:
        if self._bench.rehearse:
            self._bench.answer("fault", NOT_ASKED, "without a GPU nothing can fail on it")
            return
        done = subprocess.run(
            self._bench.script("faulty"), env=self._environ(), capture_output=True, text=True,
            timeout=30, check=False,
        )  # fmt: skip
        go_on = self._go_on((2,))
        if not all(go_on.values()):
            # A server with a fault waits for the end of its clients before it serves others.
            self._clients[2].kill()
        last = (done.stderr.strip().splitlines() or [f"ended with {done.returncode}"])[-1][:120]
        self._bench.answer("fault", all(go_on.values()), last, **go_on)

    def _anew(self) -> None:
        """Begin another client with the same daemon, whatever became of its server."""
        self._start(3, 1, window_s=0.3)
        try:
            code: int | str = self._clients[3].wait(self._bench.patience_s(BEGINS_S))
        except subprocess.TimeoutExpired:
            code = f"none within {BEGINS_S:g} s"
        self._bench.answer("anew", code == 0, exit_code=code)


PART = Part(
    "mps",
    "4. Small trainings on one GPU by MPS",
    120.0,
    30.0,
    {
        "speed": "Are trainings on seats of `--mps` faster together than one after the other, "
        "and than by time slicing?",
        "terminated": "If `terminate_client` takes one off the GPU, do its neighbours go on?",
        "killed": "If one is killed by SIGKILL while it computes, does its neighbour go on?",
        "fault": "If one makes an illegal access, does its neighbour go on?",
        "anew": "Does the daemon serve a new client after that?",
        "daemon": "Does NVIDIA's daemon start for the first and quit after the last one?",
    },
    run,
)
