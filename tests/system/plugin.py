"""The SPANK plugin, built and installed for a test cluster."""

from __future__ import annotations

import subprocess

from slurm_cluster import REPOSITORY, Cluster

# In place of `hpcext suspendable`: says what it was given, and becomes what follows "--".
STAND_IN = """#!/bin/sh
printf 'stand-in'; printf '|%s' "$@"; echo
while [ "$1" != -- ]; do shift; done
shift
exec "$@"
"""


class Plugin:
    """The built plugin, and the plugstack.conf that names it."""

    def __init__(self, slurm: Cluster) -> None:
        self.slurm = slurm
        self.directory = slurm.root / "lib" / "hpcext"
        self.command = slurm.root / "bin" / "stand-in"
        self._conf = slurm.root / "etc" / "plugstack.conf"

    def install(self) -> None:
        build = f"BUILD={self.slurm.root}/build"
        subprocess.run(
            ["make", "-C", str(REPOSITORY / "spank_hooks"), build, f"PLUGINDIR={self.directory}",
             "install"],
            capture_output=True, check=True,
        )  # fmt: skip
        self.command.write_text(STAND_IN)
        self.command.chmod(0o755)

    def use(self, *words: str, file: str = "hpcext.so") -> None:
        """All who start from now on read this line."""
        self._conf.write_text(" ".join(("optional", str(self.directory / file), *words)) + "\n")

    def use_well(self) -> None:
        self.use(f"command={self.command}")

    def use_none(self) -> None:
        self._conf.write_text("")

    def log(self) -> str:
        """What the nodes' daemons said."""
        logs = sorted((self.slurm.root / "log").glob("slurmd-*.log"))
        return "".join(path.read_text(errors="replace") for path in logs)
