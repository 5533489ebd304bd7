"""The addresses of the dashboard, with the pages and documents that they show."""

from __future__ import annotations

import importlib.resources
import itertools
import threading
import time
from collections.abc import Callable, Iterator
from typing import NamedTuple
from urllib.parse import parse_qs

import msgspec

from hpcext.core.errors import HpcextError
from hpcext.dashboard import page
from hpcext.dashboard.document import Document, LocalGpus, document
from hpcext.dashboard.lanes import TimeWindow
from hpcext.executors.gpu_facts import gpu_facts, mps_runs
from hpcext.manager.directory import host
from hpcext.manager.views.reading import REPLAY_SHARE, Reading

Read = Callable[[], Iterator[Reading | HpcextError]]

FRESH_S = 1.0
"""Seconds for which a reading serves all requests; longer if reading takes long."""

HTML = "text/html; charset=utf-8"
JSON = "application/json"
FILES = {
    "style.css": "text/css; charset=utf-8",
    "live.js": "text/javascript; charset=utf-8",
    "icon.svg": "image/svg+xml",
}


def now(read: Read) -> Document:
    """Read the newest pilots and the GPUs of this machine."""
    gpus = gpu_facts()
    machine = LocalGpus(host(), gpus, mps_runs()) if gpus else None
    return document(itertools.islice(read(), page.MOST_PILOTS), time.time(), machine)


class Response(NamedTuple):
    """An answer: its media type and its content."""

    kind: str
    body: bytes


class Pages:
    """The pages of some pilots; its methods are thread-safe.

    Parameters
    ----------
    read : callable
        Reads the pilots, newest first.
    """

    def __init__(self, read: Read) -> None:
        self._read = read
        self._lock = threading.Lock()
        self._found: Document | None = None
        self._stale_s = 0.0
        folder = importlib.resources.files("hpcext.dashboard") / "static"
        self._files = {
            name: Response(kind, (folder / name).read_bytes()) for name, kind in FILES.items()
        }

    def document(self) -> Document:
        """Return the present document, which may be some seconds old."""
        with self._lock:
            began_s = time.monotonic()
            if self._found is None or began_s >= self._stale_s:
                self._found = now(self._read)
                ended_s = time.monotonic()
                # Reading may query the batch system, which must not be overloaded.
                self._stale_s = ended_s + max(FRESH_S, REPLAY_SHARE * (ended_s - began_s))
            return self._found

    def answer(self, path: str, query: str) -> Response | None:
        """Return the answer for an address; None if there is no such page.

        Parameters
        ----------
        path : str
            The part of the path after the token, such as ``pilot/ID/``.
        query : str
            The part of the address after the question mark.
        """
        if path in self._files:
            return self._files[path]
        # Addresses are looked up, and never become a part of a file path.
        if path == "":
            return _html(page.overview(self.document()))
        if path == "data.json":
            return _json(self.document())
        match path.split("/"):
            case ["pilot", id, ("" | "data.json") as what]:
                found = self.document()
                for view in found.pilots:
                    if view.id == id:
                        if what:
                            return _json(msgspec.structs.replace(found, pilots=(view,)))
                        window = TimeWindow.asked(parse_qs(query).get("last", [""])[0])
                        return _html(page.pilot(view, found, window))
        return None


def _html(body: str) -> Response:
    return Response(HTML, body.encode("utf-8", "backslashreplace"))


def _json(found: Document) -> Response:
    return Response(JSON, msgspec.json.encode(found) + b"\n")
