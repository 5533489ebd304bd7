"""The event loop of a virtual process: asyncio's own, waiting for virtual things."""

from __future__ import annotations

import asyncio
import asyncio.base_events
import signal
import types
from collections.abc import Callable, Coroutine
from typing import Any

from virtual import calls

MISTAKES = (AssertionError, AttributeError, LookupError, NameError, NotImplementedError, TypeError)


class Selector:
    """What a loop waits by: descriptors, signals, and a deadline."""

    def __init__(self) -> None:
        self.readers: dict[int, Any] = {}
        self.awake = False

    def select(self, timeout_s: float | None) -> list[Any]:
        """Wait until a descriptor is ready, a signal was heard, or the time is over."""
        kernel, process = calls.kernel(), calls.me()

        def ready() -> list[Any]:
            if not self.readers:
                return []
            return [
                handle for fd, handle in self.readers.items()
                if fd in process.fds and _readable(process.fds[fd])
            ]  # fmt: skip

        if timeout_s is None or timeout_s > 0:
            deadline = None if timeout_s is None else kernel.now + timeout_s
            kernel.wait(lambda: self.awake or bool(ready()), deadline)
        self.awake = False
        return ready()

    def close(self) -> None:
        """Do nothing."""


def _readable(opened: Any) -> bool:
    if opened.process is not None:
        return bool(opened.process.dead)
    return opened.pipe is None or bool(opened.pipe.data) or not opened.pipe.writers


class Loop(asyncio.base_events.BaseEventLoop):
    """One of them."""

    def __init__(self) -> None:
        super().__init__()
        self._selector = Selector()
        self._clock_resolution = 1e-6

    def time(self) -> float:
        return calls.kernel().now

    def _process_events(self, handles: list[Any]) -> None:
        for handle in handles:
            self._add_callback(handle)

    def _add_callback(self, handle: Any) -> None:
        if not handle._cancelled:
            self._ready.append(handle)

    def _write_to_self(self) -> None:
        self._selector.awake = True

    def add_reader(self, fd: int, callback: Callable[..., object], *args: Any) -> None:
        """Call back when a descriptor can be read."""
        self._selector.readers[fd] = asyncio.Handle(callback, args, self)

    def remove_reader(self, fd: int) -> bool:
        """Do so no more."""
        return self._selector.readers.pop(fd, None) is not None

    def add_signal_handler(self, signum: int, callback: Callable[..., object], *args: Any) -> None:
        """Call back at a signal."""

        def heard(_signum: int, _frame: object) -> None:
            self.call_soon(callback, *args)
            self._selector.awake = True

        calls.sigaction(signum, heard)

    def remove_signal_handler(self, signum: int) -> bool:
        """Have a signal do again what it does by default."""
        handler = signal.default_int_handler if signum == signal.SIGINT else signal.SIG_DFL
        calls.sigaction(signum, handler)
        return True

    def create_task(self, coroutine: Any, **named: Any) -> Any:
        """Begin a task; a mistake in it is told even if nobody asks how it ended."""
        task = super().create_task(coroutine, **named)
        task.add_done_callback(_mistake)
        return task

    def run_in_executor(self, _executor: Any, function: Callable[..., Any], *args: Any) -> Any:
        """Do at once what a thread would do."""
        future = self.create_future()
        try:
            future.set_result(function(*args))
        except Exception as error:
            future.set_exception(error)
        return future

    async def shutdown_default_executor(self, *_: Any) -> None:
        """Do nothing: there are no threads."""


def _mistake(task: Any) -> None:
    if not task.cancelled() and isinstance(error := task.exception(), MISTAKES):
        calls.kernel().fault(calls.me(), error)


def run(main: Coroutine[Any, Any, Any]) -> Any:
    """Do what asyncio.run does, in the present process."""
    calls.me()
    loop = Loop()
    try:
        return loop.run_until_complete(main)
    finally:
        _cancel(loop)
        loop.close()


def _cancel(loop: Loop) -> None:
    tasks = asyncio.all_tasks(loop)
    for task in tasks:
        task.cancel()
    if tasks:
        loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))


async def to_thread(function: Callable[..., Any], *args: Any, **named: Any) -> Any:
    """Do at once what a thread would do, and let others do something before its answer."""
    await asyncio.sleep(0)
    return function(*args, **named)


def as_asyncio() -> types.ModuleType:
    """Return the module `asyncio`."""
    module = types.ModuleType("asyncio")
    module.__dict__.update(vars(asyncio))
    module.__dict__.update(run=run, to_thread=to_thread)
    return module
