"""How a command is started on one host of an LSF job."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpcext.backends.lsf.steps import Launcher

COMMAND = ("python3", "x y.py")


def test_blaunch_has_the_host_and_the_command(tmp_path: Path) -> None:
    """blaunch(1): ``blaunch HOST COMMAND``, as rsh has it."""
    launcher = Launcher("blaunch", {"h1": 12}, 6)
    assert launcher.argv("h1", (0, 3), COMMAND, tmp_path / "x") == ["blaunch", "h1", *COMMAND]
    assert not (tmp_path / "x").exists()
    assert not launcher.shares_gpus


@pytest.mark.parametrize(
    ("gpus", "line"),
    [
        (
            (0, 3),
            "rank: 0: { hostname: a01n01; cpu: {0-27,84-111} ; gpu: {0,3} ; mem: * }",
        ),
        # A sweep has no GPU, and where to run.
        ((), "rank: 0: { hostname: a01n01; cpu: {0-27} ; mem: * }"),
    ],
)
def test_jsrun_has_a_resource_file(tmp_path: Path, gpus: tuple[int, ...], line: str) -> None:
    """ "Explicit Resource File (ERF) format" of JSM; as horovod/horovod, js_run.py, writes them."""
    launcher = Launcher("jsrun", {"a01n01": 42}, 6)
    erf = tmp_path / "resources.erf"
    argv = launcher.argv("a01n01", gpus, COMMAND, erf)
    assert argv == ["jsrun", "--erf_input", str(erf), *COMMAND]
    assert erf.read_text().splitlines() == [
        "overlapping_rs: allow", "cpu_index_using: logical", line,
    ]  # fmt: skip
    assert launcher.shares_gpus
