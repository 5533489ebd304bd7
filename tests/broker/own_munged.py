"""A munged with a key and a socket of its own, as each host of a site has one."""

from __future__ import annotations

import secrets
import shutil
import subprocess
import tempfile
from pathlib import Path

from site_of_test import wait_for


class Munged:
    """munged, in a directory into which everybody can go."""

    def __init__(self) -> None:
        self.path = Path(tempfile.mkdtemp(prefix="munged-"))
        self.path.chmod(0o755)
        self.socket = self.path / "socket"
        key = self.path / "key"
        key.write_bytes(secrets.token_bytes(128))
        key.chmod(0o400)
        program = shutil.which("munged", path="/usr/sbin:/usr/local/sbin:/usr/bin")
        assert program, "munged: apt-get install munge"
        words = {"key-file": "key", "socket": "socket", "pid-file": "pid", "log-file": "log"}
        files = [f"--{option}={self.path / name}" for option, name in words.items()]
        files.append(f"--seed-file={self.path / 'seed'}")
        with open(self.path / "said", "wb") as said:
            self.process = subprocess.Popen(
                [program, "--foreground", "--force", *files], stdout=said, stderr=said
            )
        wait_for(self.socket.exists, "munged")

    def end(self) -> None:
        """End it, and remove all of it."""
        self.process.kill()
        self.process.wait()
        shutil.rmtree(self.path)
