"""What is done to a draw: each fault of the plan by a method of its name."""

from __future__ import annotations

import contextlib
import os
import re
import resource
import signal
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from game import Game
from plan import Fault

from hpcext import documents, protocol
from hpcext.core.errors import HpcextError
from hpcext.launch import tree
from hpcext.manager import spool
from hpcext.process import Process
from hpcext.training.checkpoint import CheckpointError, verify

FILE_BYTES = 100_000
PAGE_BYTES = 4096
PATIENCE_S = 4.0
"""A fault that waits for progress comes when there was none for so long."""

BIRTH_S = 20.0
"""The same before the first line of all."""

RETRY_S = 6.0
"""What cannot be done yet (no session, no manager) is tried for so long."""

PASSING = ("(yet)", "no manager", "ended before", "No such", "no job", "No space")
"""What a request may be refused with that is granted later."""


class Hands(Game):
    """Does what the plan says."""

    # What happens.

    def wait_for(self, fault: Fault) -> None:
        """Wait for the instant of a fault: for progress, while there is any."""
        seen = self.lines()
        wanted = seen + fault.lines
        moved_s = time.monotonic()
        while seen < wanted and not self.done:
            patience_s = PATIENCE_S if seen else BIRTH_S
            if time.monotonic() > moved_s + patience_s:
                self.say("no progress")
                break
            time.sleep(0.01)
            now = self.lines()
            if now != seen:
                seen, moved_s = now, time.monotonic()
        time.sleep(fault.delay_s)

    def do(self, fault: Fault) -> None:
        """Do it."""
        getattr(self, fault.kind.replace("-", "_"))(fault)

    def later(self, what: Callable[[], object]) -> None:
        """Do something beside the rest; see :meth:`settled`."""
        thread = threading.Thread(target=what)
        thread.start()
        self._threads.append(thread)

    def settled(self) -> bool:
        """Whether all that was begun beside the rest is over."""
        return not any(thread.is_alive() for thread in self._threads)

    # Processes.

    def supervisor(self, job: str) -> Process | None:
        """That of the newest attempt, if it runs."""
        attempts = sorted((self.pilot / "jobs" / self.ids[job]).glob("attempt-*"))
        if not attempts:
            return None
        try:
            path = attempts[-1] / protocol.SUPERVISOR_FILE
            facts = documents.read_json(path, protocol.SUPERVISOR)
        except (OSError, ValueError):
            return None
        found = Process(facts["pid"], facts["start"])
        return found if found.alive() else None

    def victim(self, fault: Fault) -> Process | None:
        """The process of a job that a fault is for, as soon as it runs."""
        supervisor = self.supervisor(fault.job)
        until_s = time.monotonic() + RETRY_S
        while supervisor is None:
            # Done, or behind another one in the queue; or the manager is being started.
            if time.monotonic() > until_s or self.done or fault.job in self.ended:
                return None
            time.sleep(0.02)
            self.lines()
            supervisor = self.supervisor(fault.job)
        levels = [[supervisor]]
        for _ in range(fault.depth):
            below = [child for parent in levels[-1] for child in _children(parent.pid)]
            if not below:
                break
            levels.append(below)
        found = sorted(levels[-1], key=lambda process: process.pid)
        return found[min(int(fault.pick * len(found)), len(found) - 1)]

    def kill(self, fault: Fault) -> None:
        victim = self.victim(fault)
        if victim is None:
            self.say(f"kill: {fault.job} does not run")
            return
        self.say(f"kill: {fault.job}, pid {victim.pid} {_name(victim)}")
        self.facts.hits[fault.job].append(time.time())
        victim.send(signal.SIGKILL)

    def stall(self, fault: Fault) -> None:
        victim = self.victim(fault)
        if victim is None:
            self.say(f"stall: {fault.job} does not run")
            return
        victim.send(signal.SIGSTOP)
        self.say(f"stall: {fault.job}, pid {victim.pid} {_name(victim)}")
        if fault.again:
            self.suspend(fault)

        def go_on() -> None:
            time.sleep(fault.hold_s)
            victim.send(signal.SIGCONT)
            self.say(f"stall: pid {victim.pid} goes on")

        self.later(go_on)

    # The manager.

    def kill_manager(self, fault: Fault) -> None:
        self.end_manager(signal.SIGKILL)
        if fault.again:
            self.start_manager()
            time.sleep(fault.hold_s)
            self.end_manager(signal.SIGKILL)
        else:
            time.sleep(fault.hold_s)
        if not self.done:
            self.start_manager()

    def stop_manager(self, fault: Fault) -> None:
        """SIGTERM, which suspends all; the second one makes it leave at once."""
        self.end_manager(*[signal.SIGTERM] * (1 + fault.again), pause_s=0.2 * fault.again)
        if not self.done:
            self.start_manager()

    def stall_manager(self, fault: Fault) -> None:
        manager = self.manager
        if manager is None or manager.poll() is not None:
            return
        manager.send_signal(signal.SIGSTOP)
        self.say("stall-manager")
        time.sleep(fault.hold_s)
        manager.send_signal(signal.SIGCONT)

    def ask_and_kill_manager(self, fault: Fault) -> None:
        """A request is in the spool, or in the journal and not answered, when it dies."""
        self.later(lambda: self.ask("resize", fault.job, gpus=fault.number))
        time.sleep(fault.hold_s / 20)
        self.end_manager(signal.SIGKILL)
        if not self.done:
            self.start_manager()

    # Requests.

    def ask(self, verb: str, job: str, *, patient: bool = True, **words: object) -> bool:
        """Ask a manager as ``hpcext VERB`` does; whether it said yes."""
        until_s = time.monotonic() + RETRY_S * patient
        while True:
            try:
                answer = spool.ask(self.pilot, verb, timeout_s=10.0, job=job, **words)
            except (HpcextError, OSError) as error:
                said = f"{type(error).__name__}: {error}"
            else:
                self.say(f"{verb} {job}: {answer['text']}")
                return True
            # Somebody who types would try again: there is no manager, or no session yet.
            passing = any(word in said for word in PASSING)
            if not passing or time.monotonic() > until_s or self.done or job in self.ended:
                self.say(f"{verb} {job} {words or ''}: {said}")
                return False
            time.sleep(0.05)

    def suspend(self, fault: Fault) -> None:
        def both() -> None:
            self.ask("suspend", fault.job)
            time.sleep(fault.hold_s)
            self.ask("resume", fault.job)

        self.later(both)

    def resize(self, fault: Fault) -> None:
        def ask() -> None:
            self.ask("resize", fault.job, gpus=fault.number)
            if fault.again:
                time.sleep(fault.hold_s / 4)
                self.ask("resize", fault.job, gpus=self._jobs[fault.job].gpus[2])

        self.later(ask)

    def cancel(self, fault: Fault) -> None:
        def ask() -> None:
            while not self.done and self.states().get(fault.job, "unfinished") == "unfinished":
                if self.ask("cancel", fault.job):
                    break
                # The answer may have been lost with the manager: then it is cancelled already.
                time.sleep(0.2)
            self.facts.cancelled[fault.job] = time.monotonic()

        self.later(ask)

    def release(self) -> None:
        """Let a job go on that is still held, as a user does who sees it."""
        world = self.world()
        if world is None or self.manager is None or self.manager.poll() is not None:
            return
        for job in world.unfinished():
            if job.on_hold:
                self.ask("resume", job.name)

    # Disks.

    def damage(self, fault: Fault) -> None:
        """Break the newest checkpoint of a job while nothing of it runs, if it has two."""
        directory = self.pilot / "jobs" / self.ids[fault.job] / "checkpoint"
        until_s = time.monotonic() + RETRY_S
        while len(list(directory.glob("step-*"))) < 2 and time.monotonic() < until_s:
            if self.done or fault.job in self.ended:
                break
            time.sleep(0.02)
            self.lines()
        self.end_manager(signal.SIGKILL)
        if self.done:
            return
        supervisor = self.supervisor(fault.job)
        if supervisor is not None:
            self.facts.hits[fault.job].append(time.time())
            victims = [supervisor, *tree.descendants(supervisor.pid)]
            for victim in victims:
                victim.send(signal.SIGKILL)
            while any(victim.alive() for victim in victims) or self.marked(fault.job):
                for victim in self.marked(fault.job):
                    victim.send(signal.SIGKILL)
                time.sleep(0.01)
        whole = _whole(directory)
        if len(whole) < 2:
            self.say(f"damage: {fault.job} has {len(whole)} checkpoints")
        else:
            self.facts.damaged[fault.job][whole[0].name] = time.monotonic()
            self.say(f"damage: {_break(whole[0], fault)}")
        self.start_manager()

    def marked(self, job: str) -> list[Process]:
        """Processes of the job's newest attempt."""
        attempts = sorted((self.pilot / "jobs" / self.ids[job]).glob("attempt-*"))
        return tree.marked([f"HPCEXT_REPORT_DIR={attempt}" for attempt in attempts[-1:]])

    def small_files(self, fault: Fault) -> None:
        """For a while the job's processes cannot write files of the size of a checkpoint."""
        supervisor = self.supervisor(fault.job)
        if supervisor is None or self._jobs[fault.job].kind != "arrays":
            return
        self.facts.full = True
        self.say(f"small-files: {fault.job}")
        victims = tree.descendants(supervisor.pid)
        for victim in victims:
            _limit(victim, FILE_BYTES)

        def lift() -> None:
            time.sleep(fault.hold_s)
            for victim in victims:
                _limit(victim, resource.RLIM_INFINITY)
            self.say("small-files: over")

        self.later(lift)

    def fill(self, fault: Fault) -> None:
        """Fill the disk of the pilot for a while."""
        if self.full.is_set() or not self.small_disk:
            return
        self.full.set()
        self.facts.full = True
        ballast = self.path / "disk" / "ballast"
        if fault.number == 0:
            for log in self.pilot.glob("jobs/*/log.txt"):
                # A tmpfs gives room by the page: to a log, too, there must be none left.
                with open(log, "ab") as file:
                    file.write(b"\n" * (-log.stat().st_size % PAGE_BYTES))
        self._fill(ballast, fault.number)
        self.say(f"fill: {fault.number} bytes are left")

        def free() -> None:
            time.sleep(fault.hold_s)
            ballast.unlink()
            self.full.clear()
            self.say("fill: there is room again")

        self.later(free)

    def _fill(self, ballast: Path, left: int) -> None:
        with open(ballast, "wb", buffering=0) as file, contextlib.suppress(OSError):
            room = os.statvfs(self.path / "disk")
            file.write(bytes(max(0, room.f_bavail * room.f_bsize - left)))
            while left == 0:
                file.write(bytes(PAGE_BYTES))

    # Clocks.

    def jump(self, fault: Fault) -> None:
        """Move the clock of the manager and of the trainings."""
        clock = self.path / "clock"
        before = float(clock.read_text()) if clock.exists() else 0.0
        documents.write_file(clock, str(before + fault.number).encode(), durable=False)
        self.say(f"jump: by {fault.number} s")


def _children(pid: int) -> list[Process]:
    try:
        text = Path(f"/proc/{pid}/task/{pid}/children").read_text()
    except OSError:
        return []
    found = (Process.of(int(child)) for child in text.split())
    return [child for child in found if child]


def _name(process: Process) -> str:
    try:
        words = Path(f"/proc/{process.pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return ""
    return " ".join(os.path.basename(word.decode(errors="replace")) for word in words[:6])


def _limit(process: Process, size: int) -> None:
    with contextlib.suppress(OSError):
        _, hard = resource.prlimit(process.pid, resource.RLIMIT_FSIZE)
        resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (size, hard))


def _whole(directory: Path) -> list[Path]:
    """Checkpoints that verify, newest first."""
    found: list[tuple[Sequence[int], Path]] = []
    for path in directory.glob("step-*"):
        match = re.fullmatch(r"step-(\d+)\.attempt-(\d+)(?:\.(\d+))?", path.name)
        with contextlib.suppress(CheckpointError):
            verify(path)
            if match:
                step, attempt, serial = (int(part or 0) for part in match.groups())
                found.append(((attempt, step, serial), path))
    return [path for _, path in sorted(found, reverse=True)]


def _break(checkpoint: Path, fault: Fault) -> str:
    """Flip one bit of a file of a checkpoint, or cut it off; says what was done."""
    files = sorted(path for path in checkpoint.rglob("*") if path.is_file())
    path = files[fault.number % len(files)]
    content = bytearray(path.read_bytes())
    at = fault.number % len(content)
    if fault.again:
        del content[at:]
    else:
        content[at] ^= 1 << (fault.number % 8)
    path.write_bytes(content)
    return f"{checkpoint.name}/{path.name} {'cut' if fault.again else 'flipped'} at {at}"
