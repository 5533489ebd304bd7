"""Bad disks and late attempts, met by whole training processes."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from harness import Job, Started

from hpcext.training.checkpoint import Store

SCRIPT = "train_numpy.py"
BALLAST = 200_000


def steps(job: Job) -> list[int]:
    return [int(line[3]) for line in job.log if line[2] == "step"]


def small_disk(path: Path) -> tuple[str, ...]:
    """A command prefix: the checkpoint directory lies on a full disk; what is there is kept."""
    script = (
        'mv "$1" "$1.real" && mkdir "$1" && mount -t tmpfs -o size=300k none "$1" '
        '&& cp -a "$1.real/." "$1" || exit 99; dir=$1; shift; "$@"; code=$?; '
        'rm -rf "$dir.real"; cp -a "$dir" "$dir.real"; umount "$dir"; rmdir "$dir"; '
        'mv "$dir.real" "$dir"; exit $code'
    )
    return ("unshare", "-Urm", "sh", "-c", script, "sh", str(path))


def small_files(path: Path) -> tuple[str, ...]:
    """The same where no file system may be mounted: files larger than 100 KiB cannot be written."""
    return ("bash", "-c", 'ulimit -f 100; exec "$@"', "bash")


def may_mount() -> bool:
    trial = ["unshare", "-Urm", "mount", "-t", "tmpfs", "none", "/tmp"]
    try:
        return subprocess.run(trial, capture_output=True, check=False).returncode == 0
    except FileNotFoundError:
        return False


def end_training(process: Started) -> None:
    """Kill the training alone, so that what it ran in can tidy up."""
    for below in psutil.Process(process.pid).children(recursive=True):
        if "train_numpy.py" in " ".join(below.cmdline()) and not below.children():
            below.kill()
            return
    process.kill()


@pytest.mark.cases(1)
@pytest.mark.parametrize("disk", [small_disk if may_mount() else small_files, small_files])
def test_full_disk(tmp_path: Path, disk: object) -> None:
    assert callable(disk)
    job = Job(tmp_path, SCRIPT, f"--big={BALLAST}")
    assert job.run("--ask=step:7").suspended is not None
    before = [path.name for path in job.checkpoints]
    job.prefix = disk(tmp_path / "checkpoint")
    run = job.run_held(35, end_training, "--every=10", "--ask=step:25")
    # Periodic ones fail with a line each, and training goes on; it may be killed within the last.
    assert run.output.count("not written") in {2, 3}
    # So it does when a suspension is requested; it declines, and does not pretend.
    assert steps(job) == list(range(35))
    assert run.suspended is None
    assert "could not be saved" in run.output
    report = run.report
    assert (report["declined"], report["saved_step"]) == (1, 8)
    assert report["cannot_save"] in {"disk full", "file too large"}
    # However it ends, the last step that it did is known.
    assert int((run.directory / "last-step").read_text()) == 35
    assert [path.name for path in job.checkpoints] == before
    job.prefix = ()
    assert job.run().code == 0
    assert steps(job) == [*range(35), *range(8, 40)]


def test_the_last_report_on_a_full_disk_arrives(tmp_path: Path) -> None:
    """A report takes the room that was kept for it, as often as there is none."""
    code = """
import json, os, resource, sys
from pathlib import Path
from hpcext.protocol import Attempt
from hpcext.training.reports import Reporter
path = Path(sys.argv[1])
reporter = Reporter(Attempt("job", 1, 7, path, path, 1), 1)
reporter.restored(0, 0.0)
reporter.register()
reporter.metrics({f"m{number}": number for number in range(400)})
# Not one more block: there is no room for another file.
try:
    with open(path / "ballast", "wb", buffering=0) as file:
        while True:
            file.write(bytes(4096))
except OSError as error:
    print(os.strerror(error.errno))
for step in (5, 9, 13):
    reporter.stepped(step, float(step))
    reporter.declined("disk full")
    said = json.loads((path / "report.json").read_text())
    print(said["step"], said["declined"], said["cannot_save"], (path / "last-step").read_text())
"""
    (tmp_path / "disk").mkdir()
    mounted = 'mount -t tmpfs -o size=64k none "$1" && exec "$2" -c "$3" "$1"'
    words = ["sh", str(tmp_path / "disk"), sys.executable, code]
    prefix = ["unshare", "-Urm", "sh", "-c", mounted]
    run = subprocess.run([*prefix, *words], capture_output=True, text=True, check=False)
    told = [line for line in run.stdout.splitlines() if line]
    assert told == [
        "No space left on device",
        "5 1 disk full 0000000000000005",
        "9 2 disk full 0000000000000009",
        "13 3 disk full 0000000000000013",
    ], run


def test_full_disk_under_torch_save(tmp_path: Path) -> None:
    """Its native writer must not bring the process down."""
    code = """
import resource, sys, torch
from pathlib import Path
from hpcext.training.checkpoint.hashing import HashingFile
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
file = HashingFile(Path(sys.argv[1]))
torch.save({"w": torch.zeros(1_000_000)}, file)
try:
    file.finish()
except OSError as error:
    print("refused", error.errno)
"""
    run = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path / "state")],
        capture_output=True,
        text=True,
        check=False,
        timeout=500,
    )
    assert (run.returncode, run.stdout) == (0, "refused 27\n"), run.stderr


def damage(path: Path, how: str) -> None:
    state = path / "state.npz"
    content = bytearray(state.read_bytes())
    if how == "flip":
        content[len(content) // 2] ^= 16
    else:
        del content[-100:]
    state.write_bytes(content)


@pytest.mark.cases(1)
@pytest.mark.parametrize("how", ["flip", "truncate"])
def test_a_broken_checkpoint_is_passed_over(tmp_path: Path, how: str) -> None:
    job = Job(tmp_path, SCRIPT)
    job.run("--ask=step:7")
    job.run("--ask=step:15")
    damage(job.checkpoints[-1], how)
    run = job.run()
    assert run.code == 0
    assert run.output.count("checkpoint not usable") == 1
    assert str(job.checkpoints[0].parent) in run.output
    assert steps(job) == [*range(16), *range(8, 40)]


def test_all_broken_trains_nothing(tmp_path: Path) -> None:
    job = Job(tmp_path, SCRIPT)
    job.run("--ask=step:7")
    job.run("--ask=step:15")
    for path in job.checkpoints:
        damage(path, "flip")
    run = job.run()
    assert run.code == 1
    assert "none of its 2 checkpoints is intact" in run.output
    assert steps(job) == list(range(16))
    assert len(job.checkpoints) == 2


def test_an_attempt_that_was_given_up_cannot_write(tmp_path: Path) -> None:
    job = Job(tmp_path, SCRIPT, "--every=10")

    def begin_another(_: object) -> None:
        # The thread that writes the one of step 10 may not be done yet.
        while not job.checkpoints:
            time.sleep(0.01)
        Store(tmp_path / "checkpoint", attempt=9).open()

    run = job.run_held(15, begin_another)
    assert run.code == 1
    assert "attempt 9 of this job has begun" in run.output
    assert [path.name for path in job.checkpoints] == ["step-000000010.attempt-0001"]
    # It may not begin again either.
    assert "attempt 9 of this job has begun" in job.run(attempt=2).output


def test_a_checkpoint_of_another_script_is_reported(tmp_path: Path) -> None:
    """What was saved must fit what is given: no silent half-restoration."""
    job = Job(tmp_path, SCRIPT)
    job.run("--ask=step:7")
    other = job.run(f"--big={BALLAST}")
    assert other.code == 1
    assert "the state of 'ballast' does not fit" in other.output
