"""The contract engine itself: what it plays, what it refuses, and that each quirk is one."""

from __future__ import annotations

import json
import signal
import time
from pathlib import Path

import lsf_controls
import pytest
from lsf_site import RECORDED, Host, Queue, Site
from lsf_tools import MakeSite, command, output

NAMES = (
    *("lsf_arrays", "lsf_command", "lsf_hosts", "lsf_launch", "lsf_res", "lsf_run"),
    *("lsf_signals", "lsf_site", "lsf_submit"),
)


def add_esub(site: Site, name: str, *lines: str) -> None:
    esub = site.serverdir / name
    esub.write_text("\n".join(("#!/bin/sh", *lines, "")))
    esub.chmod(0o755)


def begun(site: Site, *words: str) -> int:
    """Submit a job that creates `begun`, and wait for that; its id."""
    assert command(site, "bsub", "-o", "out", *words).returncode == 0
    until(site.directory / "begun")
    return site.jobs()[-1].id


def until(path: Path) -> None:
    while not path.exists():  # the time limit of the test is the limit
        time.sleep(0.01)


def ended(site: Site, job_id: int) -> str:
    while not site.job(job_id).over():
        time.sleep(0.01)
    return site.job(job_id).state


def test_it_says_where_it_is_from() -> None:
    for name in NAMES:
        first = __import__(name).__doc__.splitlines()[0]
        assert first.startswith("Contract engine of LSF, written from the vendor's documentation")


def test_esubs_run_in_their_order(make_site: MakeSite) -> None:
    site = make_site(esub_method="second")
    for name in ("esub", "esub.second", "esub.third"):
        add_esub(site, name, f'echo "{name} $*" >>{site.directory}/order')
    assert command(site, "bsub", "-a", "third(a, b c ,d)", "true").returncode == 0
    order = (site.directory / "order").read_text()
    assert order == "esub \nesub.second \nesub.third a b c d\n"


def test_an_esub_aborts_with_its_value_alone(site: Site) -> None:
    add_esub(site, "esub.no", "echo no >&2; exit $LSB_SUB_ABORT_VALUE")
    add_esub(site, "esub.bad", "exit 1")
    refused = command(site, "bsub", "-a", "no", "true")
    assert refused.returncode == 255
    assert refused.stderr == b"no\nRequest aborted by esub. Job not submitted.\n"
    assert command(site, "bsub", "-a", "bad", "true").returncode == 0


def test_eexec_reads_what_esubs_print(site: Site) -> None:
    add_esub(site, "esub.one", "echo one")
    add_esub(site, "esub.two", "echo two")
    add_esub(site, "eexec", f"cat >>{site.directory}/heard")
    output(site, "-a", "one two", "true")
    assert (site.directory / "heard").read_text() == "one\ntwo\n" * 2  # START, END


def test_when_eexec_begins(make_site: MakeSite) -> None:
    for quirks, order in (((), "pre START END"), (("eexec_before_pre_exec",), "START pre END")):
        site = make_site(*quirks, name=f"lsf{len(quirks)}")
        order_file = site.directory / "order"
        add_esub(site, "eexec", f'echo "$LS_EXEC_T" >>{order_file}')
        output(site, "-E", f"echo pre >>{order_file}", "true")
        assert order_file.read_text().split() == order.split()


def test_unknown_keys(make_site: MakeSite) -> None:
    for quirks, status in (((), 255), (("unknown_keys_ignored",), 0)):
        site = make_site(*quirks, name=f"lsf{status}")
        add_esub(site, "esub", 'echo LSB_SUB_NONE=1 >>"$LSB_SUB_MODIFY_FILE"')
        assert command(site, "bsub", "true").returncode == status


PREFIX = (
    """sed -n 's/^LSB_SUB_COMMAND_LINE="/&nice /p' "$LSB_SUB_PARM_FILE" >>"$LSB_SUB_MODIFY_FILE" """
)


def test_a_script_whose_line_is_rewritten_runs_nothing(make_site: MakeSite) -> None:
    """Why there is a starter."""
    script = b"#!/bin/bash\n#BSUB -n 1\ntouch ran\n"
    for quirks in ((), ("script_flattened", "bare_quotes")):
        site = make_site(*quirks, name=f"lsf{len(quirks)}")
        add_esub(site, "esub", PREFIX.replace("nice ", "").replace('"/&', '"/&: '))
        assert command(site, "bsub", "-K", stdin=script).returncode == 0
        assert (site.directory / "ran").exists() == (not quirks)
        assert site.job(1).state == "DONE"


def test_requeue(make_site: MakeSite) -> None:
    site = make_site(queues={"q": Queue(requeue_exit_values=(85,), max_job_requeue=2)})
    assert command(site, "bsub", "-K", "exit 85").returncode == 85
    assert site.job(1).runs == 3
    assert command(site, "bsub", "-K", "exit 7").returncode == 7
    assert site.job(2).runs == 1
    once = "test -e once && exit 0; touch once; exit 7"
    assert command(site, "bsub", "-K", "-Q", "7", once).returncode == 0
    assert (site.job(3).runs, site.job(3).state) == (2, "DONE")


@pytest.mark.parametrize(("slots", "signum"), [("1", signal.SIGSTOP), ("2", signal.SIGTSTP)])
def test_bstop_and_bresume(site: Site, slots: str, signum: int) -> None:
    text = (
        "trap 'touch told' TSTP; touch begun; while ! test -e go; do sleep 0.02; done; touch gone"
    )
    job_id = begun(site, "-n", slots, text)
    assert command(site, "bstop", str(job_id)).returncode == 0
    assert site.job(job_id).state == "USUSP"
    if signum == signal.SIGTSTP:
        # It can be caught: a shell does so, its child stops.
        command(site, "bresume", str(job_id))
        until(site.directory / "told")
    else:
        (site.directory / "go").touch()
        time.sleep(0.2)
        assert not (site.directory / "gone").exists()
        command(site, "bresume", str(job_id))
    (site.directory / "go").touch()
    assert ended(site, job_id) == "DONE"
    assert command(site, "bstop", str(job_id)).returncode == 255


def test_bkill_goes_on_until_the_job_ends(make_site: MakeSite) -> None:
    # Long enough for a shell on a busy machine to do what it was told.
    site = make_site(terminate_interval_s=4.0)
    text = (
        "trap 'echo INT >>told' INT; trap 'echo TERM >>told' TERM; touch begun; "
        "while :; do sleep 0.02; done"
    )
    job_id = begun(site, text)
    assert command(site, "bkill", str(job_id)).returncode == 0
    assert ended(site, job_id) == "EXIT"
    assert (site.directory / "told").read_text() == "INT\nTERM\n"
    assert site.job(job_id).exit_code == 137


def test_a_run_limit_is_announced_by_usr2(make_site: MakeSite) -> None:
    site = make_site(minute_s=0.1, terminate_interval_s=5.0)
    text = (
        "trap 'echo USR2 >>told' USR2; trap 'echo INT >>told; exit 4' INT; "
        "while :; do sleep 0.02; done"
    )
    assert command(site, "bsub", "-K", "-W", "1:00", text).returncode == 4
    assert (site.directory / "told").read_text() == "USR2\nINT\n"
    assert site.job(1).state == "EXIT"


def test_what_is_killed_is_not_requeued(make_site: MakeSite) -> None:
    site = make_site(queues={"q": Queue(requeue_exit_values=(85,))})
    text = "trap 'exit 85' INT; touch begun; while :; do sleep 0.02; done"
    job_id = begun(site, text)
    command(site, "bstop", str(job_id))
    command(site, "bkill", str(job_id))
    command(site, "bresume", str(job_id))
    assert ended(site, job_id) == "EXIT"
    assert site.job(job_id).runs == 1


def test_plain_signals(make_site: MakeSite) -> None:
    site = make_site("signals_do_not_count")
    text = "trap 'touch cont' CONT; touch begun; while ! test -e go; do sleep 0.02; done"
    job_id = begun(site, text)
    command(site, "bkill", "-s", "TSTP", str(job_id))
    command(site, "bkill", "-s", "CONT", str(job_id))
    assert site.job(job_id).state == "RUN"
    time.sleep(0.2)
    assert not (site.directory / "cont").exists()
    command(site, "bkill", "-s", "KILL", str(job_id))
    assert ended(site, job_id) == "EXIT"


def test_bjobs(make_site: MakeSite) -> None:
    for quirks, empty in (((), ""), (("empty_is_dash",), "-")):
        site = make_site(*quirks, name=f"lsf{empty}", terminate_interval_s=0.1)
        job_id = str(begun(site, "-J", "a", "touch begun; sleep 60"))
        said = command(site, "bjobs", "-noheader", "-o", "jobid stat exit_code delimiter='|'")
        assert said.stdout.decode() == f"{job_id}|RUN|{empty}\n"
        found = json.loads(command(site, "bjobs", "-json", "-o", "job_name", job_id, "99").stdout)
        unknown = {"JOBID": "99", "ERROR": "Job <99> is not found"}
        assert found["RECORDS"] == [{"JOB_NAME": "a"}, unknown]
        assert command(site, "bjobs", "99").returncode == 255
        command(site, "bkill", job_id)
        ended(site, int(job_id))


@pytest.mark.parametrize(
    "words",
    [
        ["bsub", "-W", "1.5", "true"],
        ["bsub", "-wa", "URG", "true"],
        ["bsub", "echo", "a b"],
        ["bsub", "-env", "A=1", "true"],
        ["bsub", "-a", "user", "true"],
        ["bsub", "-a", "none", "true"],
        ["bsub", "-q", "none", "true"],
        ["bjobs", "-o", "pids"],
        ["bkill", "-r", "1"],
        ["bkill", "-s", "TSTP", "1"],
    ],
    ids=" ".join,
)
def test_what_it_does_not_play_it_refuses(site: Site, words: list[str]) -> None:
    job_id = begun(site, "touch begun; sleep 60")
    refused = command(site, *words)
    assert (refused.returncode, refused.stdout) == (255, b"")
    assert refused.stderr
    assert [job.id for job in site.jobs()] == [job_id]
    command(site, "bkill", str(job_id))
    ended(site, job_id)


def test_jobs_get_hosts_and_gpus_and_are_told(make_site: MakeSite) -> None:
    site = make_site(hosts=(Host("a", 2, 0), Host("b", 4, 4), Host("c", 4, 4)))
    wanted = ("-n", "4", "-R", "span[ptile=2]", "-gpu", "num=3/host")
    told = output(
        site,
        *wanted,
        'echo "$LSB_HOSTS|$LSB_MCPU_HOSTS|$CUDA_VISIBLE_DEVICES"; cat $LSB_DJOB_HOSTFILE',
    )
    assert told.decode().split("\n") == ["b b c c|b 2 c 2 |0,1,2", "b", "b", "c", "c", ""]
    assert site.jobs()[-1].gpus == {"b": [0, 1, 2], "c": [0, 1, 2]}
    told = output(site, "-n", "3", "-gpu", "num=1/task", "echo $CUDA_VISIBLE_DEVICES $LSB_HOSTS")
    assert told.decode() == "0,1,2 b b b\n"


def test_a_job_waits_for_its_gpus_and_can_be_killed_meanwhile(make_site: MakeSite) -> None:
    site = make_site(hosts=(Host("a", 4, 2),), terminate_interval_s=0.1)
    first = begun(site, "-gpu", "num=2", f"touch {site.directory}/begun; exec sleep 600")
    for _ in range(2):
        command(site, "bsub", "-gpu", "num=1", "true")
    second, third = (job.id for job in site.jobs()[-2:])
    assert site.job(second).state == site.job(third).state == "PEND"
    command(site, "bkill", str(third))
    assert ended(site, third) == "EXIT"
    command(site, "bkill", str(first))
    assert ended(site, second) == "DONE"


def test_on_a_launch_node_a_job_sees_no_gpu(make_site: MakeSite) -> None:
    site = make_site(hosts=(Host("a", 2, 2),), launch_node="batch1")
    told = output(
        site, "-n", "2", "-gpu", "num=2", "echo ${CUDA_VISIBLE_DEVICES-none} $LSB_MCPU_HOSTS"
    )
    assert told.decode() == "none batch1 1 a 2\n"


def test_what_an_engine_of_its_line_does_not_have(make_site: MakeSite) -> None:
    site = make_site(*RECORDED)
    told = output(site, "-n", "2", "echo ${LSB_DJOB_HOSTFILE-no} ${LSB_DJOB_NUMPROC-no}")
    assert told == b"no no\n"
    assert command(site, "bsub", "-rn", "true").returncode == 255
    none = command(make_site("none_fails", name="none"), "bjobs", "-o", "jobid", "-json")
    assert (none.returncode, json.loads(none.stdout)["RECORDS"]) == (255, [])


def test_a_lost_host_seems_well_for_a_while(make_site: MakeSite) -> None:
    site = make_site(hosts=(Host("a"), Host("b")), host_lost_s=2.0, exit_shown_s=2.0)
    states = []
    job_id = begun(site, "-r", "test -e once && exit 0; touch once begun; exec sleep 60")
    (site.directory / "down").write_text("b")
    lost_s = time.monotonic()
    told = command(site, "bhosts", "b").stdout
    # On a busy machine the answer may come when it is known.
    assert b"unavail" not in told or time.monotonic() - lost_s > 2.0
    lsf_controls.lose_host(site, job_id)
    while not site.job(job_id).over():
        if states[-1:] != [site.job(job_id).state]:
            states.append(site.job(job_id).state)
        time.sleep(0.01)
    assert states[:4] == ["RUN", "UNKWN", "ZOMBI", "EXIT"]
    assert (site.job(job_id).state, site.job(job_id).runs) == ("DONE", 2)
    assert b"unavail" in command(site, "bhosts", "b").stdout
