"""A check that a container can be run here, by running one."""

from __future__ import annotations

import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

from hpcext import protocol
from hpcext.batch.slurm import pyxis
from hpcext.doctor.checkup import CheckOptions, Finding
from hpcext.launch import container
from hpcext.text import clean, shown

NAME = "containers"

WITHIN_S = 30.0
"""Seconds for the program to answer, and for the container to end."""

_DIRECTORIES = ("dev", "etc", "proc", "sys", "tmp", "usr", "var/tmp", "root", "home")
_LINKS = ("bin", "sbin", "lib", "lib64")
_DO = "docs/containers.md says what it needs; a job without the key container needs none"


def check(asked: CheckOptions) -> Iterator[Finding]:
    """Run a program of this machine in a container whose image is an empty directory.

    Pyxis, which only a job could try, is asked for.
    """
    runtime = asked.settings.container_runtime if asked.settings else container.AUTO
    program = container.find(runtime, protocol.environ())
    if not program:
        if runtime in {container.AUTO, container.PYXIS} and pyxis.offered():
            says = "srun has the options of pyxis: pilots on Slurm run containers (not tried)"
            yield Finding(NAME, "ok", says)
            return
        names = " nor ".join(container.PROGRAMS) if runtime == container.AUTO else runtime
        says = f"{'neither ' if runtime == container.AUTO else 'no '}{names} is in PATH"
        yield Finding(NAME, "note", says, _DO)
        return
    try:
        version = _said([program, "--version"])
        with tempfile.TemporaryDirectory(prefix="hpcext-doctor-") as image:
            _fill(Path(image))
            _said([program, "exec", "--bind=/usr", "--pwd=/", image, "/bin/sh", "-c", "exit 0"])
    except (OSError, RuntimeError) as error:
        yield Finding(NAME, "note", f"{program} runs no container: {error}", _DO)
        return
    yield Finding(NAME, "ok", f"{version}, {program}: a container was run")


def _said(words: list[str]) -> str:
    """Return the first line that a program prints.

    Raises
    ------
    OSError, RuntimeError
        It fails; the error has the last line that it says of that.
    """
    try:
        done = subprocess.run(
            words,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=WITHIN_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise RuntimeError(f"it did not end within {WITHIN_S:g} s") from None
    if done.returncode:
        last = clean(done.stderr.strip().splitlines()[-1]) if done.stderr.strip() else ""
        raise RuntimeError(last[:300] or f"exit status {done.returncode}")
    return shown(done.stdout.strip().partition("\n")[0]).strip("'\"")


def _fill(image: Path) -> None:
    """Make an image without programs of its own."""
    for name in _DIRECTORIES:
        (image / name).mkdir(parents=True)
    for name in _LINKS:
        (image / name).symlink_to(f"usr/{name}")
