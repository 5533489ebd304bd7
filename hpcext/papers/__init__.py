"""The registry of the papers' experiments on the simulator, with the papers' results.

A paper is a module with a function ``study(how: Extent) -> Study``, imported when it is needed.
Installed packages provide further ones (:data:`hpcext.seams.PAPERS`).
"""

from __future__ import annotations

import importlib
from collections.abc import Sequence
from types import ModuleType
from typing import NamedTuple

from hpcext import seams
from hpcext.checks import unknown
from hpcext.core.errors import InputError
from hpcext.papers.study import Extent, Study


class Paper(NamedTuple):
    """A paper: its title, and the module of this package that reproduces it.

    `wants` is the module of an extra that some of the experiments need.
    """

    title: str
    module: str
    wants: str = ""


PAPERS: dict[str, Paper] = {
    "marble": Paper("MARBLE (Han et al., CCGRID 2020): sets 1 to 9", "marble"),
    "doubling": Paper("Capes et al. (2019): six strategies, three contentions", "capes"),
    "bftrainer": Paper(
        "BFTrainer (Liu et al., 2021): Figures 7 to 16, Tables 3 and 4, and the authors' program",
        "bftrainer.experiments",
        "pulp",
    ),
    "pollux": Paper(
        "Pollux (Qiao et al., OSDI 2021): workloads, Table 2, Figures 7 and 8", "pollux"
    ),
    "lb-bsp": Paper("LB-BSP (Chen et al., SoCC 2020): Figure 8, Table 3", "lb_bsp"),
}

ALL = "all"


def find_papers(name: str, where: str) -> Sequence[str]:
    """Return the names of the papers that a name stands for: itself, or all of hpcext's.

    Parameters
    ----------
    name : str
    where : str
        The argument that has the name, for messages.

    Raises
    ------
    InputError
        There is no such paper.
    """
    if name == ALL:
        return tuple(PAPERS)
    if name not in PAPERS and name not in (installed := seams.names(seams.PAPERS)):
        raise unknown("paper", name, (*PAPERS, *installed, ALL), where=where)
    return (name,)


def reproduce(name: str, how: Extent) -> Study:
    """Run the experiments of a paper.

    Parameters
    ----------
    name : str
    how : Extent

    Raises
    ------
    InputError
        An installed package registers the paper, but does not provide it.
    """
    found: Study = _module(name).study(how)
    return found


def _module(name: str) -> ModuleType:
    if name in PAPERS:
        return importlib.import_module(f"{__name__}.{PAPERS[name].module}")
    try:
        module: ModuleType = seams.load(seams.PAPERS, name)
    except seams.SeamError as error:
        raise InputError(str(error), where="PAPER") from None
    if not callable(getattr(module, "study", None)):
        package = seams.source(seams.PAPERS, name)
        raise InputError(
            f"{name} of {package} is no paper", where="PAPER", valid="a module with study(how)"
        )
    return module
