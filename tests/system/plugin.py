"""The SPANK plugin, built and installed for a test cluster."""

from __future__ import annotations

import subprocess

from slurm_cluster import REPOSITORY, Cluster

# In place of hpcext: says what it was given, and becomes what follows "--"; where it only prepares
# that, it writes down what hpcext-batch is to become.
STAND_IN = """#!/bin/sh
prepare=$2
# The third word is our own path.
[ "$prepare" != --prepare ] || { shift 3; set -- suspendable "$@"; }
printf 'stand-in'; printf '|%s' "$@"; echo
while [ "$1" != -- ]; do shift; done
shift
[ "$prepare" = --prepare ] || exec "$@"
script=$(mktemp)
printf 'rm %s\\nexec' "$script" >"$script"
for word; do
    printf " '%s'" "$(printf %s "$word" | sed "s/'/'\\\\\\''/g")" >>"$script"
done
echo "$script" >&2
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
