"""What slurmrestd answers, as recorded on three releases; and one that does not answer."""

from __future__ import annotations

import json
import math
import signal
import sys
from pathlib import Path

import pytest

from hpcext.batch import runner
from hpcext.batch.jobs import End, Seen
from hpcext.batch.slurm import Host, restd
from hpcext.batch.slurm import reads as slurm_reads
from hpcext.batch.slurm.rest import Job, Rest, parse_answer
from hpcext.core.errors import BatchError

RECORDED = Path(__file__).parent / "recorded"
RELEASES = sorted(path.parent.name for path in RECORDED.glob("*/slurmrestd.json"))


class Recorded(restd.Restd):
    """Answers that were recorded, of one version of the interface or of all."""

    def __init__(self, release: str, version: str = "v") -> None:
        lines = (RECORDED / release / "slurmrestd.json").read_text().splitlines()
        rows = (json.loads(line) for line in lines)
        self.answers = {
            path: restd.Answer(status, body.encode())
            for path, status, body in rows
            if f"/{version}" in path
        }

    def get(self, path: str) -> restd.Answer:
        """Return an answer; there is none in versions that the release lacks."""
        none = restd.Answer(404, b"Unable find requested URL. Please view /openapi/v3")
        return self.answers.get(path, none)


def versions(release: str) -> list[str]:
    return sorted({path.split("/")[2] for path in Recorded(release).answers})


CASES = [(release, version) for release in RELEASES for version in versions(release)]


@pytest.fixture(params=CASES, ids="-".join)
def rest(request: pytest.FixtureRequest) -> Rest:
    queries = Rest(Recorded(*request.param))
    queries.check()
    return queries


def test_three_releases_were_recorded() -> None:
    assert {release for release, _ in CASES} == {"slurm-22.05", "slurm-24.11", "slurm-26.05"}
    assert {version for _, version in CASES} == set(restd.VERSIONS)


def test_states(rest: Rest, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[list[str]] = []
    monkeypatch.setattr(runner, "run", lambda argv, **_: asked.append(argv) or "")
    seen = rest.seen([1, 2, 3, 4, 99])
    assert seen == {
        1: Seen("running"),
        2: Seen("pending", why="BeginTime"),
        3: Seen("failed", why="NonZeroExitCode"),
        4: Seen("cancelled"),
    }
    assert [argv[0] for argv in asked] == ["sacct"]
    assert "--jobs=99" in asked[0]


def test_the_end_of_a_job(rest: Rest) -> None:
    running, waiting = rest.end(1), rest.end(2)
    assert running.state == "running"
    # 1440 minutes, the partition's limit.
    assert running.end_s == running.limit_end_s
    assert running.end_s is not None
    assert waiting.state == "pending"
    assert waiting.end_s is not None
    with pytest.raises(BatchError, match="no job 99 in slurmctld"):
        rest.end(99)
    assert rest.preempted(1) is False


def test_nodes(rest: Rest) -> None:
    assert rest._nodelist(1) == "n[1,3]"
    assert rest._nodelist(3) == ""
    assert rest.hosts(["n1", "n2"]) == {"n1": Host("127.0.0.1", ""), "n2": Host("127.0.0.1", "")}
    with pytest.raises(BatchError, match="slurmrestd: "):
        rest.hosts(["n9"])


def test_its_newest_version_is_used_that_is_known() -> None:
    chosen = {}
    for release in RELEASES:
        queries = Rest(Recorded(release))
        queries.check()
        chosen[release] = queries._version
    assert chosen == {
        "slurm-22.05": "v0.0.38",
        "slurm-24.11": "v0.0.42",
        "slurm-26.05": "v0.0.45",
    }


def test_without_a_version_that_is_known_it_is_not_used() -> None:
    with pytest.raises(BatchError, match=r"no version of its interface among v0\.0\.45"):
        Rest(Recorded("slurm-24.11", "v0.0.99")).check()


def test_after_an_upgrade_of_slurm_another_version_is_used() -> None:
    daemon = Recorded("slurm-24.11", "v0.0.40")
    queries = Rest(daemon)
    queries.check()
    assert queries._version == "v0.0.40"
    daemon.answers = Recorded("slurm-26.05").answers
    assert queries.end(1).state == "running"
    assert queries._version == "v0.0.45"


@pytest.mark.parametrize(
    ("said", "shown"),
    [
        ("COMPLETING", "completing"),
        (["RUNNING"], "running"),
        (["CANCELLED", "COMPLETING"], "completing"),
        (["RUNNING", "CONFIGURING"], "configuring"),
        (["PENDING", "REQUEUED"], "requeued"),
        (["PENDING", "LAUNCH_FAILED"], "pending"),
        (["SOMETHING_NEW"], "unknown"),
        ([], "unknown"),
    ],
)
def test_states_with_flags_are_those_that_squeue_shows(said: str | list[str], shown: str) -> None:
    assert Job(7, said).state == shown


def test_a_job_without_a_limit_ends_never() -> None:
    number = {"set": True, "infinite": False, "number": 100}
    never = {"set": False, "infinite": True, "number": 0}
    job = {"job_id": 7, "job_state": ["RUNNING"], "start_time": number, "time_limit": never}
    [found] = parse_answer(json.dumps({"jobs": [job]}).encode()).jobs
    assert found.end() == End("running", None, math.inf)


def test_commands_answer_for_tasks_of_an_array(monkeypatch: pytest.MonkeyPatch) -> None:
    """slurmrestd would send all that there is of each of them."""
    asked: list[list[str]] = []
    monkeypatch.setattr(
        runner, "run", lambda argv, **_: asked.append(argv) or "9_0|RUNNING|None|n1\n"
    )
    daemon = Recorded("slurm-22.05")
    queries = Rest(daemon)
    queries.check()
    daemon.answers.clear()
    assert queries.seen(["9_0"]) == {"9_0": Seen("running")}
    assert queries._nodelist("9_0") == "n1"
    assert not queries.preempted("9_0")
    queries.end("9_0")
    assert [argv[0] for argv in asked] == ["squeue", "squeue", "scontrol", "squeue"]


@pytest.mark.parametrize(
    "body", [b"", b"[]", b"{", b'{"jobs": [{}]}', b'{"jobs": 7}', b"\x80", b"[" * 10**5]
)
def test_an_answer_in_no_known_form_is_an_error(body: bytes) -> None:
    with pytest.raises(BatchError, match=r"\Aslurmrestd answered "):
        parse_answer(body)


def program(directory: Path, text: str) -> str:
    path = directory / "slurmrestd"
    path.write_text(text)
    path.chmod(0o755)
    return str(path)


ANSWERS = f"""#!{sys.executable}
import os, sys
print("begun", file=open(sys.argv[0] + ".log", "a"))
assert not [name for name in os.environ if name == "SLURMRESTD_LISTEN"]
while line := sys.stdin.buffer.readline():
    if line == b"\\r\\n":
        body = b'{{"jobs": []}}'
        head = b"HTTP/1.1 200 OK\\r\\nContent-Length: %d\\r\\n\\r\\n" % len(body)
        sys.stdout.buffer.write(head + body)
        sys.stdout.buffer.flush()
"""


def times_begun(path: str) -> int:
    return len(Path(f"{path}.log").read_text().splitlines())


def test_one_process_answers_all_questions_and_another_after_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLURMRESTD_LISTEN", "127.0.0.1:6820")
    path = program(tmp_path, ANSWERS)
    daemon = restd.Restd(path, 240)
    assert [daemon.get("/slurm/v0.0.42/job/1").status for _ in range(3)] == [200] * 3
    assert times_begun(path) == 1
    assert daemon._running is not None
    process = daemon._running._process
    process.send_signal(signal.SIGTERM)
    process.wait()
    assert daemon.get("/slurm/v0.0.42/job/1") == restd.Answer(200, b'{"jobs": []}')
    assert times_begun(path) == 2
    daemon.close()
    assert daemon._running is None


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (
            "#!/bin/sh\necho 'slurmrestd: fatal: should not be run as root' >&2; exit 1\n",
            "slurmrestd ended without an answer: fatal: should not be run as root",
        ),
        ("#!/bin/sh\nexit 1\n", "slurmrestd ended without an answer: it said nothing"),
        ("#!/bin/sh\nhead -c 10; echo nonsense\n", "slurmrestd ended without an answer"),
        ("#!/bin/sh\nexec sleep 600\n", r"slurmrestd did not answer within 0\.5 s"),
        ("no program", "could not be started: "),
    ],
)
def test_one_that_does_not_answer_is_an_error(tmp_path: Path, text: str, says: str) -> None:
    with pytest.raises(BatchError, match=says):
        restd.Restd(program(tmp_path, text), 0.5).get("/slurm/v0.0.42/ping")


def test_commands_answer_where_it_was_asked_for_and_is_not_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("HPCEXT_SLURM_READER", "slurmrestd")
    fatal = program(tmp_path, "#!/bin/sh\necho 'slurmrestd: fatal: not as root' >&2\nexit 1\n")
    for found, why in ((None, "is not installed"), (fatal, "fatal: not as root")):
        monkeypatch.setattr(restd, "find", lambda found=found: found)
        slurm_reads.reads.cache_clear()
        caplog.clear()
        assert type(slurm_reads.reads()).__name__ == "Commands"
        assert "Slurm is queried with its commands: slurmrestd" in caplog.text
        assert why in caplog.text
    slurm_reads.reads.cache_clear()


def test_settings_with_a_mistake_end_no_job(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("HPCEXT_SLURM_READER", "telepathy")
    slurm_reads.reads.cache_clear()
    assert type(slurm_reads.reads()).__name__ == "Commands"
    assert "HPCEXT_SLURM_READER: 'telepathy'" in caplog.text
    slurm_reads.reads.cache_clear()


def test_it_is_found_where_users_do_not_look(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("bin/scontrol", "sbin/slurmrestd"):
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).write_text("#!/bin/sh\n")
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    assert restd.find() == str(tmp_path / "sbin/slurmrestd")
