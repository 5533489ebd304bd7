"""One process that speaks the protocol by itself: ``count.py EPOCHS STEP_S SAVE_EVERY``."""

from __future__ import annotations

import os
import signal
import sys
import time

import account
import speaks

EPOCHS, STEP_S, SAVE_EVERY = int(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3])

account.note("begin", found=[])
state = speaks.load()
begin = saved = state["step"]
account.note("resumed", step=begin)
speaks.report(begin, begin, saved, 1)
done = 0
for epoch in range(EPOCHS):
    for rows in account.order(epoch):
        done += 1
        if done <= begin:
            continue
        time.sleep(STEP_S)
        state = {"step": done, "sum": state["sum"] + sum(rows)}
        account.note("step", step=done, epoch=epoch, rows=rows, size=1, sum=state["sum"])
        if done % SAVE_EVERY == 0 and speaks.save(state):
            saved = done
            speaks.report(begin, done, saved, 1)
        if signal.SIGTSTP in signal.sigpending():
            os._exit(0 if speaks.save(state) and speaks.acknowledge(done) else 74)
if not speaks.save(state):
    sys.exit(74)
account.note("end", step=done)
speaks.report(begin, done, done, 1)
