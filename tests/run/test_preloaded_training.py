"""A PyTorch training that is resumed by a process which has imported PyTorch."""

from __future__ import annotations

import sys
from pathlib import Path

import psutil
import pytest
from site_of_test import Site, wait_for
from written import whole_lines

from hpcext.launch.nurseries import PADDING

TRAIN = Path(__file__).parent / "train_preloaded.py"
MODULES = ["torch", "hpcext.training.torch"]


def of(manager: int) -> list[psutil.Process]:
    """The processes below a manager that are ready to be forked."""
    words = {each: each.cmdline() for each in psutil.Process(manager).children()}
    return [each for each, said in words.items() if MODULES[1] in said and PADDING not in said]


def steps(site: Site, name: str) -> list[int]:
    """The steps that a training says it has done, as it writes them down itself."""
    path = site.path / f"{name}.steps"
    return [int(line) for line in whole_lines(path)] if path.exists() else []


@pytest.mark.slow
@pytest.mark.parametrize(
    ("launch", "gpus", "last", "stated"),
    [
        ((), 1, 400, True),
        ((sys.executable, "-m", "hpcext", "launch"), 2, 200, True),
        ((), 1, 400, False),
    ],
    ids=["alone", "two ranks", "nobody asked for it"],
)
def test_it_ends_as_if_nothing_had_been(
    site: Site, launch: tuple[str, ...], gpus: int, last: int, *, stated: bool
) -> None:
    gates = {name: site.path / f"{name}.gate" for name in ("suspended", "undisturbed")}
    gates["undisturbed"].touch()
    site.write_jobs(
        *(
            {
                "name": name,
                "command": [*launch, sys.executable, str(TRAIN), str(gate), str(site.path / name)],
                "gpus": gpus,
                **({"preload": MODULES} if stated and name == "suspended" else {}),
            }
            for name, gate in gates.items()
        )
    )
    manager = site.start("run", str(site.jobs), "--gpus", "4", "--dir", str(site.pilot), "--json")
    pilot = str(site.pilot)

    wait_for(lambda: steps(site, "suspended"), "its first step")
    for number in range(2):
        if stated and not number:
            (ready,) = wait_for(lambda: of(manager.pid), "what has imported its modules")
        site.run_until_done("suspend", pilot, "suspended", "--wait")
        if not stated and not number:
            (ready,) = wait_for(lambda: of(manager.pid), "what has imported its modules")
        assert not ready.children()
        before = steps(site, "suspended")
        site.run_until_done("resume", pilot, "suspended")
        wait_for(lambda before=before: steps(site, "suspended") > before, "a further step")
        (supervisor,) = ready.children()
        assert "attempt" in supervisor.cmdline()[4]
    gates["suspended"].touch()
    out, err = manager.communicate(timeout=500)
    assert manager.returncode == 0, (out, err)
    assert steps(site, "suspended") == list(range(1, last + 1))
    weights = {name: (site.path / name).read_text() for name in gates}
    assert weights["suspended"] == weights["undisturbed"]
    psutil.wait_procs([ready], 60)
    assert not ready.is_running()
