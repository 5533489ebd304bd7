"""Slurm's commands and their output, as three releases printed it.

What is in ``recorded`` was printed by clusters of tests/system; ``record.py`` there makes it.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from hpcext.allocation import JobId
from hpcext.batch import runner, slurm
from hpcext.batch.slurm import requeued
from hpcext.core.errors import BatchError

RECORDED = Path(__file__).parent / "recorded"


@pytest.fixture(params=sorted(path.name for path in RECORDED.glob("slurm-*")))
def said(request: pytest.FixtureRequest) -> Path:
    """The recordings of one release."""
    return RECORDED / str(request.param)


def test_a_job_id(said: Path) -> None:
    assert slurm.parse_job_id((said / "sbatch-parsable.txt").read_text()) == 1
    # With several clusters; sbatch(1).
    assert slurm.parse_job_id("17;west\n") == 17


@pytest.mark.parametrize("text", ["", "Submitted batch job 4", "4;", "-1", "4\n5"])
def test_no_job_id(text: str) -> None:
    with pytest.raises(BatchError, match="not a job id"):
        slurm.parse_job_id(text)


def test_names_of_nodes(said: Path) -> None:
    names = slurm.parse_hostnames((said / "scontrol-hostnames.txt").read_text())
    assert names == ("n1", "n2", "n4")


def test_steps(said: Path) -> None:
    steps = slurm.parse_steps((said / "squeue-steps.txt").read_text())
    assert steps == (("1.0", "hpcext-1-1"), ("1.1", "hpcext-2-1"), ("1.batch", "batch"))


def states(text: str) -> dict[JobId, str]:
    return {job_id: each.state for job_id, each in slurm.parse_seen(text).items()}


def test_states(said: Path) -> None:
    known = {1: "running", 2: "pending", 3: "failed", 4: "cancelled"}
    for name in ("squeue-jobs.txt", "sacct-jobs.txt"):
        assert states((said / name).read_text()) == known


def test_states_of_an_array() -> None:
    """Its tasks have names; those that have not begun have none of their own."""
    text = (RECORDED / "slurm-22.05" / "squeue-array.txt").read_text()
    running = {"10_2": "running", "10_3": "running"}
    assert states(text) == {"10_0": "completed", "10_1": "completed", **running}


def test_an_end_is_that_of_one_job() -> None:
    """Asked for the number of an array, squeue answers with all of its tasks."""
    with pytest.raises(BatchError, match="not the state of a job"):
        slurm.parse_end("COMPLETED|1795523027|1|1:00\nRUNNING|1795609428|1|1:00\n")


def test_an_end(said: Path) -> None:
    for name, state in (("squeue-end", "running"), ("squeue-end-pending", "pending")):
        end = slurm.parse_end((said / f"{name}.txt").read_text())
        assert end.state == state
        assert end.end_s is not None
        assert end.end_s > 1.7e9  # epoch seconds
        assert end.limit_end_s == end.end_s


def test_the_nodes_of_a_job(said: Path) -> None:
    text = (said / "squeue-jobs.txt").read_text()
    assert slurm.parse_nodelist(text, 1) in {"n[1-2]", "n[1,3]"}
    # Of one that does not run, those that it had are no answer.
    assert [slurm.parse_nodelist(text, job) for job in (2, 4, 9)] == ["", "", ""]


def test_nodes(said: Path) -> None:
    hosts = slurm.parse_hosts((said / "scontrol-nodes.txt").read_text())
    assert hosts == {"n1": slurm.Host("127.0.0.1", ""), "n2": slurm.Host("127.0.0.1", "")}


@pytest.mark.parametrize(
    ("gres", "kind"),
    [
        ("gpu:6", ""), ("(null)", ""), ("gpu:a100:4", "a100"), ("gpu:a100:4(S:0-1)", "a100"),
        ("mps:400,gpu:tesla_v100:2(S:0,1)", "tesla_v100"), ("gpu:4(S:0-1),mps:400", ""),
        ("gpu:a100:2(S:0),gpu:a100:2(S:1)", "a100"), ("gpu:a100:2,gpu:v100:2", ""),
        ("gpu:no_consume:4", ""), ("gpu:a100:no_consume:4", "a100"), ("gpu:1g.5gb:7", "1g.5gb"),
        ("mygpu:a100:4", ""), ("gpu:2080:4", ""),
    ],
)  # fmt: skip
def test_the_type_of_gpus_is_read_as_the_manual_has_it(said: Path, gres: str, kind: str) -> None:
    """scontrol(1), gres.conf(5); what was recorded on each release, with other resources."""
    text = (said / "scontrol-nodes.txt").read_text().replace("Gres=gpu:6 ", f"Gres={gres} ")
    assert {host.kind for host in slurm.parse_hosts(text).values()} == {kind}


def test_the_release(said: Path) -> None:
    release = slurm.parse_version((said / "scontrol-version.txt").read_text())
    assert said.name == "slurm-{}.{:02}".format(*release)


@pytest.mark.parametrize(
    ("text", "cpus"),
    [("24", (24,)), ("24(x2)", (24, 24)), ("24(x2),12", (24, 24, 12)), ("6(x1),8", (6, 8))],
)
def test_cpus(text: str, cpus: tuple[int, ...]) -> None:
    assert slurm.parse_cpus(text) == cpus


@pytest.mark.parametrize("text", ["", "many", "24(x)", "24,,2"])
def test_no_cpus(text: str) -> None:
    with pytest.raises(BatchError, match="SLURM_JOB_CPUS_PER_NODE"):
        slurm.parse_cpus(text)


def test_an_error_carries_everything(said: Path) -> None:
    refused = (said / "sbatch-refused.txt").read_text()
    script = 'echo out; printf "%s" "$1" >&2; exit 1'
    with pytest.raises(BatchError) as raised:
        runner.run(["sh", "-c", script, "sbatch", refused])
    error = raised.value
    assert error.what == (
        "sh failed: invalid partition specified: nowhere; "
        "Batch job submission failed: Invalid partition name specified"
    )
    assert (error.exit_code, error.stdout, error.stderr) == (1, "out\n", refused)
    assert error.argv[0] == "sh"


def test_where_slurm_is_not_set_up() -> None:
    said = "sinfo: fatal: Could not establish a configuration source"
    with pytest.raises(BatchError, match="run it where Slurm is set up, or set SLURM_CONF"):
        runner.run(["sh", "-c", f"echo '{said}' >&2; exit 1"])


def test_a_command_that_is_not_there() -> None:
    with pytest.raises(BatchError, match="sbatch-nowhere was not found"):
        runner.run(["sbatch-nowhere"])


def test_a_command_that_hangs() -> None:
    with pytest.raises(BatchError, match="did not answer"):
        runner.run(["sleep", "30"], timeout_s=0.2)


def test_which_jobs_wait_for_a_credential_to_expire() -> None:
    """Not those whose user wants them to begin later, nor those that never ran."""
    text = (
        "7_2  |BeginTime  |1  |1000  |1121  |\n"
        "8    |BeginTime  |1  |1000  |1600  |\n"
        "9    |BeginTime  |0  |1000  |1121  |\n"
        "10   |Resources  |1  |1000  |1121  |\n"
        "11   |BeginTime  |2  |1000  |1120  |\n"
        "12   |BeginTime  |1  |1000  |N/A   |\n\ngarbage\n"
    )
    assert requeued.parse_waiting(text, 120, 1010.0) == ("7_2", "11")
    # It would fail on its last node, which remembers the end of the last run.
    assert requeued.parse_waiting(text, 120, 1009.0) == ()
    assert requeued.parse_waiting(text, 10, 1010.0) == ()
