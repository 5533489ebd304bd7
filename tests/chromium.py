"""A real Chromium without a window, by its DevTools protocol over a pipe.

https://chromedevtools.github.io/devtools-protocol/; messages end with a NUL byte.
"""

from __future__ import annotations

import base64
import fcntl
import io
import json
import os
import shutil
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from PIL import Image

WAIT_S = 240.0

FLAGS = (
    "--headless",
    "--no-sandbox",  # tests may run as root, in containers without namespaces
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--disable-component-update",
    "--disable-background-networking",
    "--hide-scrollbars",
    "--remote-debugging-pipe",
)


class Chromium:
    """The browser; one page at a time.

    Attributes
    ----------
    events : list of dict
        What the page told since it was opened.
    """

    def __init__(self, profile: Path) -> None:
        program = shutil.which("chromium")
        assert program, "chromium is not installed; make test installs it"
        reads, self._in = os.pipe()
        self._out, writes = os.pipe()
        # The pipe is to be on descriptors 3 and 4, which ours must not be already.
        theirs = [fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, 10) for end in (reads, writes)]
        shell = 'exec "$@" 3<&{0} 4>&{1} {0}<&- {1}>&-'.format(*theirs)
        self._process = subprocess.Popen(
            ["bash", "-c", shell, "bash", program, *FLAGS, f"--user-data-dir={profile}"],
            pass_fds=theirs,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        for end in (reads, writes, *theirs):
            os.close(end)
        self.events: list[dict[str, Any]] = []
        self._rest = b""
        self._next = 0
        self._page = ""
        self._target = ""

    def close(self) -> None:
        """End it."""
        self._process.kill()
        self._process.wait()
        os.close(self._in)
        os.close(self._out)

    def open(self, address: str) -> None:
        """A new page, instead of the one before."""
        if self._target:
            self._ask("Target.closeTarget", targetId=self._target)
        self._target = self._ask("Target.createTarget", url="about:blank")["targetId"]
        attached = self._ask("Target.attachToTarget", targetId=self._target, flatten=True)
        self._page = attached["sessionId"]
        self.events.clear()
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.ask(f"{domain}.enable")
        self.go(address)

    def go(self, address: str) -> None:
        """Another address in this page; returns when it is there."""
        loads = self.count("Page.loadEventFired")
        self.ask("Page.navigate", url=address)
        self.until(lambda: self.count("Page.loadEventFired") > loads)

    def ask(self, method: str, **words: Any) -> dict[str, Any]:
        """A command for the page; its answer."""
        return self._ask(method, self._page, **words)

    def value(self, script: str) -> Any:
        """What an expression is in the page, or a promise becomes."""
        words = {"returnByValue": True, "awaitPromise": True}
        answer = self.ask("Runtime.evaluate", expression=script, **words)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def until(self, true: Callable[[], Any]) -> None:
        """Wait for something."""
        deadline = time.monotonic() + WAIT_S
        while not true():
            assert time.monotonic() < deadline, self.value("document.body.innerText")
            time.sleep(0.05)
            self.value("0")  # takes in what was told meanwhile

    def key(self, key: str, *, text: str = "") -> None:
        """Press a key and let it go."""
        for kind in ("keyDown", "keyUp"):
            code = {"Tab": 9, "Enter": 13}[key]
            words = {"text": text} if text and kind == "keyDown" else {}
            self.ask(
                "Input.dispatchKeyEvent", type=kind, key=key, windowsVirtualKeyCode=code, **words
            )

    def picture(self) -> Image.Image:
        """The whole page as it is seen."""
        shot = self.ask("Page.captureScreenshot", captureBeyondViewport=True)
        return Image.open(io.BytesIO(base64.b64decode(shot["data"]))).convert("RGB")

    def count(self, method: str) -> int:
        """How often the page told this."""
        return sum(event["method"] == method for event in self.events)

    def _ask(self, method: str, page: str = "", **words: Any) -> dict[str, Any]:
        self._next += 1
        message: dict[str, Any] = {"id": self._next, "method": method, "params": words}
        if page:
            message["sessionId"] = page
        os.write(self._in, json.dumps(message).encode() + b"\0")
        while True:
            said = self._hear()
            if said.get("id") == self._next:
                assert "error" not in said, said
                return said["result"]
            if "method" in said and said.get("sessionId", "") == self._page:
                self.events.append(said)

    def _hear(self) -> dict[str, Any]:
        """The next message."""
        while b"\0" not in self._rest:
            data = os.read(self._out, 1 << 16)
            assert data, "Chromium has ended"
            self._rest += data
        message, _, self._rest = self._rest.partition(b"\0")
        return json.loads(message)
