"""A batch system that is a directory, ``$TINY``: one node, one job after another.

``tiny-submit`` takes a script on its standard input and prints the job's id; ``tiny-show ID``
prints the state of a job, when it ends, and whether its node is wanted back. ``tiny-want ID
SECONDS`` takes the node back in so many seconds: it sends SIGUSR2 to the script, as other batch
systems do, and kills what is left then. ``tiny-requeue ID`` has a job begin again when its script
has ended.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

ROOT = Path(os.environ["TINY"])


def read(job: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((ROOT / job / "facts.json").read_text())
    return found


def note(job: str, **facts: Any) -> None:
    path = ROOT / job / "facts.json"
    before = read(job) if path.exists() else {}
    new = path.with_suffix(f".{os.getpid()}")
    new.write_text(json.dumps({**before, **facts}))
    new.rename(path)


def submit(options: list[str]) -> None:
    job = str(1 + len(list(ROOT.glob("[0-9]*"))))
    (ROOT / job).mkdir()
    (ROOT / job / "script").write_bytes(sys.stdin.buffer.read())
    note(job, state="pending", options=options, runs=0, end_s=time.time() + 3600)
    sys.stdout.write(f"{job}\n")
    sys.stdout.flush()
    if os.fork() == 0:
        os.setsid()
        out = os.open(ROOT / job / "out", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        null = os.open(os.devnull, os.O_RDONLY)
        for mine, fd in ((null, 0), (out, 1), (out, 2)):
            os.dup2(mine, fd)
        note(job, daemon=os.getpid())
        run(job)


def run(job: str) -> None:
    again = ROOT / job / "again"
    while True:
        again.unlink(missing_ok=True)
        facts = read(job)
        environ = {**os.environ, "TINY_JOB": job, "TINY_RUNS": str(facts["runs"])}
        script = subprocess.Popen(
            ["/bin/sh", str(ROOT / job / "script")], env=environ, start_new_session=True
        )
        note(job, state="running", pid=script.pid, runs=facts["runs"] + 1, wanted=False)
        code = None
        while code is None:
            with contextlib.suppress(subprocess.TimeoutExpired):
                code = script.wait(0.2)
            if code is None and time.time() > read(job)["end_s"]:
                os.killpg(script.pid, signal.SIGKILL)
        if not again.exists():
            break
        note(job, state="pending", end_s=time.time() + 3600)
    note(job, state="failed" if code else "completed", code=code)


def main(argv: list[str]) -> None:
    verb, words = Path(argv[0]).name, argv[1:]
    if verb == "tiny-submit":
        submit(words)
    elif verb == "tiny-show":
        facts = read(words[0])
        print(facts["state"], facts["end_s"], int(facts.get("wanted", False)))
    elif verb == "tiny-want":
        note(words[0], end_s=time.time() + float(words[1]), wanted=True)
        os.kill(read(words[0])["pid"], signal.SIGUSR2)
    else:
        (ROOT / words[0] / "again").touch()


if __name__ == "__main__":
    main(sys.argv)
