"""The supervisor with real processes: what a command inherits, and how it ends."""

from __future__ import annotations

import errno
import json
import os
import resource
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest
from stage import Stage, end, runs

from hpcext.launch.supervisor_files import SupervisorFiles
from hpcext.process import Process

TELL = """
import json, os
told = {'environ': dict(os.environ), 'status': open('/proc/self/status').read()}
told |= {'session': os.getsid(0) == os.getpid(), 'stdin': os.readlink('/proc/self/fd/0')}
print(json.dumps(told | {'fds': sorted(os.listdir('/proc/self/fd'))}))
"""


def mask(status: str, name: str) -> set[int]:
    """Signals in a line of ``/proc/PID/status``."""
    text = next(line for line in status.splitlines() if line.startswith(f"{name}:"))
    bits = int(text.split()[1], 16)
    return {number for number in range(1, 65) if bits >> (number - 1) & 1}


def start_ticks(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[19])


# What a command inherits.


def test_a_command_runs_with_the_environment_and_signals_of_the_protocol(stage: Stage) -> None:
    keep = "import sys; sys.stdin.read()"
    # bash, so that what is looked at is a grandchild.
    command = f"{sys.executable} -I -S -c \"{TELL}\"; {sys.executable} -c '{keep}'; exit 3"
    supervisor = stage.run("bash", "-c", command)
    assert end(supervisor) == 3
    heading, line = stage.log.read_text().splitlines()
    assert heading.startswith("--- attempt 1, 2 GPUs, 20")
    told = json.loads(line)
    assert mask(told["status"], "SigBlk") == {signal.SIGTSTP}
    # Python itself ignores SIGPIPE and SIGXFSZ; 32 and 33 are the C library's own, and nobody
    # can change what was inherited for them.
    others = {signal.SIGPIPE, signal.SIGXFSZ, 32, 33}
    assert mask(told["status"], "SigIgn") - others == {signal.SIGTSTP, signal.SIGUSR1}
    assert told["stdin"] == "/dev/null"
    # 3 is the directory that lists them.
    assert told["fds"] == ["0", "1", "2", "3"]
    owner = stage.read("supervisor.json")
    assert owner["pid"] == supervisor.pid
    environ = told["environ"]
    assert environ["HPCEXT_NOTIFY"] == f"pid:{owner['pid']}:{owner['start']}"
    assert environ["OMP_NUM_THREADS"] == "1"
    assert environ["SPT_NOENV"] == "1"
    assert environ["TORCH_ELASTIC_SHUTDOWN_TIMEOUT"] == "41"
    assert environ["HPCEXT_JOB_ID"] == "1"
    assert environ["PATH"] == os.environ["PATH"]


def test_the_command_leads_a_session_and_what_is_set_is_kept(stage: Stage) -> None:
    environ = {"OMP_NUM_THREADS": "5", "TORCH_ELASTIC_SHUTDOWN_TIMEOUT": "9"}
    assert end(stage.run(sys.executable, "-I", "-S", "-c", TELL, environ=environ)) == 0
    told = json.loads(stage.log.read_text().splitlines()[1])
    assert told["session"]
    assert {key: told["environ"][key] for key in environ} == environ


def test_the_end_is_recorded(stage: Stage) -> None:
    before = time.time()
    burn = "import time\nwhile time.process_time() < 0.2: pass\nraise SystemExit(9)"
    assert end(stage.run(sys.executable, "-c", burn)) == 9
    document = stage.read("exit.json")
    assert document["schema"] == "hpcext.exit/1"
    assert (document["attempt"], document["op"], document["exit_code"]) == (1, 7, 9)
    assert document["suspended"] is False
    assert document["suspend_asked_at"] is None
    assert document["kill_asked_at"] is None
    instants = [document[key] for key in ("started_at", "main_ended_at", "ended_at")]
    instants = [before, *instants, time.time()]
    assert instants == sorted(instants)
    assert document["cpu_s"] >= 0.2


def test_attempts_share_a_log_and_begin_on_a_new_line(stage: Stage) -> None:
    stage.log.write_text("epoch 3:  40%|####      ")
    assert end(stage.run("echo", "hello", gpus=["n:0"])) == 0
    bar, heading, hello = stage.log.read_text().splitlines()
    assert bar == "epoch 3:  40%|####      "
    assert heading.startswith("--- attempt 1, 1 GPU, ")
    assert hello == "hello"


@pytest.mark.parametrize(
    ("argv", "cwd", "code", "line"),
    [
        (["no-such-command"], "/", 127, "no such program 'no-such-command'"),
        (["./train.py"], "/", 127, "no such program './train.py'"),
        (["sleep 5"], "/", 127, "no such program 'sleep 5'; in an array, each argument"),
        (["/etc/passwd"], "/", 126, "cannot run '/etc/passwd': it is not executable"),
        (["/"], "/", 126, "cannot run '/': it is a directory"),
        (["true"], "/no/such", 126, "no such directory '/no/such'"),
        (["true"], "/etc/passwd", 126, "no such directory '/etc/passwd'"),
        (["a\0b"], "/", 126, "cannot run 'a\\x00b': "),
        # One argument may have 128 KiB, execve(2).
        (["true", "x" * 200_000], "/", 126, "cannot run 'true': Argument list too long"),
    ],
)
def test_a_command_that_cannot_be_run(
    stage: Stage, argv: list[str], cwd: str, code: int, line: str
) -> None:
    assert end(stage.run(*argv, cwd=cwd)) == code
    [said] = stage.log.read_text().splitlines()[1:]
    assert said.startswith(f"hpcext: {line}")
    document = stage.read("exit.json")
    assert document["exit_code"] == code
    assert document["suspended"] is False
    assert said == f"hpcext: {document['cannot_run']}"
    # A file system may be away for a moment; a program is not.
    assert document["no_directory"] is ("no such directory" in line)


@pytest.mark.parametrize(
    ("text", "code", "why"),
    [
        ("#!/no/such/python\n", 127, "its interpreter '/no/such/python' does not exist"),
        ("echo hello\n", 126, "neither a program for this machine nor a script with a #! line"),
    ],
)
def test_a_script_that_cannot_be_run(stage: Stage, text: str, code: int, why: str) -> None:
    script = stage.path / "train"
    script.write_text(text)
    script.chmod(0o755)
    assert end(stage.run(str(script))) == code
    assert stage.read("exit.json")["cannot_run"] == f"cannot run {str(script)!r}: {why}"


def test_what_a_failed_command_said_last_is_recorded_and_what_was_said_before_it_is_not(
    stage: Stage,
) -> None:
    stage.log.write_text("an attempt before said this\n")
    assert end(stage.run("false")) == 1
    assert stage.read("exit.json")["last_line"] == ""
    (stage.directory / "supervisor.json").unlink()
    code = "import sys; print('epoch 1', file=sys.stderr, flush=True); raise ValueError('no data')"
    assert end(stage.run(sys.executable, "-c", code)) == 1
    assert stage.read("exit.json")["last_line"] == "ValueError: no data"
    (stage.directory / "supervisor.json").unlink()
    assert end(stage.run("echo", "all is well")) == 0
    assert "last_line" not in stage.read("exit.json")


# Suspending.


SHELLS = {
    "none": "{0}",
    "bash": "bash -c '{0}; exit $?'",
    "sh": "sh -c '{0}; exit $?'",
    "pipe": "sh -c '{0} | cat'",
    "and": "sh -c 'cd / && {0}'",
    "background": "bash -c '{0} & wait $!'",
}


@pytest.mark.cases(6)
@pytest.mark.parametrize("words", ["block", "block threads"])
@pytest.mark.parametrize("shell", SHELLS)
def test_a_suspension_reaches_a_session_below_a_shell(stage: Stage, shell: str, words: str) -> None:
    """Below dash too, which clears the signal mask: threads made before a session are then open."""
    command = SHELLS[shell].format(" ".join(stage.plain(*words.split())))
    supervisor = stage.run("bash", "-c", f"exec {command}")
    stage.wait_said("ready")
    before = time.time()
    supervisor.send_signal(signal.SIGTSTP)
    assert end(supervisor) == 85
    document = stage.read("exit.json")
    assert document["suspended"] is True
    # A shell is killed if it is there still when the session has acknowledged.
    assert document["exit_code"] in ({0} if shell == "none" else {0, -signal.SIGKILL})
    assert before <= document["suspend_asked_at"] <= document["ended_at"]


@pytest.mark.parametrize("words", ["wait block", "wait block quiet"])
@pytest.mark.parametrize("shell", ["none", "sh"])
def test_a_suspension_during_imports_is_kept_or_told_again(
    stage: Stage, shell: str, words: str
) -> None:
    command = SHELLS[shell].format(" ".join(stage.plain(*words.split())))
    supervisor = stage.run("bash", "-c", f"exec {command}")
    stage.wait_said("importing")
    supervisor.send_signal(signal.SIGTSTP)
    _wait_taken(stage, supervisor)
    Path(f"{stage.diary}.go").touch()
    assert end(supervisor) == 85
    asked_at = stage.read("exit.json")["suspend_asked_at"]
    assert asked_at < stage.read("report.json")["registered_at"]


def _wait_taken(stage: Stage, supervisor: subprocess.Popen[bytes]) -> None:
    """Wait until a supervisor has no signal pending any more, and sleeps."""

    def taken() -> bool:
        status = Path(f"/proc/{supervisor.pid}/status").read_text()
        sleeps = "\nState:\tS" in status
        return sleeps and not mask(status, "ShdPnd") and not mask(status, "SigPnd")

    stage.wait_for(taken, "the supervisor to take the signal")


def test_a_signal_before_the_supervisor_is_ready_waits(stage: Stage) -> None:
    """As executors start it: with the signals blocked."""
    stage.write_launch(*stage.plain("block"))
    held = {signal.SIGTSTP, signal.SIGTERM, signal.SIGUSR1}
    before = signal.pthread_sigmask(signal.SIG_BLOCK, held)
    try:
        supervisor = stage.supervise()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    for signum in (signal.SIGTSTP, signal.SIGUSR1):
        supervisor.send_signal(signum)
    assert end(supervisor) == 85


def test_a_job_that_ends_by_itself_is_not_suspended(stage: Stage) -> None:
    supervisor = stage.run(*stage.plain("deaf", "wait", "short"))
    stage.wait_said("importing")
    supervisor.send_signal(signal.SIGTSTP)
    _wait_taken(stage, supervisor)
    Path(f"{stage.diary}.go").touch()
    assert end(supervisor) == 0
    document = stage.read("exit.json")
    assert document["suspended"] is False
    assert document["suspend_asked_at"] is not None


@pytest.mark.parametrize(
    "document",
    [
        {"schema": "hpcext.suspended/1", "attempt": 2, "op": 7},
        {"schema": "hpcext.suspended/1", "attempt": 1, "op": 6},
        {"schema": "hpcext.suspended/2", "attempt": 1, "op": 7},
        ["hpcext.suspended/1"],
    ],
)
def test_an_acknowledgement_of_another_order_does_not_count(stage: Stage, document: object) -> None:
    (stage.directory / "suspended.json").write_text(json.dumps(document))
    assert end(stage.run("true")) == 0
    assert stage.read("exit.json")["suspended"] is False


@pytest.mark.parametrize("word", ["callbacks", ""])
def test_what_a_script_has_after_a_suspended_training_is_not_run(stage: Stage, word: str) -> None:
    """And what the session does last is not cut off when the shells above it are gone."""
    training = " ".join(stage.plain("block", word))
    inner = f"{training}; echo inner >> {stage.diary}"
    supervisor = stage.run("bash", "-c", f"sh -c '{inner}'; echo outer >> {stage.diary}")
    stage.wait_said("ready")
    supervisor.send_signal(signal.SIGTSTP)
    assert end(supervisor) == 85
    assert stage.read("exit.json")["suspended"] is True
    said = stage.diary.read_text()
    assert ("called back" in said) == bool(word)
    assert "inner" not in said
    assert "outer" not in said


def test_a_script_goes_on_whose_training_ends_when_it_is_suspended(stage: Stage) -> None:
    training = " ".join(stage.plain("block", "done"))
    supervisor = stage.run("bash", "-c", f"{training}; echo after >> {stage.diary}; exit 5")
    stage.wait_said("ready")
    supervisor.send_signal(signal.SIGTSTP)
    assert end(supervisor) == 5
    assert stage.read("exit.json")["suspended"] is False
    assert "after" in stage.diary.read_text()


# Notices of the batch system.


@pytest.mark.cases(1)
@pytest.mark.parametrize("shell", ["sh", ""])
def test_a_session_that_cannot_save_trains_until_it_is_asked_again(
    stage: Stage, shell: str
) -> None:
    training = stage.plain("block", "full")
    command = (shell, "-c", f"{' '.join(training)}; true") if shell else training
    supervisor = stage.run(*command)
    stage.wait_said("ready")
    for times in (1, 2):
        supervisor.send_signal(signal.SIGTSTP)
        stage.wait_said("told", times)
        # Nobody holds it, nor the shell above it.
        stage.wait_said("trained", times)
        assert len(stage.said("told")) == times
        states = {each.status() for each in psutil.Process(supervisor.pid).children(recursive=True)}
        assert psutil.STATUS_STOPPED not in states
    supervisor.send_signal(signal.SIGTERM)
    assert end(supervisor) == 128 + signal.SIGTERM
    document = stage.read("exit.json")
    assert (document["suspended"], document["suspend_asked_at"]) == (False, None)


def test_where_the_batch_system_wants_it_to_go_it_is_asked_again_and_again(stage: Stage) -> None:
    supervisor = stage.run(*stage.plain("block", "stubborn", "full"), notices=True)
    stage.wait_said("ready")
    stage.wait_for((stage.directory / "report.json").exists, "the session")
    supervisor.send_signal(signal.SIGUSR2)
    stage.wait_said("told", 3)
    supervisor.kill()
    supervisor.wait()


def test_an_order_that_was_declined_is_not_obeyed_twice(stage: Stage) -> None:
    """The file stays; another order has another number."""
    supervisor = stage.run(*stage.plain("block", "full"))
    stage.wait_said("ready")
    for times in (1, 2):
        order = {"schema": "hpcext.order/1", "attempt": 1, "op": 7, "order": "suspend"}
        (stage.directory / "order.new").write_text(json.dumps({**order, "number": times}))
        (stage.directory / "order.new").rename(stage.directory / "order.json")
        supervisor.send_signal(signal.SIGUSR1)
        stage.wait_said("trained", times)
        supervisor.send_signal(signal.SIGUSR1)
        assert len(stage.said("told")) == times
    supervisor.send_signal(signal.SIGTERM)
    end(supervisor)


@pytest.mark.cases(2)
@pytest.mark.parametrize("pause_s", [0, 0.5])
@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGUSR2])
def test_a_notice_is_a_suspension_where_there_is_a_session(
    stage: Stage, signum: int, pause_s: float
) -> None:
    """Slurm sends it to every process of a step, the supervisor not the first of them: the shell
    may die of it, the session saves."""
    training = " ".join(stage.plain("block", "stubborn", "callbacks"))
    supervisor = stage.run("bash", "-c", f"{training}; exit 3", notices=True)
    stage.wait_said("ready")
    stage.wait_for((stage.directory / "report.json").exists, "the session")
    for process in psutil.Process(supervisor.pid).children(recursive=True):
        process.send_signal(signum)
    time.sleep(pause_s)
    supervisor.send_signal(signum)
    assert end(supervisor) == 85
    document = stage.read("exit.json")
    assert document["suspended"] is True
    assert document["notice_at"] is not None
    assert "called back" in stage.diary.read_text()


@pytest.mark.parametrize(
    ("notices", "word", "goes_on"),
    [(True, "", False), (True, "saved", True), (False, "", True)],
)
def test_a_script_does_not_go_on_whose_training_the_batch_system_has_cut_off(
    stage: Stage, notices: bool, word: str, goes_on: bool
) -> None:
    """As the daemons of mpirun end their ranks; without a notice it is the script's to judge."""
    training = shlex.join(stage.plain("block", "killed", word))
    supervisor = stage.run(
        "bash", "-c", f"{training}; echo after >> {stage.diary}", notices=notices
    )
    stage.wait_for((stage.directory / "report.json").exists, "its registration")
    supervisor.send_signal(signal.SIGUSR2 if notices else signal.SIGTSTP)
    assert end(supervisor) == (0 if goes_on else 128 + signal.SIGKILL)
    assert stage.read("exit.json")["suspended"] is False
    assert ("after" in stage.diary.read_text()) == goes_on


def test_a_notice_ends_what_has_no_session(stage: Stage) -> None:
    supervisor = stage.run("sleep", "60", notices=True)
    stage.wait_for((stage.directory / "supervisor.json").exists, "the supervisor")
    stage.wait_for(lambda: psutil.Process(supervisor.pid).children(), "the command")
    supervisor.terminate()
    assert end(supervisor) == 128 + signal.SIGTERM
    document = stage.read("exit.json")
    assert document["suspended"] is False
    assert document["notice_at"] is not None


def test_what_lingers_after_its_acknowledgement_is_killed_and_still_suspended(
    stage: Stage,
) -> None:
    supervisor = stage.run(*stage.plain("block", "linger", "stubborn"))
    stage.wait_said("ready")
    supervisor.send_signal(signal.SIGTSTP)
    stage.wait_for((stage.directory / "suspended.json").exists, "the acknowledgement")
    supervisor.terminate()
    assert end(supervisor) == 85
    document = stage.read("exit.json")
    assert document["suspended"] is True
    assert document["exit_code"] == -signal.SIGKILL


MISSES = """
import signal, subprocess, sys
signal.signal(signal.SIGTERM, signal.SIG_DFL)
subprocess.Popen(sys.argv[1:])
while True:
    signal.pause()
"""
"""A command that does not hear that what it has started has ended, as Apptainer's own process."""


def test_a_command_that_misses_that_its_session_has_left_is_ended(stage: Stage) -> None:
    supervisor = stage.run(sys.executable, "-c", MISSES, *stage.plain("block"))
    stage.wait_said("ready")
    supervisor.send_signal(signal.SIGTSTP)
    assert end(supervisor) == 85
    document = stage.read("exit.json")
    assert document["suspended"] is True
    assert document["kill_asked_at"] is None


# Killing.


def test_sigterm_ends_a_job_politely(stage: Stage) -> None:
    supervisor = stage.run("bash", "-c", " ".join(stage.plain("deaf")) + "; true")
    stage.wait_said("ready")
    supervisor.terminate()
    assert end(supervisor) == 128 + signal.SIGTERM
    document = stage.read("exit.json")
    assert document["exit_code"] == -signal.SIGTERM
    assert document["kill_asked_at"] is not None


def test_what_ignores_sigterm_is_killed_after_the_grace(stage: Stage) -> None:
    supervisor = stage.run(*stage.plain("deaf", "stubborn"), kill_grace_s=0.3)
    stage.wait_said("ready")
    supervisor.terminate()
    assert end(supervisor) == 128 + signal.SIGKILL
    document = stage.read("exit.json")
    assert document["exit_code"] == -signal.SIGKILL
    assert document["main_ended_at"] - document["kill_asked_at"] >= 0.3


def test_a_stopped_job_receives_sigterm(stage: Stage) -> None:
    supervisor = stage.run(*stage.plain("deaf", "tidy", "stopped"), kill_grace_s=3600)
    [[pid, *_]] = stage.wait_said("ready")
    stage.wait_for(lambda: psutil.Process(int(pid)).status() == "stopped", "the stop")
    supervisor.terminate()
    assert end(supervisor) == 0
    assert stage.read("exit.json")["kill_asked_at"] is not None


@pytest.mark.parametrize("words", ["daemon deaf", "daemon deaf short", "daemon block"])
def test_a_stubborn_daemon_does_not_outlive_its_attempt(stage: Stage, words: str) -> None:
    """In a session of its own, without environment, deaf to SIGTERM, when its parents are gone."""
    supervisor = stage.run(*stage.plain(*words.split()))
    [[daemon]] = stage.wait_said("daemon")
    stage.wait_said("ready")
    if "short" not in words:
        assert runs(int(daemon))
        supervisor.send_signal(signal.SIGTSTP if "block" in words else signal.SIGTERM)
    expected = 85 if "block" in words else 0 if "short" in words else 128 + signal.SIGTERM
    assert end(supervisor) == expected
    assert not runs(int(daemon))


def test_workers_do_not_outlive_a_killed_leader(stage: Stage) -> None:
    leader = (
        "import subprocess, sys\n"
        "for _ in range(2): subprocess.Popen(sys.argv[1:], start_new_session=True)\n"
        "import time; time.sleep(3600)"
    )
    supervisor = stage.run(sys.executable, "-c", leader, *stage.plain("deaf"))
    workers = [int(pid) for pid, *_ in stage.wait_said("ready", 2)]
    [main] = psutil.Process(supervisor.pid).children()
    main.kill()
    assert end(supervisor) == 128 + signal.SIGKILL
    assert stage.read("exit.json")["exit_code"] == -signal.SIGKILL
    assert not any(runs(pid) for pid in workers)


def test_a_child_killed_is_the_jobs_own_affair(stage: Stage) -> None:
    job = "import os, subprocess, sys\nsys.exit(-subprocess.run(sys.argv[1:]).returncode)"
    supervisor = stage.run(sys.executable, "-c", job, *stage.plain("deaf"))
    [[pid, *_]] = stage.wait_said("ready")
    os.kill(int(pid), signal.SIGKILL)
    assert end(supervisor) == signal.SIGKILL


def test_the_command_does_not_outlive_a_killed_supervisor(stage: Stage) -> None:
    supervisor = stage.run(*stage.plain("deaf", "stubborn"))
    [[pid, *_]] = stage.wait_said("ready")
    supervisor.kill()
    assert end(supervisor) == -signal.SIGKILL
    stage.wait_for(lambda: not runs(int(pid)), "the end of the command")
    assert not (stage.directory / "exit.json").exists()


@pytest.mark.parametrize("name", ["SIGINT", "SIGHUP", "SIGQUIT", "SIGUSR2", "SIGALRM", "SIGPIPE"])
def test_other_signals_do_nothing(stage: Stage, name: str) -> None:
    supervisor = stage.run(*stage.plain("wait", "short"))
    stage.wait_said("importing")
    supervisor.send_signal(signal.Signals[name])
    Path(f"{stage.diary}.go").touch()
    assert end(supervisor) == 0


# One attempt, one supervisor.


def test_of_many_supervisors_one_runs_the_command(stage: Stage) -> None:
    stage.write_launch(*stage.plain("wait", "short"))
    supervisors = [stage.supervise() for _ in range(5)]
    stage.wait_said("importing")
    stage.wait_for(lambda: sum(one.poll() == 75 for one in supervisors) == 4, "the losers")
    Path(f"{stage.diary}.go").touch()
    assert sorted(end(one) for one in supervisors) == [0, 75, 75, 75, 75]
    assert len(stage.said("importing")) == 1
    assert end(stage.supervise()) == 75, "an attempt that has ended does not run again"
    assert len(stage.said("importing")) == 1
    left = {path.name for path in stage.directory.iterdir()}
    assert left == {"launch.json", "supervisor.json", "report.json", "exit.json"}


def test_the_claim_says_who_has_it(stage: Stage) -> None:
    supervisor = stage.run(*stage.plain("wait", "short"))
    stage.wait_said("importing")
    document = stage.read("supervisor.json")
    assert document["schema"] == "hpcext.supervisor/1"
    assert (document["attempt"], document["op"]) == (1, 7)
    assert document["pid"] == supervisor.pid
    assert document["start"] == start_ticks(supervisor.pid)
    assert document["boot_id"] == Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    Path(f"{stage.diary}.go").touch()
    end(supervisor)


def test_a_claim_is_on_the_disk_before_it_has_its_name(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise half of it may be there after a crash, which does not say on which boot it ran."""

    def fails(fd: int) -> None:
        raise OSError(errno.EIO, "not synchronised")

    monkeypatch.setattr(os, "fsync", fails)
    files = SupervisorFiles(stage.directory, {"attempt": 1, "op": 7}, 0)
    with pytest.raises(OSError, match="not synchronised"):
        files.claim(Process.me(), {})
    assert not list(stage.directory.iterdir())


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "not JSON"),
        ("[]", "not a document"),
        ('{"schema": "hpcext.launch/1"}', "KeyError: 'attempt'"),
        (None, "No such file"),
    ],
)
def test_without_a_good_launch_file_nothing_is_run(
    stage: Stage, text: str | None, said: str
) -> None:
    if text is not None:
        (stage.directory / "launch.json").write_text(text)
    supervisor = stage.supervise()
    _, message = supervisor.communicate()
    assert supervisor.returncode == 71
    assert said in message.decode()
    assert not (stage.directory / "supervisor.json").exists()


# News.


def write_manager(stage: Stage, pid: int, start: int) -> Path:
    path = stage.path / "manager.json"
    document = {"schema": "hpcext.manager/1", "pid": pid, "start": start, "host": "n"}
    path.write_text(json.dumps(document))
    return path


def test_news_goes_on_to_the_manager(stage: Stage) -> None:
    manager = write_manager(stage, os.getpid(), start_ticks(os.getpid()))
    # A handler, not a mask: the test runner's other threads do not block the signal.
    news: list[int] = []
    before = signal.signal(signal.SIGUSR1, lambda number, _: news.append(number))
    try:
        supervisor = stage.run(*stage.plain("deaf", "wait", "short"), manager=str(manager))
        stage.wait_said("importing")
        assert not news
        Path(f"{stage.diary}.go").touch()
        assert end(supervisor) == 0
        assert news
    finally:
        signal.signal(signal.SIGUSR1, before)


def test_a_later_process_with_the_managers_pid_is_left_alone(stage: Stage) -> None:
    """SIGUSR1 would kill it."""
    other = subprocess.Popen(["sleep", "3600"])
    try:
        manager = write_manager(stage, other.pid, start_ticks(other.pid) - 1)
        assert end(stage.run(*stage.plain("short"), manager=str(manager))) == 0
        assert other.poll() is None
    finally:
        other.kill()
        other.wait()


@pytest.mark.parametrize("text", ["", "{", '{"schema": "hpcext.manager/1", "pid": "x"}', None])
def test_news_without_a_manager_has_no_effect(stage: Stage, text: str | None) -> None:
    path = stage.path / "manager.json"
    if text is not None:
        path.write_text(text)
    assert end(stage.run(*stage.plain("short"), manager=str(path))) == 0


# A full disk: RLIMIT_FSIZE makes writing fail for root as for anybody, and for one process alone.


def limit_files(pid: int, soft: int) -> None:
    hard = resource.prlimit(pid, resource.RLIMIT_FSIZE)[1]
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (soft, hard))


def disk_full_at_the_end(stage: Stage) -> subprocess.Popen[bytes]:
    """A supervisor whose command has ended, and which has tried in vain to record that."""
    supervisor = stage.run(*stage.plain("wait", "short"))
    stage.wait_said("importing")
    limit_files(supervisor.pid, 0)
    Path(f"{stage.diary}.go").touch()
    stage.wait_said("done")
    stage.wait_for(lambda: not psutil.Process(supervisor.pid).children(), "an empty tree")
    before = stage.directory.stat().st_mtime_ns
    stage.wait_for(lambda: stage.directory.stat().st_mtime_ns > before, "another try")
    assert supervisor.poll() is None
    assert not (stage.directory / "exit.json").exists()
    return supervisor


def test_the_end_is_recorded_once_there_is_room(stage: Stage) -> None:
    supervisor = disk_full_at_the_end(stage)
    limit_files(supervisor.pid, resource.RLIM_INFINITY)
    assert end(supervisor) == 0
    assert stage.read("exit.json")["exit_code"] == 0


def test_sigterm_ends_the_wait_for_room(stage: Stage) -> None:
    supervisor = disk_full_at_the_end(stage)
    supervisor.terminate()
    _, message = supervisor.communicate(timeout=500)
    assert supervisor.returncode == 0
    assert b"the end was not recorded: " in message
    assert not (stage.directory / "exit.json").exists()


def test_nothing_is_run_if_the_attempt_cannot_be_taken(stage: Stage) -> None:
    stage.write_launch(*stage.plain("short"))
    supervisor = stage.supervise(preexec_fn=lambda: limit_files(0, 0))
    _, message = supervisor.communicate()
    assert supervisor.returncode == 71
    assert message.startswith(b"hpcext: nothing was run: OSError: [Errno 27] File too large")
    assert not stage.said("importing")
    assert {path.name for path in stage.directory.iterdir()} == {"launch.json"}


def test_a_removed_directory_does_not_block_the_end(stage: Stage) -> None:
    supervisor = stage.run(*stage.plain("wait", "deaf"))
    stage.wait_said("importing")
    stage.directory.rename(stage.path / "elsewhere")
    supervisor.terminate()
    assert end(supervisor) == 128 + signal.SIGTERM
