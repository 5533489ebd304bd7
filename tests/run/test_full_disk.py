"""A pilot on a disk that is full and has room again: nothing is lost without a word."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

DRIVER = Path(__file__).with_name("full.py")
MOUNT = 'mount -t tmpfs -o size=24m none "$1/disk" && exec "$2" "$3" "$1" 2'


@pytest.mark.slow
def test_a_full_disk_costs_only_the_reported_steps(tmp_path: Path) -> None:
    (tmp_path / "disk").mkdir()
    words = ["sh", str(tmp_path), sys.executable, str(DRIVER)]
    namespace = ["unshare", "-Urm", "sh", "-c", MOUNT, *words]
    ran = subprocess.run(namespace, capture_output=True, text=True, check=False, timeout=600)
    assert ran.returncode == 0, (ran.stdout, ran.stderr)
