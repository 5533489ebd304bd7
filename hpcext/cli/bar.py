"""A progress bar on a terminal, with the time that is left."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator

from rich import progress
from rich.console import Console

from hpcext.text import clean

_LOOK_S = 0.5


@contextlib.contextmanager
def bar(
    console: Console, total: int, within: Callable[[], float]
) -> Iterator[Callable[[str], None]]:
    """Show a bar; yield what is to be called with a description of each part that is done.

    Parameters
    ----------
    console : Console
    total : int
        The number of parts.
    within : callable
        Returns how much is done of the parts that are not done yet, in parts. It is called from
        another thread.
    """
    columns = (
        progress.BarColumn(),
        progress.MofNCompleteColumn(),
        progress.TimeElapsedColumn(),
        progress.TextColumn("left:"),
        progress.TimeRemainingColumn(),
        progress.TextColumn("{task.description}", markup=False),
    )
    done: list[str] = []
    over = threading.Event()
    with progress.Progress(
        *columns, console=console, refresh_per_second=2, transient=True
    ) as shown:
        task = shown.add_task("", total=total)

        def look() -> None:
            while not over.wait(_LOOK_S):
                shown.update(task, completed=len(done) + within())

        def tell(text: str) -> None:
            done.append(text)
            part = len(done) + within()
            shown.update(task, completed=part, description=clean(text), refresh=True)

        looking = threading.Thread(target=look, daemon=True)
        looking.start()
        try:
            yield tell
        finally:
            over.set()
            looking.join()
