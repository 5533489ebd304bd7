"""Plays one draw: ``play.py SEED DIRECTORY [--keep] [--small-disk]``.

Exit code 0 if nothing was lost. With ``--small-disk`` the pilot is on a tmpfs, which it may mount.

The directory must not exist, and is removed if nothing was lost, unless it is to be kept.
Started by ``draws.py``.
"""

from __future__ import annotations

import contextlib
import os
import resource
import shutil
import signal
import subprocess
import sys
import threading
import time
import traceback
from pathlib import Path

from game import DISK_BYTES
from hands import Hands
from judge import LostError, judge, judge_exits
from plan import Plan, draw

from hpcext.launch import tree
from hpcext.launch.command import become_reaper

LIMIT_S = 120.0


def play(hands: Hands) -> None:
    """Do all that the plan says, then wait for the end of the jobs."""
    hands.write_jobs()
    hands.start_manager()
    for fault in hands.plan.faults:
        hands.wait_for(fault)
        if hands.done:
            break
        hands.do(fault)
        see_to_manager(hands)
    while not hands.done or not hands.settled():
        see_to_manager(hands)
        if hands.settled():
            hands.release()
        time.sleep(0.1)
    hands.say("all is done")


def see_to_manager(hands: Hands) -> None:
    """Start another manager if there is none."""
    if hands.see_manager() or hands.done:
        return
    while hands.full.is_set():
        time.sleep(0.05)
    hands.start_manager()


def check(hands: Hands) -> None:
    """Raise LostError if something was lost, or something is left."""
    hands.facts.states = hands.states()
    for log in hands.path.glob("manager-*.log"):
        if "Traceback" in log.read_text(errors="replace"):
            raise LostError(f"{log.name} holds a traceback")
    judge(hands.plan, hands.path / "accounts", hands.facts)
    judge_exits(hands.pilot / "jobs", hands.ids, hands.facts)
    left = left_behind(hands)
    if left:
        raise LostError(f"processes are left: {left}")


def left_behind(hands: Hands) -> list[str]:
    mark = f"DRAW={hands.path}"
    found = []
    for process in tree.marked([mark]):
        with contextlib.suppress(OSError):
            words = Path(f"/proc/{process.pid}/cmdline").read_bytes().replace(b"\0", b" ")
            found.append(f"{process.pid} {words.decode(errors='replace')}")
    return found


def watch(hands: Hands) -> None:
    """End a draw that hangs: with it everything that it started."""
    hands.say(f"still not at its end after {LIMIT_S:g} s")
    for line in left_behind(hands):
        hands.say(f"runs: {line}")
    fail(hands, f"not at its end after {LIMIT_S:g} s")


def fail(hands: Hands, why: str) -> None:
    """Say what is wrong, keep what is on the small disk, and leave."""
    hands.say(f"LOST: {why}")
    for _ in range(3):
        for process in tree.marked([f"DRAW={hands.path}"]):
            process.send(signal.SIGKILL)
    if hands.small_disk:
        shutil.copytree(
            hands.path / "disk", hands.path / "disk.kept", ignore_dangling_symlinks=True
        )
    sys.stdout.write(f"{hands.plan}\nLOST: {why}\n")
    sys.stdout.flush()
    os._exit(1)


def main() -> int:
    began_s = time.monotonic()
    seed, path = int(sys.argv[1]), Path(sys.argv[2]).absolute()
    plan: Plan = draw(seed)
    path.mkdir(parents=True)
    # What a killed manager leaves counts as ours; and is reaped, also where there is no init.
    become_reaper()
    hands = Hands(plan, path, small_disk="--small-disk" in sys.argv)
    (path / "plan.txt").write_text(f"{plan}\n")
    if hands.small_disk:
        options = f"size={DISK_BYTES},mode=0700"
        subprocess.run(["mount", "-t", "tmpfs", "-o", options, "none", path / "disk"], check=True)
    timer = threading.Timer(LIMIT_S, watch, [hands])
    timer.daemon = True
    timer.start()
    try:
        play(hands)
        check(hands)
    except LostError as error:
        fail(hands, str(error))
    except Exception:
        fail(hands, traceback.format_exc())
    timer.cancel()
    if hands.small_disk:
        if "--keep" in sys.argv:
            shutil.copytree(path / "disk", path / "disk.kept")
        subprocess.run(["umount", path / "disk"], check=True)
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    cpu_s = sum(one.ru_utime + one.ru_stime for one in used)
    sys.stdout.write(f"{seed} {time.monotonic() - began_s:.1f} {cpu_s:.1f}\n")
    if "--keep" not in sys.argv:
        shutil.rmtree(path)
    return 0


if __name__ == "__main__":
    sys.exit(main())
