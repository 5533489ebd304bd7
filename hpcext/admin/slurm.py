"""What hpcext puts into a Slurm installation: the SPANK plugin, rules in Lua, prolog and epilog.

Files of the site are never edited: what is to be added to them is shown.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path

from hpcext.admin import sources
from hpcext.admin.install import Piece, Place
from hpcext.admin.slurm_conf import Files
from hpcext.admin.trust import ROOT, check_command, check_trusted, check_word
from hpcext.checks import read_text
from hpcext.core.errors import HpcextError, InputError
from hpcext.extras import need
from hpcext.text import clean

USR = Path("/usr/local")
CONF_DIR = Path("/etc/slurm")
INCLUDE = Path("/usr/include")
BUILD_S = 300
BUILT = {"hpcext.so": 0o644, "hpcext-batch": 0o755}
"""What the Makefile of the plugin makes; they must lie side by side."""

LUA = ("rules.lua", "job_submit.lua", "cli_filter.lua")
_SAID_CHARS = 400
_PATH = "/usr/local/bin:/usr/bin:/bin"


@dataclass(frozen=True)
class Site:
    """Where things go.

    Attributes
    ----------
    usr : pathlib.Path
        Directory of ``lib`` and ``share``.
    conf_dir : pathlib.Path
        Directory of ``slurm.conf``.
    include : pathlib.Path
        Directory that has ``slurm/spank.h``.
    command : pathlib.Path or None
        ``hpcext`` as jobs and users run it; not needed to uninstall.
    root : pathlib.Path
        What stands for ``/``; no file names it.
    manual : bool
        Put manual pages in place, too.
    """

    usr: Path = USR
    conf_dir: Path = CONF_DIR
    include: Path = INCLUDE
    command: Path | None = None
    root: Path = ROOT
    manual: bool = True

    @property
    def home(self) -> Path:
        """The directory of our own."""
        return self.usr / "lib" / "hpcext" / "slurm"

    @property
    def place(self) -> Place:
        """Where the manifest is."""
        return Place(self.home, self.root)

    @property
    def files(self) -> Files:
        """The site's own files, and what they are to name."""
        return Files(self.place, self.conf_dir, str(self.command), release(self.include))


def release(include: Path) -> str:
    """The release of Slurm that the headers are of, as ``22.05.8``.

    Raises
    ------
    InputError
        There are none, or others can change them.
    """
    check_word(include)
    for name in ("slurm_version.h", "slurm.h"):
        path = include / "slurm" / name
        check_trusted(path)
        if path.exists():
            found = re.search(r"SLURM_VERSION_NUMBER\s+0x([0-9a-fA-F]{6})", read_text(path))
            if found:
                major, minor, micro = bytes.fromhex(found[1])
                return f"{major}.{minor:02}.{micro}"
    raise InputError(
        "no headers of Slurm",
        where=str(include / "slurm"),
        valid="a directory with slurm/spank.h",
        do="install libslurm-dev (Debian) or slurm-devel (RPM), or give --include DIR",
    )


def pieces(site: Site) -> list[Piece]:
    """All files, in the order in which they are to be put in place.

    Raises
    ------
    InputError
        The command is not one that all users can run and only root can change.
    HpcextError
        The plugin does not compile.
    """
    command = check_command(site.command, (site.home, site.conf_dir), is_there=site.root == ROOT)
    source = sources.find()
    hooks = source / "spank_hooks"
    found = [
        Piece(site.home / name, data, BUILT[name])
        for name, data in _built(hooks, site.include).items()
    ]
    found += [Piece(site.home / "lua" / name, (hooks / "lua" / name).read_bytes()) for name in LUA]
    for kind in ("prolog", "epilog"):
        data = (hooks / kind / f"hpcext-{kind}").read_bytes()
        found.append(Piece(site.conf_dir / f"{kind}.d" / "50-hpcext", data, 0o755))
    if site.manual:
        found += manual_pages(source / "man", site.usr / "share" / "man")
    # The last: before it is there, no command of Slurm sees any of the others.
    text = f"optional {site.home}/hpcext.so command={command}\n"
    found.append(Piece(site.conf_dir / "plugstack.conf.d" / "hpcext.conf", text.encode()))
    return found


def _built(hooks: Path, include: Path) -> dict[str, bytes]:
    """Compile the plugin; the sources may be where nobody can write."""
    release(include)
    # Before anything reads it: it says which others are read.
    check_trusted(include / "slurm" / "spank.h")
    # -isystem: with -I their warnings would be errors of ours.
    flags = [] if include == INCLUDE else [f"SLURM_CPPFLAGS=-isystem {include}"]
    for path in _headers(_make(hooks, "headers", *flags), hooks):
        # slurmstepd runs as root what is made of them.
        check_trusted(path)
    with tempfile.TemporaryDirectory(prefix="hpcext-build-") as build:
        _make(hooks, f"BUILD={build}", "all", *flags)
        return {name: (Path(build) / name).read_bytes() for name in BUILT}


def _headers(rules: str, hooks: Path) -> set[Path]:
    """What the compiler reads apart from our own sources, of the rules that ``cc -M`` writes."""
    words = (word for word in rules.split() if word != "\\" and not word.endswith(":"))
    paths = {Path(os.path.normpath(hooks / word)) for word in words}
    return {path for path in paths if path.parent != hooks}


def _make(hooks: Path, *words: str) -> str:
    """Run make on the sources of the plugin; what it prints."""
    make = shutil.which("make", path=_PATH)
    if make is None:
        raise InputError("make is not installed", do="install make and a C compiler")
    ended = subprocess.run(
        [make, "-s", "-C", str(hooks), *words],
        # What root happens to have set (CC, CFLAGS, MAKEFLAGS) is not for this.
        env={"PATH": _PATH, "LC_ALL": "C"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="replace",
        timeout=BUILD_S,
        check=False,
    )
    if ended.returncode:
        lines = ended.stderr.splitlines()
        said = [line for line in lines if "error:" in line] or lines[-1:]
        raise HpcextError(
            f"the plugin does not compile: {clean('; '.join(said))[:_SAID_CHARS]}",
            where=str(hooks),
            do="are make, a C compiler and the headers of this Slurm installed?",
        )
    return ended.stdout


def manual_pages(pages: Path, to: Path) -> list[Piece]:
    """The manual pages, which docutils makes."""
    core, manpage = need("docutils.core"), need("docutils.writers.manpage")
    found = []
    for page in sorted(pages.glob("*.rst")):
        text = core.publish_string(
            page.read_text(encoding="utf-8"),
            writer=manpage.Writer(),  # a name is for docutils 0.22 and later
            settings_overrides={"input_encoding": "utf-8", "output_encoding": "utf-8"},
        )
        found.append(Piece(to / f"man{page.stem[-1]}" / page.stem, text))
    return found
