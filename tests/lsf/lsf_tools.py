"""Where our scripts and the contract engine are, and how tests call it."""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import lsf_command
import psutil
from lsf_site import Quirks, Site

from hpcext.admin import lsf

MakeSite = Callable[..., Site]

ROOT = Path(__file__).parents[2]
SCRIPTS = ROOT / "lsf_scripts"
STARTER = SCRIPTS / "hpcext-starter"
SOURCED = f"command . {STARTER}; %USRCMD"


def put_in_place(directory: Path) -> Path:
    """Our scripts, as hpcext-admin puts them in place; the starter is what is given back."""
    serverdir = directory / "serverdir"
    serverdir.mkdir(parents=True)
    hpcext = directory / "hpcext"
    root = shlex.quote(str(ROOT))
    hpcext.write_text(f'#!/bin/sh\nPYTHONPATH={root} exec {sys.executable} -m hpcext "$@"\n')
    hpcext.chmod(0o755)
    for name in lsf.SCRIPTS:
        (serverdir / name).write_bytes(lsf.script(name, hpcext))
        (serverdir / name).chmod(0o755)
    return serverdir / STARTER.name


def make_site(
    directory: Path, quirks: Sequence[str], *, python: str = sys.executable, **settings: Any
) -> Site:
    """A site with settings, quirks by their names, our esub and the commands of LSF."""
    named = Quirks(**dict.fromkeys(quirks, True))
    site = Site(directory=directory, quirks=named, **settings).save()
    shutil.copy(SCRIPTS / "esub.hpcext", site.serverdir)
    # By the interpreter of the tests, whatever "python3" is in a PATH; no packages of it.
    engine = directory / "engine"
    engine.write_text(
        f"#!{python} -S\n"
        "import sys\n"
        f"sys.path.insert(0, {str(ROOT / 'tests/fakes/lsf')!r})\n"
        "import lsf_command\n"
        "sys.exit(lsf_command.main())\n"
    )
    engine.chmod(0o755)
    # With blaunch there is no need of lsrun.
    gone = {"blaunch", "jsrun", "bslots", "brsvs"} if named.lean else {"lsrun"}
    for name in lsf_command.COMMANDS.keys() - gone:
        (directory / name).symlink_to(engine)
    return site


def end_all(sites: Sequence[Path]) -> None:
    """Kill what is left of sites: their engines, jobs, and what jobs have started."""
    marks = {str(site) for site in sites}
    while found := [each for each in psutil.process_iter() if _envdir(each) in marks]:
        for process in found:
            with contextlib.suppress(psutil.NoSuchProcess):
                # A job may have an environment of its own.
                for each in (process, *process.children(recursive=True)):
                    each.kill()
        psutil.wait_procs(found, timeout=10)


def _envdir(process: psutil.Process) -> str:
    try:
        return process.environ().get("LSF_ENVDIR", "")
    except (psutil.Error, OSError):
        return ""


def command(
    site: Site, *words: str | bytes, stdin: bytes = b"", **variables: str
) -> subprocess.CompletedProcess[bytes]:
    """Run a command of LSF in the directory of the site."""
    clean = {key: value for key, value in os.environ.items() if not key.startswith("HPCEXT_")}
    return subprocess.run(
        [site.directory / os.fsdecode(words[0]), *words[1:]],
        input=stdin,
        capture_output=True,
        env={**clean, "LSF_ENVDIR": str(site.directory), **variables},
        cwd=site.directory,
        timeout=500,
        check=False,
    )


def output(site: Site, *words: str | bytes, **more: str | bytes) -> bytes:
    """What a job that ended well has printed."""
    ended = command(site, "bsub", "-K", "-o", "out", *words, **more)  # type: ignore[arg-type]
    assert ended.returncode == 0, (ended.stderr, (site.directory / "out").read_bytes())
    out = site.directory / "out"
    found = out.read_bytes()
    out.unlink()
    return found
