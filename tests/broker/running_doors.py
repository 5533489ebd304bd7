"""A broker's doors in a thread, and what they were asked."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hpcext.broker.desk import Desk, Door
from hpcext.broker.identity import Peer, PeerCredentials
from hpcext.broker.server import Server
from hpcext.harvest import leave, ways

WAIT_S = 240.0
NAME = "hpcext-jobs-20261124-120000-ab12"


def an_ask(**more: Any) -> leave.Ask:
    return leave.Ask(NAME, "harvest", 4, 2, (leave.Trainer(1, (4,), (1, 2)),), **more)


def asked(way: ways.Way) -> leave.Answer:
    """Ask, and wait as long as a busy machine takes."""
    return ways.ask(way, an_ask(), WAIT_S)


class RunningDoors:
    """Doors that one desk has, whose answer a test gives."""

    def __init__(self, *make: Callable[[Desk], Door]) -> None:
        self.heard: list[tuple[Peer, Any]] = []
        self.calls = 0.0
        self.answer: Any = leave.Answer(nodes=3, claim=("n1",))
        # Each call is an hour after the one before, unless a test says otherwise.
        self.desk = Desk(self._reply, lambda: self.calls)
        self.doors: list[Door] = []
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        try:
            for each in make:
                self.doors.append(each(self.desk))
                self.do(self.doors[-1].begin())
        except BaseException:
            self.end()
            raise

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_forever()

    def do(self, what: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(what, self._loop).result(60)

    def _reply(self, peer: Peer, message: Any) -> Any:
        self.heard.append((peer, message))
        self.calls += 3600
        return self.answer

    @property
    def users(self) -> list[int]:
        return [peer.uid for peer, _ in self.heard]

    def end(self) -> None:
        for door in self.doors:
            self.do(door.end())
        self.do(self._cancel())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    async def _cancel(self) -> None:
        """As asyncio.run does at its end."""
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)


class Running(RunningDoors):
    """A server on a Unix socket."""

    def __init__(self, path: Path) -> None:
        self.path = path
        super().__init__(lambda desk: Server(path, PeerCredentials(), desk))
