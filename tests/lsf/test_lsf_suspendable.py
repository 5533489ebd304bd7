"""bsub -a "hpcext(suspendable)": a training that outlives bstop, preemption, -W and lost hosts."""

from __future__ import annotations

import dataclasses
import glob
import itertools
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lsf_controls
import psutil
import pytest
from lsf_site import LEAN, RECORDED, Host, Job, Queue, Site
from lsf_tools import MakeSite, command, put_in_place
from test_starter import hostile
from written import whole_lines

COUNTER = Path(__file__).parents[1] / "faults" / "counter.py"
PATIENCE_S = 120.0
SAVES_AT_SIGTERM = Path(__file__).parents[1] / "native" / "programs" / "term.sh"
SUSPENDABLE = ("-a", "hpcext(suspendable,lead=50)")


def wait_for(condition: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.05)


class Cluster:
    """A site with our scripts, and a training that counts to 40 and keeps the account of it."""

    def __init__(self, site: Site, top: Path) -> None:
        self.site = site
        self.top = top
        self.gate = top / "gate"
        self.log = top / "steps"
        self.environ = {
            "COUNTER_LOG": str(self.log),
            "PYTHONPATH": str(Path(__file__).parents[2]),
            "PATH": f"{site.directory}:{os.environ['PATH']}",
            "XDG_STATE_HOME": str(top / "state"),
            "XDG_CONFIG_HOME": str(top / "config"),
        }
        self.counter = f"{sys.executable} {COUNTER} 40 0.02 5 --gate {self.gate}"

    def run(self, *words: str) -> subprocess.CompletedProcess[bytes]:
        return command(self.site, *words, **self.environ)

    def submit(self, *options: str, text: str = "", how: tuple[str, ...] = SUSPENDABLE) -> int:
        said = self.run("bsub", *how, "-o", "out", *options, text or self.counter)
        assert said.returncode == 0, said
        return int(said.stdout.split(b"<")[1].split(b">")[0])

    def job(self, job_id: int) -> Job:
        return self.site.job(job_id)

    def wait_state(self, job_id: int, *states: str) -> None:
        wait_for(lambda: self.job(job_id).state in states, f"{states}: {self.output()}")

    def steps(self) -> list[list[str]]:
        return [line.split() for line in whole_lines(self.log)]

    def began(self) -> bool:
        return self.log.exists()

    def at_gate(self, attempt: int = 1) -> None:
        """All steps but the last one are done, the last ones of them by this attempt."""

        def there() -> bool:
            # In whatever directory there is now: a draft may get its name meanwhile.
            pattern = f"{self.top}/state/**/attempt-{attempt:04d}/report.json"
            return bool(glob.glob(pattern, recursive=True)) and len(self.steps()) >= 39

        wait_for(there, "the gate")

    def ends(self, job_id: int) -> None:
        """The training goes on to its end, and has done each step once."""
        self.gate.touch()
        self.wait_state(job_id, "DONE", "EXIT")
        assert self.job(job_id).state == "DONE", self.output()
        assert [int(line[1]) for line in self.steps()] == list(range(1, 41))

    def output(self) -> str:
        """Of all runs, which nobody but this engine keeps."""
        return self.site.printed()

    def trainings(self) -> list[int]:
        """Processes of trainings that are left."""
        found = []
        for path in Path("/proc").glob("[0-9]*"):
            try:
                words = (path / "cmdline").read_bytes().split(b"\0")
                ours = os.fsencode(self.log) in (path / "environ").read_bytes()
            except OSError:
                continue
            if ours and words[1:2] == [os.fsencode(COUNTER)]:
                found.append(int(path.name))
        return found


MakeCluster = Callable[..., Cluster]


@pytest.fixture
def make_cluster(make_site: MakeSite, tmp_path: Path) -> MakeCluster:
    """A cluster whose default queue has our starter; gives settings and quirks of the site on."""

    def made(*quirks: str, queue: dict[str, object] | None = None, **settings: object) -> Cluster:
        starter = put_in_place(tmp_path / "lsf")
        queues = settings.pop("queues", {})
        mine = Queue(job_starter=f"command . {starter}; %USRCMD", **(queue or {}))
        site = make_site(*quirks, queues={"normal": mine, **queues}, **settings)
        return Cluster(site, tmp_path)

    return made


WHEN = {"early": 3600.0, "late": 0.0}
"""Whether LSF sends to the leader's process group alone, or to all that the job has started."""


def combined(*axes: dict[str, Any], quick: set[str]) -> list[Any]:
    """Return all combinations of the axes' values; those that are not quick are slow."""
    every = []
    for names in itertools.product(*axes):
        values = (axis[name] for axis, name in zip(axes, names, strict=True))
        name = "-".join(names)
        slow = () if name in quick else pytest.mark.slow
        every.append(pytest.param(*values, id=name, marks=slow))
    return every


@pytest.mark.cases(1)
@pytest.mark.parametrize(
    ("quirks", "pim_s"),
    combined(
        {"contract": (), "text": ("starter_gets_text",), "lean": LEAN},
        WHEN,
        quick={"contract-early", "text-late", "lean-early"},
    ),
)
def test_preempted_it_goes_on_where_it_was(
    make_cluster: MakeCluster, quirks: list[str], pim_s: float
) -> None:
    """USR2 is what hpcext-job-control sends, and bsub -wa USR2."""
    cluster = make_cluster(*quirks, queue={"requeue_exit_values": (85,)}, pim_s=pim_s)
    job = cluster.submit()
    cluster.at_gate()
    cluster.run("bkill", "-s", "USR2", str(job))
    wait_for(lambda: cluster.job(job).runs == 2, "the second run")
    cluster.ends(job)
    assert {line[0] for line in cluster.steps()} == {"1", "2"}
    assert cluster.output().count("is being requeued") == 1
    assert cluster.trainings() == []


@pytest.mark.cases(1)
@pytest.mark.parametrize(
    ("quirks", "verb", "pim_s"),
    combined(
        {"contract": (), "recorded": RECORDED},
        {"brequeue": "brequeue", "bmig": "bmig"},
        WHEN,
        quick={"contract-brequeue-early", "recorded-bmig-late"},
    ),
)
def test_requeued_by_its_user_it_goes_on_where_it_was(
    make_cluster: MakeCluster, verb: str, quirks: tuple[str, ...], pim_s: float
) -> None:
    """LSF sends SIGINT and SIGTERM, which are no failures of the training."""
    cluster = make_cluster(*quirks, pim_s=pim_s)
    job = cluster.submit()
    cluster.at_gate()
    assert cluster.run(verb, str(job)).returncode == 0
    wait_for(lambda: cluster.job(job).runs == 2, "the second run")
    cluster.at_gate(2)
    cluster.ends(job)


def controlled(tmp_path: Path) -> dict[str, object]:
    control = tmp_path / "lsf" / "serverdir" / "hpcext-job-control"
    said = {"SUSPEND": f"{control} suspend", "RESUME": f"{control} resume"}
    return {"job_controls": said}


def test_a_flag_says_how_a_script_saves_that_knows_nothing_of_hpcext(
    make_cluster: MakeCluster,
) -> None:
    cluster = make_cluster()
    place = cluster.site.directory
    steps = place / "own.steps"
    how = ("-a", "hpcext(suspendable,lead=50,checkpoint=torchrun)")
    job = cluster.submit(text=str(SAVES_AT_SIGTERM), how=how)

    def made() -> list[int]:
        return [int(line) for line in whole_lines(steps)]

    wait_for(lambda: len(made()) > 3, f"its steps: {cluster.output()}")
    assert cluster.run("brequeue", str(job)).returncode == 0
    wait_for(lambda: cluster.job(job).runs == 2, "the second run")
    saved = int((place / "saved").read_text())
    wait_for(lambda: made()[-1] > saved + 3, "that it goes on")
    (place / "gate").touch()
    cluster.wait_state(job, "DONE", "EXIT")
    assert cluster.job(job).state == "DONE", cluster.output()
    assert made() == list(range(1, made()[-1] + 1))


@pytest.mark.cases(1)
@pytest.mark.parametrize(
    ("quirks", "values"),
    combined(
        {"contract": (), "leader alone": ("leader_alone",)},
        {"brequeue": (), "exit value": (85,)},
        quick={"contract-exit value", "leader alone-brequeue"},
    ),
)
def test_stopped_it_leaves_its_host_and_resumed_it_goes_on(
    make_cluster: MakeCluster, tmp_path: Path, quirks: list[str], values: tuple[int, ...]
) -> None:
    queue = {**controlled(tmp_path), "requeue_exit_values": values}
    cluster = make_cluster(*quirks, queue=queue, hosts=(Host("host1", slots=1),))
    job = cluster.submit()
    cluster.at_gate()
    assert cluster.run("bstop", str(job)).returncode == 0
    cluster.wait_state(job, "PSUSP")
    assert cluster.trainings() == []
    other = cluster.submit(text="true", how=())
    cluster.wait_state(other, "DONE")
    assert cluster.job(job).state == "PSUSP"
    cluster.run("bresume", str(job))
    cluster.ends(job)


@pytest.mark.cases(1)
@pytest.mark.parametrize(
    ("quirks", "pim_s"),
    combined(
        {"contract": (), "killed": ("parallel_killed_at_once",), "recorded": RECORDED},
        WHEN,
        quick={"killed-late", "recorded-early"},
    ),
)
def test_on_several_slots_it_is_held_until_it_is_resumed(
    make_cluster: MakeCluster, tmp_path: Path, quirks: tuple[str, ...], pim_s: float
) -> None:
    """Its own brequeue may kill it at once: it has saved itself before."""
    queue = {**controlled(tmp_path), "requeue_exit_values": (85,)}
    cluster = make_cluster(*quirks, queue=queue, pim_s=pim_s)
    job = cluster.submit("-n", "2")
    cluster.at_gate()
    assert cluster.run("bstop", str(job)).returncode == 0
    cluster.wait_state(job, "PSUSP")
    assert cluster.trainings() == []
    cluster.run("bresume", str(job))
    cluster.ends(job)


@pytest.mark.parametrize(
    "values", [(), pytest.param((85,), marks=pytest.mark.slow)], ids=["brequeue", "exit value"]
)
def test_a_queue_of_higher_priority_has_its_host(
    make_cluster: MakeCluster, tmp_path: Path, values: tuple[int, ...]
) -> None:
    queue = {**controlled(tmp_path), "requeue_exit_values": values}
    urgent = Queue(priority=60, preemptive=True)
    host = Host("host1", slots=1, gpus=2)
    cluster = make_cluster(queue=queue, hosts=(host,), queues={"urgent": urgent})
    job = cluster.submit("-gpu", "num=2")
    cluster.at_gate()
    release = tmp_path / "release"
    text = f"echo $CUDA_VISIBLE_DEVICES; while ! test -e {release}; do sleep 0.05; done"
    other = cluster.submit("-q", "urgent", "-gpu", "num=2", "-o", "theirs", text=text, how=())
    cluster.wait_state(other, "RUN")
    cluster.wait_state(job, "PEND")
    assert cluster.trainings() == []
    release.touch()
    cluster.wait_state(other, "DONE")
    cluster.ends(job)
    assert {line[3] for line in cluster.steps()} == {"0,1"}


@pytest.mark.slow
def test_without_job_controls_it_leaves_its_gpus_too(make_cluster: MakeCluster) -> None:
    """As long as LSF stops the leader, and knows of nothing else."""
    cluster = make_cluster(pim_s=WHEN["early"])
    job = cluster.submit()
    cluster.at_gate()
    cluster.run("bstop", str(job))
    cluster.wait_state(job, "USUSP")
    wait_for(lambda: cluster.trainings() == [], "that it saves itself and leaves")
    cluster.run("bresume", str(job))
    cluster.at_gate(2)
    cluster.ends(job)


@pytest.mark.parametrize(
    "quirks",
    [pytest.param((), id=""), pytest.param(LEAN, id="lean", marks=pytest.mark.slow)],
)
def test_the_run_limit_does_not_end_it(make_cluster: MakeCluster, quirks: tuple[str, ...]) -> None:
    cluster = make_cluster(*quirks, queue={"requeue_exit_values": (85,)}, minute_s=70.0)
    job = cluster.submit("-W", "1")
    cluster.at_gate()
    wait_for(lambda: cluster.job(job).runs == 2, "the second run")
    assert "the allocation ends soon" in cluster.output()
    cluster.ends(job)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("quirks", "why"),
    [
        ((), "LSF wants the hosts back"),
        pytest.param(("warning_misparsed",), "the allocation ends soon", marks=pytest.mark.slow),
    ],
    ids=["", "misparsed"],
)
def test_a_warning_is_received_but_not_needed(
    make_cluster: MakeCluster, quirks: list[str], why: str
) -> None:
    """An engine may take -wa and -wt and never send anything."""
    cluster = make_cluster(*quirks, queue={"requeue_exit_values": (85,)}, minute_s=40.0)
    how = ("-a", "hpcext(suspendable,lead=20)", "-W", "2", "-wa", "USR2", "-wt", "1")
    job = cluster.submit(how=how)
    cluster.at_gate()
    wait_for(lambda: cluster.job(job).runs == 2, "the second run")
    assert why in cluster.output()
    cluster.ends(job)


def test_stopped_with_all_that_it_has_started_it_goes_on_when_resumed(
    make_cluster: MakeCluster,
) -> None:
    """SIGSTOP, which nothing can catch: its GPUs stay its own."""
    cluster = make_cluster(pim_s=WHEN["late"])
    job = cluster.submit()
    cluster.at_gate()
    cluster.run("bstop", str(job))
    cluster.wait_state(job, "USUSP")
    (training,) = cluster.trainings()
    cluster.gate.touch()
    wait_for(lambda: psutil.Process(training).status() == psutil.STATUS_STOPPED, "its training")
    cluster.run("bresume", str(job))
    cluster.ends(job)


@pytest.mark.slow
@pytest.mark.parametrize("values", [(), (85,)], ids=["brequeue", "exit value"])
def test_killed_in_the_middle_of_a_suspension_it_stays_killed(
    make_cluster: MakeCluster, tmp_path: Path, values: tuple[int, ...]
) -> None:
    queue = {**controlled(tmp_path), "requeue_exit_values": values}
    cluster = make_cluster(queue=queue, terminate_interval_s=1.0)
    job = cluster.submit(text=f"{cluster.counter} --deaf")
    cluster.at_gate()
    stopping = subprocess.Popen(
        [cluster.site.directory / "bstop", str(job)],
        env={**os.environ, **cluster.environ, "LSF_ENVDIR": str(cluster.site.directory)},
        stdout=subprocess.DEVNULL,
    )
    suspended = "LSF wants the hosts back"
    wait_for(lambda: suspended in cluster.output(), "the begin of the suspension")
    cluster.run("bkill", str(job))
    cluster.wait_state(job, "EXIT")
    assert cluster.job(job).runs == 1
    wait_for(lambda: cluster.trainings() == [], "that its training ends, too")
    stopping.wait(PATIENCE_S)
    assert (cluster.job(job).state, cluster.job(job).runs) == ("EXIT", 1)


def test_killed_at_once_nothing_of_it_goes_on(make_cluster: MakeCluster) -> None:
    cluster = make_cluster(queue={"requeue_exit_values": (85,)})
    job = cluster.submit()
    cluster.at_gate()
    os.killpg(cluster.job(job).group, signal.SIGKILL)
    cluster.wait_state(job, "EXIT")
    wait_for(lambda: cluster.trainings() == [], "that its training ends, too")


@pytest.mark.slow
def test_its_host_is_lost(make_cluster: MakeCluster) -> None:
    """The esub asks for a job that is run again then; what was not saved is done again."""
    cluster = make_cluster()
    job = cluster.submit()
    cluster.at_gate()
    assert cluster.job(job).rerunnable
    lsf_controls.lose_host(cluster.site, job)
    wait_for(lambda: cluster.job(job).runs == 2, "the second run")
    cluster.gate.touch()
    cluster.wait_state(job, "DONE")
    # It saves every fifth step.
    done = [int(line[1]) for line in cluster.steps()]
    assert done == [*range(1, 40), *range(36, 41)]


def test_a_script_from_a_pipe_runs_as_usual_and_says_so(make_cluster: MakeCluster) -> None:
    cluster = make_cluster()
    text = f"command . {cluster.site.serverdir}/hpcext-starter; echo ran $HPCEXT_SUSPENDABLE"
    ended = subprocess.run(
        ["/bin/sh"],
        input=text.encode(),
        env={**os.environ, **cluster.environ, "LSB_JOBID": "7", "HPCEXT_SUSPENDABLE": "1"},
        capture_output=True,
        check=False,
    )
    assert ended.stdout == b"ran 1\n"
    lines = ended.stderr.decode().splitlines()
    assert len(lines) == 2
    assert "reads its script from a pipe, and cannot read it again" in lines[0]
    assert lines[1] == "hpcext: the job cannot be suspended; it runs as usual"


@pytest.mark.cases(2)
@pytest.mark.parametrize("words", [["-c"], ["-ec"], []], ids=["-c", "-ec", "file"])
@pytest.mark.parametrize("shell", ["/bin/dash", "/bin/bash"])
def test_hostile_command_lines_arrive_byte_for_byte(
    make_cluster: MakeCluster, tmp_path: Path, shell: str, words: list[str]
) -> None:
    """All texts in one job, since a manager takes a second to begin."""
    cluster = make_cluster()
    draw = random.Random(f"hpcext {shell} {words}")
    # The kernel has no words that are longer than 128 KiB.
    texts = [hostile(draw) for _ in range(40)]
    texts = [each for each in texts if len(each[0]) < 3 << 10]
    script = f"command . {cluster.site.serverdir}/hpcext-starter\n".encode()
    script += b"\n".join(b"(" + text + b"\n)" for text, _ in texts)
    assert len(texts) > 30
    end = b"".join(says for _, says in texts)
    path = tmp_path / "script"
    path.write_bytes(script)
    # A leader of its own, as LSF has it; a pipe, so that all is shown at the end.
    ended = subprocess.run(
        [shell, *words, script if words else path, *([b"$0"] if words else []), b"a  b", b"\xff"],
        env={**os.environ, **cluster.environ, "LSB_JOBID": "7", "HPCEXT_SUSPENDABLE": "1"},
        cwd=cluster.site.directory,
        capture_output=True,
        check=False,
    )
    heading, _, said = ended.stdout.partition(b"\n")
    assert heading.startswith(b"--- attempt 1,"), (heading[:200], ended.stderr[-2000:])
    assert said == end
    assert not (cluster.site.directory / "run").exists()


CHECKPOINTED = (*SUSPENDABLE, "-k", "points method=hpcext")


@pytest.mark.slow
def test_a_checkpoint_is_made_and_the_training_goes_on(make_cluster: MakeCluster) -> None:
    cluster = make_cluster()
    job = cluster.submit(how=CHECKPOINTED)
    cluster.at_gate()
    assert cluster.run("bchkpnt", str(job)).returncode == 0
    assert (cluster.site.directory / "points" / str(job) / "hpcext").exists()
    assert cluster.job(job).state == "RUN"
    cluster.at_gate(2)
    cluster.ends(job)


@pytest.mark.slow
def test_killed_with_a_checkpoint_it_is_restarted_as_another_job(make_cluster: MakeCluster) -> None:
    cluster = make_cluster("starter_gets_text", queue={"requeue_exit_values": (85,)})
    job = cluster.submit(how=CHECKPOINTED)
    cluster.at_gate()
    assert cluster.run("bchkpnt", "-k", str(job)).returncode == 0
    cluster.wait_state(job, "EXIT")
    assert cluster.trainings() == []
    # LSF may have removed what it kept of the job.
    for path in (cluster.site.directory / "spool").iterdir():
        path.unlink()
    said = cluster.run("brestart", "points", str(job))
    assert said.returncode == 0, said
    cluster.at_gate(2)
    cluster.ends(job + 1)
    assert {line[0] for line in cluster.steps()} == {"1", "2"}


@pytest.mark.slow
def test_without_a_checkpoint_echkpnt_says_so(make_cluster: MakeCluster) -> None:
    """A training that does not save itself is killed for it, and begins again."""
    cluster = make_cluster()
    how = ("-a", "hpcext(suspendable,lead=10)", "-k", "points method=hpcext")
    job = cluster.submit(how=how, text=f"{cluster.counter} --deaf")
    cluster.at_gate()
    assert cluster.run("bchkpnt", "-k", str(job)).returncode == 1
    assert not (cluster.site.directory / "points" / str(job) / "hpcext").exists()
    assert cluster.job(job).state == "RUN"
    other = cluster.submit(text="sleep 60", how=CHECKPOINTED[2:])
    cluster.wait_state(other, "RUN")
    assert cluster.run("bchkpnt", str(other)).returncode == 1
    for each in (job, other):
        cluster.run("bkill", str(each))
    cluster.wait_state(job, "EXIT")
    cluster.wait_state(other, "EXIT")


@pytest.mark.parametrize("way", ["sourced", "executed"])
def test_what_the_training_has_of_the_settings(make_cluster: MakeCluster, way: str) -> None:
    """Jobs that it submits are not suspendable because it is."""
    cluster = make_cluster()
    starter = cluster.site.serverdir / "hpcext-starter"
    queue = Queue(job_starter=str(starter)) if way == "executed" else cluster.site.queues["normal"]
    site = dataclasses.replace(cluster.site, queues={"normal": queue}).save()
    cluster.site = site
    how = ("-a", "hpcext(suspendable,lead=50,gpus=1:2,scaling=x)")
    text = "echo $HPCEXT_GPUS $HPCEXT_SCALING.$HPCEXT_SUSPENDABLE$HPCEXT_LEAD_S; exit 3"
    job = cluster.submit(text=text, how=how)
    cluster.wait_state(job, "EXIT")
    assert cluster.output().splitlines()[1:] == ["1:2 x."]
    assert cluster.job(job).exit_code == 3
