"""The job key ``container``: the image in which the command of a job runs, and what it sees there.

How such a command begins, and what a supervisor makes of its processes, is in
:mod:`hpcext.launch.container`.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import msgspec

from hpcext.checkpointers import Checkpointer
from hpcext.checks import at, known_keys, string, wrong
from hpcext.core.errors import InputError
from hpcext.launch import container as launched
from hpcext.text import did_you_mean, shown

AUTO = launched.AUTO

RUNTIMES = (AUTO, *launched.PROGRAMS, launched.PYXIS)
"""What runs containers; ``auto``: the first of the others that is there."""

SCHEMES = ("docker", "library", "oras", "shub", "https", "http")
"""Where Apptainer and Singularity fetch images from, by the beginning of a URI."""

MAX_BINDS = 256

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")
_URI = re.compile(r"[a-z]+://[!-~]+")
_KEYS = ("image", "binds", "runtime")


class Container(msgspec.Struct, frozen=True):
    """The container of a job.

    Attributes
    ----------
    image : str
        An absolute path of an image file or a directory, or a URI.
    binds : tuple of str
        What else of the node is visible in it: ``PATH``, ``PATH:THERE`` or ``PATH:THERE:ro``.
    runtime : str
        One of :data:`RUNTIMES`; empty: that of the settings.
    """

    image: str
    binds: tuple[str, ...] = ()
    runtime: str = ""

    @property
    def path(self) -> str:
        """The path of the image; empty if it is fetched."""
        return "" if _SCHEME.match(self.image) else self.image


def container(value: Any) -> Container:
    """Check the key ``container`` of a job: an image, or a table.

    Parameters
    ----------
    value : Any

    Returns
    -------
    Container
        Its image may be a path relative to the directory of the job file.

    Raises
    ------
    InputError
        It is neither.
    """
    if isinstance(value, str):
        return Container(_image(value))
    if not isinstance(value, dict) or not value:
        raise wrong(value, 'an image, as "train.sif", or a table, as {image = "train.sif"}')
    known_keys(value, _KEYS)
    if "image" not in value:
        raise InputError("image is missing", do='add image = "train.sif"')
    with at("image"):
        image = _image(string(value["image"]))
    with at("binds"):
        binds = _binds(value.get("binds", []))
    with at("runtime"):
        chosen = runtime(value["runtime"]) if "runtime" in value else ""
    return Container(image, binds, chosen)


def runtime(value: Any) -> str:
    """Check the name of what runs containers."""
    if value not in RUNTIMES:
        raise InputError(
            shown(value), valid=", ".join(RUNTIMES), do=did_you_mean(str(value), RUNTIMES)
        )
    return str(value)


def check_bound(path: str) -> str:
    """Refuse a path that cannot be made visible in a container; return it."""
    if found := launched.NOT_BOUND.search(path):
        raise InputError(
            f"{shown(path)} has a {shown(found[0])}, which no bind of a container can name",
            valid="a path without comma, colon, quotation mark, backslash or line break",
        )
    return path


def settle(
    container: Container, workdir: str, saves: Checkpointer | None, *, base: Path, runtime: str
) -> Container:
    """Check a container against the other keys of its job; return it with all that they left open.

    Parameters
    ----------
    container : Container
    workdir : str
        Where the command runs.
    saves : Checkpointer or None
        How it saves by its own means.
    base : pathlib.Path
        The directory at which the path of an image starts.
    runtime : str
        What runs it unless the job states that.

    Raises
    ------
    InputError
        The job cannot run in it.
    """
    if saves is not None and saves.transparent:
        raise InputError(
            'stated beside checkpoint = "transparent": no container is suspended as it is',
            do="leave one of them out, or say how the training saves",
        )
    with at("workdir"):
        check_bound(workdir)
    image = container.image
    if container.path:
        # Not Path.resolve, because the path of a link should stay as the user wrote it.
        image = os.path.normpath(base / os.path.expanduser(container.path))
        if not os.path.exists(image):
            raise InputError(
                f"there is no image {shown(image)}",
                valid="a file or directory; a relative path starts at the job file's directory",
                do="say docker://... if it is the name of one in a registry",
            )
    chosen = container.runtime or runtime
    if chosen == launched.PYXIS and not (
        os.path.isfile(image) if container.path else image.startswith("docker://")
    ):
        raise InputError(
            f"pyxis makes no container of {shown(image)}",
            valid="a squashfs file, as enroot import makes it, or docker://IMAGE:TAG",
        )
    return msgspec.structs.replace(container, image=image, runtime=chosen)


def _image(value: str) -> str:
    text = string(value)
    scheme = _SCHEME.match(text)
    if scheme is None:
        if not text:
            raise InputError("empty", valid="the path of an image, or a URI as docker://NAME:TAG")
        return text
    if scheme[1] == "instance":
        raise InputError(
            f"{shown(text)} runs already, and would not end with the job",
            valid="the path of an image, or a URI as docker://NAME:TAG",
        )
    if scheme[1] not in SCHEMES or not _URI.fullmatch(text):
        raise InputError(
            f"{shown(text)} is no URI of an image",
            valid=", ".join(f"{each}://..." for each in SCHEMES),
            do=did_you_mean(scheme[1], SCHEMES),
        )
    return text


def _binds(value: Any) -> tuple[str, ...]:
    listed = [value] if isinstance(value, str) else value
    if not isinstance(listed, list) or len(listed) > MAX_BINDS:
        raise wrong(value, f'an array of at most {MAX_BINDS} paths, as ["/data", "/scratch:/in"]')
    return tuple(_bind(string(each)) for each in listed)


def _bind(text: str) -> str:
    here, *there = text.split(":")
    mode = there[1:]
    paths = [here, *there[:1]]
    if mode not in ([], ["ro"], ["rw"]) or not all(path.startswith("/") for path in paths):
        raise InputError(
            shown(text), valid="PATH, PATH:THERE or PATH:THERE:ro, with absolute paths"
        )
    for path in paths:
        check_bound(path)
    return text
