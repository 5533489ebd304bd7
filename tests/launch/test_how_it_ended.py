"""What is found out of how a command ended: the line that says why, and what the kernel killed."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from hpcext.launch.ending import LINE_CHARS, TAIL_BYTES, last_line, oom_kills

PLAIN = """\
step 10
Traceback (most recent call last):
  File "train.py", line 3, in <module>
    main()
ValueError: no data
"""

CUDA = """\
Traceback (most recent call last):
  File "train.py", line 3, in <module>
RuntimeError: CUDA error: device-side assert triggered
Compile with `TORCH_USE_CUDA_DSA` to enable device-side assertions.
"""

TORCHRUN = """\
[rank1]: Traceback (most recent call last):
[rank1]:   File "/home/user/train.py", line 9, in <module>
[rank1]:     raise KeyError("labels")
[rank1]: KeyError: 'labels'
E1124 04:16:53 torch/distributed/elastic/multiprocessing/api.py:882] failed (exitcode: 1)
Traceback (most recent call last):
  File "/env/bin/torchrun", line 8, in <module>
    sys.exit(main())
torch.distributed.elastic.multiprocessing.errors.ChildFailedError:
============================================================
train.py FAILED
------------------------------------------------------------
Root Cause (first observed failure):
[0]:
  exitcode  : 1 (pid: 4711)
============================================================
"""

CHAINED = """\
Traceback (most recent call last):
  File "a.py", line 1, in <module>
KeyError: 'x'

During handling of the above exception, another exception occurred:

Traceback (most recent call last):
  File "a.py", line 3, in <module>
OSError: [Errno 28] No space left on device
"""

LONG_AGO = PLAIN + "".join(f"step {number}\n" for number in range(100))


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("", ""),
        ("\n\n----\n", ""),
        ("step 3\nloss 0.1\n\n", "loss 0.1"),
        ("epoch 1:  10%|#\repoch 1: 20%|##", "epoch 1: 20%|##"),
        ("\x1b[31merror:\x1b[0m no \x1b]0;title\x07space", "error: no space"),
        (PLAIN, "ValueError: no data"),
        (CUDA, "RuntimeError: CUDA error: device-side assert triggered"),
        (TORCHRUN, "KeyError: 'labels'"),
        (CHAINED, "OSError: [Errno 28] No space left on device"),
        # One that was caught, and training went on.
        (LONG_AGO, "step 99"),
        ("Traceback (most recent call last):\n  File", "File"),
    ],
)
def test_the_line_that_says_why(tmp_path: Path, text: str, line: str) -> None:
    log = tmp_path / "log.txt"
    log.write_text(text)
    assert last_line(log) == line


def test_a_long_line_is_cut_at_a_word_and_marked(tmp_path: Path) -> None:
    log = tmp_path / "log.txt"
    log.write_text("ValueError: " + "elephant " * 100)
    said = last_line(log)
    assert len(said) <= LINE_CHARS
    assert said.endswith(" elephant…")
    log.write_text("y" * LINE_CHARS)
    assert last_line(log) == "y" * LINE_CHARS


def test_a_hostile_log_costs_and_gives_little(tmp_path: Path) -> None:
    log = tmp_path / "log.txt"
    assert last_line(log) == ""
    log.write_bytes(b"x" * 50 * TAIL_BYTES)
    assert last_line(log) == "x" * (LINE_CHARS - 1) + "…"
    log.write_bytes(b"\xff\x00\x1b[" * 1000)
    assert len(last_line(log)) <= LINE_CHARS
    log.write_text("\n".join(["Traceback (most recent call last):"] * 2000))
    assert last_line(log).startswith("Traceback")
    log.unlink()
    secret = tmp_path / "secret"
    secret.write_text("of somebody else")
    log.symlink_to(secret)
    assert last_line(log) == ""
    log.unlink()
    os.mkfifo(log)
    assert last_line(log) == ""


def test_a_log_that_the_job_emptied_is_read_from_its_beginning(tmp_path: Path) -> None:
    log = tmp_path / "log.txt"
    log.write_text("new")
    assert last_line(log, start=1000) == "new"
    assert last_line(log, start=3) == ""


EVENTS = "low 0\nhigh 0\nmax 5\noom 3\noom_kill 2\noom_group_kill 0\n"
CONTROL = "oom_kill_disable 0\nunder_oom 0\noom_kill 4\n"


@pytest.mark.parametrize(
    ("own", "file", "text", "count"),
    [
        ("0::/job_7/step_0\n", "job_7/step_0/memory.events", EVENTS, 2),
        # In a container its own cgroup is the root.
        ("0::/job_7/step_0\n", "memory.events", EVENTS, 2),
        ("4:cpu,memory:/s\n0::/\n", "memory/s/memory.oom_control", CONTROL, 4),
        # Before Linux 4.13.
        ("4:memory:/\n", "memory/memory.oom_control", "oom_kill_disable 0\nunder_oom 0\n", None),
        ("0::/\n", "cgroup.procs", "", None),
        ("nonsense\n", "memory.events", EVENTS, None),
    ],
)  # fmt: skip
def test_the_kernel_counts_what_it_kills_for_want_of_memory(
    tmp_path: Path, own: str, file: str, text: str, count: int | None
) -> None:
    said = tmp_path / "own"
    said.write_text(own)
    path = tmp_path / "cgroup" / file
    path.parent.mkdir(parents=True)
    path.write_text(text)
    assert oom_kills(tmp_path / "cgroup", said) == count
    assert oom_kills(tmp_path / "cgroup", tmp_path / "none") is None
