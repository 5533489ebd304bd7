"""A job that speaks the protocol by itself, without torch; what it does goes into ``$DIARY``.

Words on the command line, in any order:

=============  ===================================================================================
``block``      blocks SIGTSTP itself, as sessions do; else it relies on what it inherits
``threads``    starts a thread before that, as libraries do
``wait``       waits for ``$DIARY.go`` before it begins: a long import
``quiet``      tells nobody that it is ready
``deaf``       never looks for a suspension
``stubborn``   ignores SIGTERM
``tidy``       answers SIGTERM by exit code 0
``stopped``    stops itself by SIGSTOP once it is ready
``daemon``     leaves a stubborn daemon behind, in its own session and without environment
``short``      ends by itself as soon as it is ready, with exit code 0
``linger``     acknowledges its suspension and does not end
``done``       ends with exit code 0 when it is to suspend: its work was done just then
``killed``     is killed when it is to suspend; ``saved``: its last step was saved
``full``       cannot save: answers each suspension by that, and goes on
``callbacks``  has something to do between its acknowledgement and its end
=============  ===================================================================================

Below torchrun all ranks but the first leave when told and acknowledge nothing.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

from hpcext import documents, protocol
from hpcext.process import Process

DIARY = os.environ["DIARY"]
words = set(sys.argv[1:])
attempt = protocol.Attempt.from_environ()
assert attempt is not None

DAEMON = """
import os, signal, sys, time
if os.fork(): os._exit(0)
os.setsid()
if os.fork(): os._exit(0)
signal.signal(signal.SIGTERM, signal.SIG_IGN)
with open(sys.argv[1], "a") as diary: diary.write(f"daemon {os.getpid()}\\n")
while True: time.sleep(60)
"""


def note(*parts: object) -> None:
    with open(DIARY, "a", encoding="utf-8") as diary:
        diary.write(" ".join(str(part) for part in parts) + "\n")


def tell_supervisor() -> None:
    assert attempt is not None
    if attempt.notify:
        attempt.notify.send(protocol.NEWS_SIGNAL)


def report(step: int, declined: int = 0, saved: int = 0) -> None:
    assert attempt is not None
    now = time.time()
    documents.write_json(
        attempt.report_dir / protocol.REPORT_FILE,
        {
            "schema": protocol.REPORT,
            "attempt": attempt.attempt,
            "op": attempt.op,
            "pid": os.getpid(),
            "start": Process.me().start,
            "world_size": attempt.num_gpus,
            "step": step,
            "resumed_step": 0,
            "saved_step": saved,
            "done": float(step),
            "rate": 10.0,
            "cannot_save": "disk full" if declined else None,
            "declined": declined,
            "metrics": {"loss": 1.0 / (1 + step)},
            "registered_at": now,
            "restored_at": now,
            "first_step_at": now if step else None,
            "at": now,
        },
        durable=False,
    )


def forget() -> None:
    while signal.SIGTSTP in signal.sigpending():
        signal.sigtimedwait({signal.SIGTSTP}, 0)


def acknowledge(step: int) -> None:
    assert attempt is not None
    now = time.time()
    documents.write_json(
        attempt.report_dir / protocol.SUSPENDED_FILE,
        {
            "schema": protocol.SUSPENDED,
            "attempt": attempt.attempt,
            "op": attempt.op,
            "step": step,
            "manifest": "none",
            "agreed_at": now,
            "written_at": now + 0.002,
            "acknowledged_at": now + 0.003,
        },
    )
    tell_supervisor()


if "threads" in words:
    threading.Thread(target=threading.Event().wait, daemon=True).start()
if "stubborn" in words:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
if "tidy" in words:
    signal.signal(signal.SIGTERM, lambda signum, frame: os._exit(0))
if "daemon" in words:
    subprocess.run([sys.executable, "-c", DAEMON, DIARY], env={}, check=True)
    # What ends with this before it has said a word is nothing to be asked about.
    while not Path(DIARY).exists() or "daemon" not in Path(DIARY).read_text():
        time.sleep(0.01)
note("importing", os.getpid())
while "wait" in words and not Path(f"{DIARY}.go").exists():
    time.sleep(0.01)
if "block" in words:
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTSTP})
# First, so that who hears of the session finds this.
note("ready", os.getpid(), attempt.attempt, os.environ.get("CUDA_VISIBLE_DEVICES", "-"))
report(0)
if "quiet" not in words:
    tell_supervisor()
if "stopped" in words:
    os.kill(os.getpid(), signal.SIGSTOP)
deaf_to = on_from = declined = 0
for step in range(1, 2 if "short" in words else 1_000_000):
    time.sleep(0.01)
    if step == 1:
        report(1)
    if step == deaf_to:
        # As a session does: a supervisor may have told it twice before it heard of the answer.
        forget()
    if step == on_from:
        note("trained", "on")
    if "full" in words and step > deaf_to and signal.SIGTSTP in signal.sigpending():
        note("told", os.getpid())
        forget()
        declined += 1
        # From the one to the other it takes longer than a supervisor waits before it tells again.
        deaf_to, on_from = step + 50, step + 200
        report(step, declined)
        tell_supervisor()
        continue
    if "full" in words:
        continue
    if "deaf" not in words and signal.SIGTSTP in signal.sigpending():
        note("told", os.getpid())
        if "done" in words:
            break
        if "killed" in words:
            (attempt.report_dir / protocol.LAST_STEP).write_text(f"{step}\n")
            report(step, saved=step if "saved" in words else step - 1)
            os.kill(os.getpid(), signal.SIGKILL)
        if os.environ.get("RANK", "0") == "0":
            acknowledge(step)
        if "callbacks" in words:
            time.sleep(3)  # longer than what is left over otherwise has
            note("called back", os.getpid())
        while "linger" in words:
            time.sleep(1)
        os._exit(0)
note("done", os.getpid())
