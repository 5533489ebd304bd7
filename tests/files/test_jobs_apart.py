"""Jobs whose checkpoints could be taken for those of another are refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from hpcext.apart import check_apart
from hpcext.core.errors import InputError
from hpcext.jobfile import parse_jobs
from hpcext.jobspec import JobSpec
from hpcext.jobtext import job_text


def jobs(tmp_path: Path, *tables: dict[str, Any]) -> tuple[JobSpec, ...]:
    (tmp_path / "b").mkdir(exist_ok=True)
    text = "\n".join(job_text({"command": "python train.py", **table}) for table in tables)
    return parse_jobs(text, "jobs.toml", tmp_path)


def job(name: str, saves: Any = "transformers", words: str = "", **more: Any) -> dict[str, Any]:
    return {"name": name, "checkpoint": saves, "command": f"python run.py {words}", **more}


STATED = {"preset": "transformers", "file": "{name}/**/checkpoint-*/trainer_state.json"}
OWN_DIRECTORY = {"preset": "plain", "file": "{checkpoint_dir}/*.pt"}
APART = [
    (job("a", words="--output_dir out/a"), job("b", words="--output-dir=out/b")),
    (job("a", words="--output_dir out/{name}"), job("b", words="--output_dir out/{name}")),
    (job("a", STATED), job("b", STATED)),
    (job("a", OWN_DIRECTORY), job("b", OWN_DIRECTORY)),
    (job("a", "transformers"), job("b", "lightning")),
    (job("a", "plain"), job("b", "plain"), {"name": "c"}),
    (job("a"), job("b", after=["a"]), job("c", after=["b"])),
    (job("a", "lightning", workdir="b"), job("b", after=["a"]), job("c", "lightning", after=["b"])),
    (job("a", {"preset": "plain", "file": "a.pt"}), job("b", {"preset": "plain", "file": "b.pt"})),
]
TOGETHER = [
    (job("a"), job("b")),
    (job("a"), job("b", workdir="b")),
    (job("a", workdir="b"), job("b")),
    (job("a", words="--output_dir out"), job("b", words="--x 1 --output_dir out/../out/")),
    (job("a", words="--output_dir out/b"), job("b", words="--output_dir out")),
    (job("a"), job("b", words="--output_dir /elsewhere --output_dir=out")),
    (job("a"), job("b", STATED)),
    (job("a", {"preset": "plain", "file": "*.pt"}), job("b", {"done": {"file": "*.pt"}})),
    (job("a"), job("x", "plain", after=["a"]), job("c", "plain", after=["a"]), job("b")),
    (job("a"), job("c", after=["a"]), job("b", after=["a"])),
]


@pytest.mark.parametrize("tables", APART)
def test_jobs_whose_checkpoints_can_be_told_apart(tmp_path: Path, tables: Any) -> None:
    check_apart(jobs(tmp_path, *tables), "jobs.toml")


@pytest.mark.parametrize("tables", TOGETHER)
def test_jobs_whose_checkpoints_cannot(tmp_path: Path, tables: Any) -> None:
    specs = jobs(tmp_path, *tables)
    with pytest.raises(InputError) as refused:
        check_apart(specs, "jobs.toml")
    assert refused.value.where == f"jobs.toml: [[job]] {len(tables)} (b): checkpoint"
    *earlier, last = specs
    with pytest.raises(InputError, match="could be those of job"):
        check_apart([last], "--", earlier)
    check_apart(earlier, "--")
    # What was accepted before is not refused now.
    check_apart(jobs(tmp_path, job("new", STATED, workdir="/tmp")), "--", specs)


def test_what_to_do_is_said(tmp_path: Path) -> None:
    with pytest.raises(InputError) as refused:
        check_apart(jobs(tmp_path, job("a"), job("b")), "jobs.toml")
    assert refused.value.what == (
        f"its checkpoints, '**/checkpoint-*/trainer_state.json' in {tmp_path}, could be those of "
        "job a"
    )
    assert refused.value.do == (
        "give each a directory of its own: by --output_dir, or by "
        'file = "out/{name}/**/checkpoint-*/trainer_state.json" in checkpoint, where it writes then'
    )
