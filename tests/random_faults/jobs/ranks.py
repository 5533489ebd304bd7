"""Ranks under ``hpcext launch`` that are resized in place: ``ranks.py EPOCHS STEP_S SAVE_EVERY``.

Without a framework: they speak the protocol and that of the rendezvous by themselves, and meet at
a socket of rank 0, a new one for each group.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
import time
from typing import Any

import account
import speaks

from hpcext import protocol
from hpcext.rendezvous import Formed, Group, Rendezvous

EPOCHS, STEP_S, SAVE_EVERY = int(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3])
GO, STOP, CHANGE, FAILED = b"g", b"s", b"c", b"f"
rank = account.rank


class Bus:
    """The ranks of one group: rank 0 hears all, then tells all."""

    def __init__(self, group: Group) -> None:
        self.size = group.size
        name = f"bus-{group.number}"
        self.peers: list[socket.socket] = []
        if rank == 0:
            with socket.socket(socket.AF_UNIX) as hall:
                hall.bind(f".{name}")
                hall.listen(16)
                os.rename(f".{name}", name)
                self.peers = [hall.accept()[0] for _ in range(group.size - 1)]
            return
        self.peers = [socket.socket(socket.AF_UNIX)]
        while True:
            try:
                self.peers[0].connect(name)
                return
            except FileNotFoundError:
                time.sleep(0.005)

    def hear(self) -> list[bytes]:
        """A letter of each peer; who is gone ends us all."""
        heard = [peer.recv(1) for peer in self.peers]
        if not all(heard):
            sys.exit(1)
        return heard

    def say(self, data: bytes) -> None:
        for peer in self.peers:
            peer.sendall(data)

    def share(self, state: dict[str, Any]) -> dict[str, Any]:
        """What rank 0 has."""
        if rank == 0:
            self.say(json.dumps(state).encode() + b"\n")
            return state
        with self.peers[0].makefile("rb", buffering=0) as file:
            line = file.readline()
        if not line:
            sys.exit(1)
        shared: dict[str, Any] = json.loads(line)
        return shared

    def close(self) -> None:
        for peer in self.peers:
            peer.close()


class Training:
    def __init__(self) -> None:
        account.note("begin", found=[])
        place = Rendezvous.from_environ()
        assert place is not None
        self.place = place
        os.chdir(place.directory)
        self.group = Group(place.joins, int(os.environ["WORLD_SIZE"]))
        self.next: Group | None = None
        self.unanswered = False
        self.state = speaks.load() if not place.joins else {}
        if place.joins:
            place.ready(rank)
            while not place.has_begun(place.joins):
                time.sleep(0.005)
        self.bus = Bus(self.group)
        self.state = self.bus.share(self.state)
        self.begin = self.saved = self.state["step"]
        account.note("resumed", step=self.begin, joins=place.joins)
        self.report(self.begin)

    def report(self, step: int) -> None:
        if rank == 0:
            speaks.report(self.begin, step, self.saved, self.group.size, in_place=True)

    def run(self) -> None:
        done = 0
        for epoch in range(EPOCHS):
            for batch in account.order(epoch):
                done += 1
                if done > self.state["step"]:
                    self.step(done, epoch, batch)
        self.answer()
        if rank == 0:
            if not speaks.save(self.state):
                sys.exit(74)
            self.report(done)
        account.note("end", step=done)

    def step(self, done: int, epoch: int, batch: list[int]) -> None:
        time.sleep(STEP_S)
        rows = batch[rank :: self.group.size]
        self.state = {"step": done, "sum": self.state["sum"] + sum(batch)}
        size = self.group.size
        account.note("step", step=done, epoch=epoch, rows=rows, size=size, sum=self.state["sum"])
        asked = signal.SIGTSTP in signal.sigpending()
        if rank != 0:
            self.bus.say(STOP if asked else GO)
            self.obey(self.bus.hear()[0])
            return
        stop = STOP in self.bus.hear() or asked
        self.answer()
        if stop:
            saved = speaks.save(self.state) and speaks.acknowledge(done)
            self.bus.say(STOP if saved else FAILED)
            os._exit(0 if saved else 74)
        if done % SAVE_EVERY == 0 and speaks.save(self.state):
            self.saved = done
            self.report(done)
        self.next = self.proposal()
        self.bus.say(CHANGE if self.next else GO)
        if self.next:
            self.change()

    def obey(self, word: bytes) -> None:
        if word in {STOP, FAILED}:
            os._exit(0 if word == STOP else 74)
        if word == CHANGE:
            self.change()

    def proposal(self) -> Group | None:
        if not signal.sigtimedwait({protocol.NEWS_SIGNAL}, 0):
            return None
        found = self.place.group()
        return found if found and found.number > self.group.number else None

    def change(self) -> None:
        """Leave the group, and form the next one."""
        self.bus.close()
        found = self.place.group()
        assert found is not None
        if rank not in found.stay:
            os._exit(0)
        if rank == 0:
            self.place.begin(found.number)
        self.group, self.unanswered = found, True
        self.bus = Bus(found)
        shared = self.bus.share(self.state)
        assert shared == self.state, (shared, self.state)

    def answer(self) -> None:
        """The first step of a new group is done."""
        if self.unanswered and rank == 0:
            self.place.formed(Formed(self.group.number, stall_s=0.0))
        self.unanswered = False


Training().run()
