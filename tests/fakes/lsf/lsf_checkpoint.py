"""Contract engine of LSF, written from the vendor's documentation: checkpoints and restarts."""

from __future__ import annotations

import contextlib
import dataclasses
import re
import subprocess
from pathlib import Path
from typing import Any

from lsf_site import Job, Key, RefusedError, Site

COMMAND_MARK = "LSB_RESTART_CMD="


def options(text: str) -> dict[str, Any]:
    """What ``bsub -k`` says: ``DIR [method=NAME]``; periods are not played."""
    if not text:
        return {}
    found = re.fullmatch(r"(\S+)(?: method=([\w-]+))?", text, re.ASCII)
    if not found:
        raise RefusedError(f"-k: {text}: not played by this engine")
    return {"checkpoint_dir": found[1], "checkpoint_method": found[2] or "default"}


def environ_of(job: Job) -> dict[str, str]:
    """What a job that can be checkpointed is told."""
    if not job.checkpoint_dir:
        return {}
    said = {"LSB_CHKPNT_DIR": str(_place(job))}
    return {**said, "LSB_RESTART": "Y"} if job.restart else said


def checkpoint(site: Site, job_id: Key, *, kill: bool) -> int:
    """bchkpnt: what echkpnt of the job's method says, as the user on the first host."""
    job = site.job(job_id)
    if not job.checkpoint_dir:
        raise RefusedError(f"Job <{job_id}>: Job is not checkpointable")
    if job.state != "RUN":
        raise RefusedError(f"Job <{job_id}>: in state {job.state}")
    place = _place(job)
    place.mkdir(parents=True, exist_ok=True)
    words = [*(["-k"] if kill else []), "-d", str(place), str(job.group)]
    return _run(site, job, "echkpnt", words)


def restart(site: Site, directory: str, job_id: int) -> Job:
    """brestart: a new job with what erestart says; the checkpoint has its id then."""
    job = site.job(job_id)
    old = _place(job)
    if not old.is_dir() or Path(job.cwd, directory) != old.parent:
        raise RefusedError(f"{directory}/{job_id}: Checkpoint log is not found or is corrupted")
    fresh = {field.name: field.default for field in dataclasses.fields(Job)}
    kept = ("state", "exit_code", "group", "runs", "killed", "requeue", "lost", "started_at")
    again = {**dataclasses.asdict(job), **{name: fresh[name] for name in kept}}
    new = Job(**{**again, "hosts": {}, "gpus": {}, "restart": True})
    site.add(new)
    with contextlib.suppress(FileNotFoundError):
        _place(new).unlink()
    old.rename(_place(new))
    old.symlink_to(_place(new))
    if _run(site, new, "erestart", [str(_place(new))]):
        raise RefusedError("erestart has failed")
    said = (_place(new) / ".restart_cmd").read_text().splitlines()
    (line,) = [each for each in said if each.startswith(COMMAND_MARK)]
    with site.changed(new.id) as changed:
        changed.text, changed.is_script = line.removeprefix(COMMAND_MARK), False
    return changed


def _place(job: Job) -> Path:
    return Path(job.cwd, job.checkpoint_dir, str(job.id))


def _run(site: Site, job: Job, program: str, words: list[str]) -> int:
    null = subprocess.DEVNULL
    ended = subprocess.run(
        [site.serverdir / f"{program}.{job.checkpoint_method}", *words],
        env={**job.environ, **environ_of(job), "LSB_JOBID": str(job.id), "LS_EXEC_T": "CHKPNT"},
        cwd=job.cwd,
        stdin=null,
        stdout=null,
        stderr=null,
        check=False,
    )
    return ended.returncode
