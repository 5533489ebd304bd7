"""A training that saves by its own means and knows nothing of hpcext; it counts its steps.

Usage: ``saver.py SIGNAL STEPS WORD...``. At the signal (``none``: at every tenth step) it writes
the number of its step to ``count.txt``, from which it begins. Words, in any order:

===========  =====================================================================================
``exit=N``   ends with this value once it has saved; else it goes on
``late``     handles the signal only once ``go`` is there: a long import
``deaf``     handles the signal and does nothing
``torn``     does not finish what it writes, and keeps it open
``open``     finishes what it writes when ``go`` is there
``zip``      writes the first half of a zip file
``old``      touches nothing: its checkpoint is the old one
``requeue``  calls ``scontrol requeue``
``child``    has a child that handles the signal and would spoil the checkpoint
``fail``     ends with 1 at the signal
``done``     its work is done when the signal comes
===========  =====================================================================================
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

COUNT, DIARY, GO = Path("count.txt"), Path("diary"), Path("go")
name, steps, words = sys.argv[1], int(sys.argv[2]), set(sys.argv[3:])
told: list[int] = []


def note(*parts: object) -> None:
    with DIARY.open("a", encoding="utf-8") as diary:
        diary.write(" ".join(map(str, parts)) + "\n")


def hear(signum: int, frame: object) -> None:
    told.append(signum)
    note("told", os.getpid())


def wait_for_go() -> None:
    while not GO.exists():
        time.sleep(0.01)


def save(step: int) -> None:
    text = str(step)
    if "old" in words:
        return
    if "zip" in words:
        COUNT.write_bytes(b"PK\x03\x04" + bytes(100))
        return
    if words & {"torn", "open"}:
        file = COUNT.open("w")
        file.write(text)
        file.flush()
        note("opened", step)
        if "open" in words:
            wait_for_go()
            file.close()
        else:
            globals()["kept"] = file
        return
    draft = COUNT.with_suffix(".new")
    draft.write_text(text)
    os.replace(draft, COUNT)


CHILD = """
import os, signal, time
def spoil(signum, frame): open('count.txt', 'w').write('spoilt')
signal.signal(signal.SIGTERM, signal.SIG_IGN)
signal.signal(signal.Signals[os.environ['BY']], spoil)
open('child', 'w').close()
while True: time.sleep(1)
"""

if "late" in words:
    note("importing", os.getpid())
    wait_for_go()
if "child" in words:
    subprocess.Popen([sys.executable, "-c", CHILD], env={**os.environ, "BY": name})
    while not Path("child").exists():
        time.sleep(0.01)
if name != "none":
    signal.signal(signal.Signals[name], hear)
step = int(COUNT.read_text()) if COUNT.exists() and "old" not in words else 0
note("ready", os.getpid(), step, *sys.argv[3:])
answered = 0
while step < steps:
    time.sleep(0.01)
    step += 1
    note("step", step)
    if name == "none" and step % 10 == 0:
        save(step)
    if len(told) == answered or "deaf" in words:
        continue
    answered = len(told)
    if "fail" in words:
        sys.exit(1)
    if "done" in words:
        break
    save(step)
    note("saved", step)
    if "requeue" in words:
        subprocess.run(["scontrol", "requeue", "1"], check=True)
    for word in words:
        if word.startswith("exit="):
            sys.exit(int(word[5:]))
note("done", step)
