"""Apps of a real Parsl run in a real pilot; it has an environment of its own."""

from __future__ import annotations

import re
import signal
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
from site_of_test import Site, wait_for

ROOT = Path(__file__).parents[2]
FENCE = re.compile(r"^```text\n(.*?)^```$", re.MULTILINE | re.DOTALL)
WAITS = """
@python_app
def waits(gate):
    import os, time
    while not os.path.exists(gate):
        time.sleep(0.05)
    return "done"


provider"""


@pytest.fixture(scope="session")
def programs(install: Callable[..., Path]) -> Path:
    return install("parsl", "parsl")


@pytest.fixture
def place(pool: Callable[[Path], Site], programs: Path) -> Site:
    return pool(programs)


def page() -> tuple[str, str]:
    """The script, and the commands."""
    _, script, commands = FENCE.findall((ROOT / "docs" / "parsl.md").read_text())
    return script, commands


def run(place: Site, line: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        line, shell=True, cwd=place.path, env=place.environ, capture_output=True, text=True,
        check=False,
    )  # fmt: skip


def blocks(place: Site) -> list[dict[str, Any]]:
    jobs: list[dict[str, Any]] = place.document("status", "pool")["jobs"]
    return jobs


@pytest.mark.slow
def test_what_the_page_says(place: Site) -> None:
    script, commands = page()
    (place.path / "sums.py").write_text(script)
    _, *parts = re.split(r"^\$ ", commands, flags=re.MULTILINE)
    for part in parts[1:]:
        line, *shown = part.splitlines()
        done = run(place, line)
        assert done.returncode == 0, done
        assert set(filter(None, shown)) <= set(done.stdout.splitlines()), done
    assert {block["state"] for block in blocks(place)} == {"cancelled"}
    assert blocks(place)[0]["name"].startswith("parsl.")


@pytest.mark.slow
def test_a_block_that_dies_begins_again_and_its_work_is_repeated(place: Site) -> None:
    script, _ = page()
    gate = place.path / "gate"
    *lines, _ = script.replace("max_blocks=2", "max_blocks=1").splitlines()
    lines.append(f"    print(waits({str(gate)!r}).result())")
    text = "\n".join(lines).replace("\nprovider", WAITS, 1)
    (place.path / "slow.py").write_text(text)
    process = subprocess.Popen(
        ["python", "slow.py"], cwd=place.path, env=place.environ, text=True,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    place.started.append(process)
    workers = wait_for(lambda: pools(place), "the workers of a block")
    for each in workers:
        each.send_signal(signal.SIGKILL)
    wait_for(lambda: set(pools(place)) - set(workers), "others")
    gate.touch()
    out, _ = process.communicate(timeout=500)
    assert process.returncode == 0, out
    assert "done" in out
    (block,) = blocks(place)
    assert block["attempts"] == 2


def pools(place: Site) -> list[psutil.Process]:
    """The processes of worker pools."""
    found = []
    for process in psutil.process_iter():
        try:
            words = process.cmdline()
            mine = str(place.path) in process.environ().get("XDG_STATE_HOME", "")
        except psutil.Error:
            continue
        if mine and any(word.endswith("process_worker_pool.py") for word in words[:2]):
            found.append(process)
    return found


@pytest.mark.slow
def test_without_its_pilot_it_says_so(place: Site) -> None:
    script, _ = page()
    (place.path / "sums.py").write_text(script.replace('"pool"', '"other"'))
    done = run(place, "timeout 60 python sums.py")
    assert done.returncode != 0
    assert "other" in done.stderr
