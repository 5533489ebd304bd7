"""A run of many jobs is quiet, on a pipe, on a terminal and on the disk."""

from __future__ import annotations

import contextlib
import os
import sys

import pexpect
import pyte
from site_of_test import Site, wait_for

from hpcext.manager.kept import KEEP_COMPLETED

JOBS = 90


def test_a_pipe_gets_a_line_for_what_happens_and_the_disk_keeps_little(site: Site) -> None:
    site.write_jobs(*({"name": f"t{i}", "command": ["true"]} for i in range(JOBS)))
    ended = site.run("run", str(site.jobs), "--gpus=6", "--dir", str(site.pilot))
    assert ended.code == 0
    lines = ended.out.splitlines()
    # Starting, running, completed; headline, two reasons, counts, and the summary's row of each.
    assert len(lines) <= 4 * JOBS + 20
    assert sum("waits behind others in the queue" in line for line in lines) == 1
    assert any(f"of {JOBS} jobs are done" in line for line in lines)
    assert len(list(site.pilot.glob("jobs/*/attempt-*"))) == KEEP_COMPLETED
    assert len(list(site.pilot.glob("jobs/*/log.txt"))) == JOBS
    # What the engine is told of a job does not repeat what every job is.
    assert (site.pilot / "journal.jsonl").stat().st_size < 700 * JOBS
    shown = site.run("status", str(site.pilot))
    assert sum("completed" in line for line in shown.out.splitlines()) == JOBS


def test_a_terminal_shows_what_fits_and_a_line_for_all(site: Site) -> None:
    site.write_jobs(
        {"name": "quick", "command": ["true"]},
        *(site.counter(f"held{i}", gated=True) for i in range(40)),
    )
    screen = pyte.Screen(90, 24)
    stream = pyte.ByteStream(screen)
    terminal = pexpect.spawn(
        sys.executable,
        ["-m", "hpcext", "run", str(site.jobs), "--gpus=2", "--dir", str(site.pilot)],
        env={**os.environ, **site.environ, "TERM": "xterm-256color", "LANG": "C.UTF-8"},
        dimensions=(24, 90),
        cwd=str(site.path),
    )

    def seen() -> bool:
        with contextlib.suppress(pexpect.TIMEOUT):
            stream.feed(terminal.read_nonblocking(65536, timeout=0.1))
        text = "\n".join(screen.display)
        return "1 of 41 jobs are done; 2 run, 38 wait" in text and text.count(" running ") == 2

    wait_for(seen, "the table")
    rows = [line for line in screen.display if "held" in line]
    assert 10 <= len(rows) <= 20
    # The line for all is above them, so that a small screen does not cut it off.
    above = next(i for i, line in enumerate(screen.display) if "jobs are done" in line)
    assert above < screen.display.index(rows[0])
    terminal.sendintr()
    terminal.expect(pexpect.EOF, timeout=500)
    terminal.wait()
    assert terminal.exitstatus == 130
