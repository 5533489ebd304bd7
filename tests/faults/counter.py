"""A job that speaks the protocol by itself: counts to N, saves, answers suspensions.

It uses nothing of hpcext but the protocol's names, and keeps its own account of what it did in
``$COUNTER_LOG``, for the test to judge by: one line per step, ``ATTEMPT STEP TIME GPUS PID``.
GPUS are what CUDA_VISIBLE_DEVICES says, or the variable that ``$COUNTER_GPUS`` names.
What ``$COUNTER_GOODPUT`` holds, JSON, it reports as its goodput.
A suspension takes it ``$COUNTER_SAVE_S`` seconds more than it has to.
With ``--gate FILE`` it does its last step when that file is there, with ``--until FILE`` the step
that it does then is its last one.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time

from hpcext import documents, protocol
from hpcext.process import Process

STEPS, STEP_S, SAVE_EVERY = int(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3])
DEAF = "--deaf" in sys.argv
GATE = sys.argv[sys.argv.index("--gate") + 1] if "--gate" in sys.argv else None
UNTIL = sys.argv[sys.argv.index("--until") + 1] if "--until" in sys.argv else None
attempt = protocol.Attempt.from_environ()
assert attempt is not None
state = attempt.checkpoint_dir / "count.json"
log = open(os.environ["COUNTER_LOG"], "a", buffering=1)  # noqa: SIM115


def save(step: int) -> None:
    documents.write_json(state, {"step": step})


def report(step: int, saved: int, first_step_at: float | None) -> None:
    document = {
        "schema": protocol.REPORT,
        "attempt": attempt.attempt,
        "op": attempt.op,
        "pid": os.getpid(),
        "start": Process.me().start,
        "world_size": attempt.num_gpus,
        "step": step,
        "resumed_step": begin,
        "saved_step": saved,
        "done": float(step),
        "rate": 1 / STEP_S,
        "metrics": {"count": float(step)},
        "goodput": json.loads(os.environ.get("COUNTER_GOODPUT", "null")),
        "registered_at": registered_at,
        "restored_at": registered_at,
        "first_step_at": first_step_at,
        "at": time.time(),
    }
    documents.write_json(attempt.report_dir / protocol.REPORT_FILE, document, durable=False)


def leave(step: int) -> None:
    time.sleep(float(os.environ.get("COUNTER_SAVE_S", "0")))
    now = time.time()
    save(step)
    document = {
        "schema": protocol.SUSPENDED,
        "attempt": attempt.attempt,
        "op": attempt.op,
        "step": step,
        "manifest": state.name,
        "agreed_at": now,
        "written_at": time.time(),
        "acknowledged_at": time.time(),
    }
    report(step, step, first_step_at)
    documents.write_json(attempt.report_dir / protocol.SUSPENDED_FILE, document)
    if attempt.notify:
        attempt.notify.send(protocol.NEWS_SIGNAL)
    os._exit(0)


# As sessions do: a shell between the supervisor and us may have cleared the mask.
signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTSTP})
# As it is below a supervisor, but not below Apptainer; it is sent to all processes of a step.
signal.signal(signal.SIGUSR1, signal.SIG_IGN)
if attempt.notices:
    # What the batch system sends to every process is its word to the supervisor.
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
attempt.checkpoint_dir.mkdir(parents=True, exist_ok=True)
begin = json.loads(state.read_text())["step"] if state.exists() else 0
registered_at = time.time()
first_step_at = None
saved = step = begin
report(begin, saved, None)
if attempt.notify:
    attempt.notify.send(protocol.NEWS_SIGNAL)
for step in range(begin + 1, STEPS + 1):
    time.sleep(STEP_S)
    while GATE and step == STEPS and not os.path.exists(GATE):
        time.sleep(STEP_S)
        if not DEAF and signal.SIGTSTP in signal.sigpending():
            leave(step - 1)
    gpus = os.environ.get(os.environ.get("COUNTER_GPUS", "CUDA_VISIBLE_DEVICES"), "?")
    log.write(f"{attempt.attempt} {step} {time.monotonic():.6f} {gpus} {os.getpid()}\n")
    if first_step_at is None:
        first_step_at = time.time()
    if step % SAVE_EVERY == 0:
        save(step)
        saved = step
        report(step, saved, first_step_at)
    if UNTIL and os.path.exists(UNTIL):
        break
    if not DEAF and signal.SIGTSTP in signal.sigpending():
        leave(step)
save(step)
report(step, step, first_step_at)
