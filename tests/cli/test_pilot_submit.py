"""``hpcext pilot submit``, where it refuses before Slurm is asked."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpcext.cli.main import main


@pytest.mark.parametrize(
    ("batch", "words"),
    [
        ("slurm", ["--array=0-3"]),
        ("slurm", ["--array"]),
        ("slurm", ["-a0-3"]),
        ("lsf", ["-Jp[1-4]"]),
        ("lsf", ["-J", "p[1-4]%2"]),
    ],
)
def test_a_pilot_cannot_be_an_array(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    batch: str,
    words: list[str],
) -> None:
    monkeypatch.setenv("HPCEXT_BATCH", batch)
    monkeypatch.setenv("HPCEXT_STATE_DIR", str(tmp_path / "state"))
    jobs = tmp_path / "jobs.toml"
    jobs.write_text('[[job]]\nname = "a"\ncommand = ["true"]\n')
    assert main(["pilot", "submit", str(jobs), "--gpus-per-node", "1", "--", *words]) == 2
    named = words[-1].removeprefix("-J")
    assert capsys.readouterr().err == (
        f"hpcext: '{named}': a pilot is a single job; its jobs are those of its file; "
        "put the tasks into the job file; hpcext sweep writes one\n"
    )
    assert not (tmp_path / "state").exists()
