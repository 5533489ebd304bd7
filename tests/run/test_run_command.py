"""Jobs without a job file, by real processes: ``run -- COMMAND``, ``submit PILOT -- COMMAND``."""

from __future__ import annotations

import subprocess

from site_of_test import Site, wait_for


def logs(site: Site, *jobs: str) -> list[str]:
    """What jobs of the newest pilot printed, without the lines that separate attempts."""
    said = [site.run("logs", job).out.splitlines() for job in jobs]
    return ["\n".join(line for line in lines if not line.startswith("--- ")) for lines in said]


def test_a_command_is_run_here(site: Site) -> None:
    (site.path / "below").mkdir()
    words = ["--gpus", "2", "--gpus-per-job", "2", "--env", "TOLD=a b", "--workdir", "below"]
    code = 'echo "$0|$1|$TOLD|$PWD|{gpus}"'
    done = site.run("run", *words, "--name", "told", "--", "sh", "-c", code, "--json", "c d")
    assert done.code == 0, done
    assert logs(site, "told") == [f"--json|c d|a b|{site.path / 'below'}|2"]
    # The pilot has the name, too.
    assert "completed" in site.run("status", "told").out


def test_the_exit_status_says_that_a_command_failed(site: Site) -> None:
    done = site.run("run", "--gpus", "1", "--retries", "0", "--", "sh", "-c", "exit 3")
    assert done.code == 1, done
    (job,) = site.document("status", "sh")["jobs"]
    assert (job["name"], job["exit_code"], job["attempts"]) == ("sh", 3, 1)


def test_a_command_that_can_never_run_is_refused(site: Site) -> None:
    done = site.run("run", "--gpus", "2", "--gpus-per-job", "3", "--", "./train.sh")
    assert done.code == 2
    assert "command line: job train: gpus: needs at least 3 GPUs" in done.err
    assert not (site.path / "state").exists()


def piped(site: Site, text: str, *args: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [site.python, "-m", "hpcext", *args],
        input=text,
        env=site.environ,
        cwd=site.path,
        capture_output=True,
        text=True,
        check=False,
    )


def test_each_line_of_standard_input_is_a_job(site: Site) -> None:
    lines = "# three\necho one\n\necho 'two  2'\nprintf %s {name}\n"
    done = piped(site, lines, "run", "--gpus", "2", "--commands", "-")
    assert done.returncode == 0, done
    assert logs(site, "echo-1", "echo-2", "printf") == ["one", "two  2", "printf"]


def test_one_bad_line_and_nothing_is_begun(site: Site) -> None:
    done = piped(site, "true\necho 'one\n", "run", "--gpus", "2", "--commands", "-")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == ('hpcext: standard input: line 2: "echo \'one": no closing quotation\n')
    assert not (site.path / "state").exists()


def test_commands_are_submitted(site: Site) -> None:
    saves = {"preset": "plain", "file": "*.pt"}
    site.write_jobs({"name": "first", "command": ["sleep", "1000"], "checkpoint": saves})
    manager = site.start("run", str(site.jobs), "--gpus", "3", "--name", "p")
    wait_for(lambda: site.run("status", "p", "first").out.count("running"), "the pilot")
    words = ("--checkpoint", '{preset = "plain", file = "*.pt"}', "--", "true")
    mixed = site.run("submit", "p", *words)
    assert mixed.code == 2
    assert f"'*.pt' in {site.path}, could be those of job first" in mixed.err
    assert site.run("submit", "p", "--", "sh", "-c", "true").out == "submitted 2 (sh)\n"
    # Without PILOT it is the only one that runs; a name that is taken is made again.
    wait = site.run("submit", "--after", "first", "--", "./train.sh", "-q")
    assert (wait.out, wait.code) == ("submitted 3 (train)\n", 0)
    assert site.run("submit", "p", "--", "./train.sh").out == "submitted 4 (train-2)\n"
    refused = site.run("submit", "p", "--name", "first", "--", "true")
    assert refused.code == 2
    assert "command line: job first: name: job 1 is called first" in refused.err
    numbered = site.run("submit", "p", "--name", "first", "--number", "--", "true")
    assert numbered.out == "submitted 5 (first-2)\n"
    bad = piped(site, "true\n'\n", "submit", "p", "--commands", "-")
    assert (bad.returncode, bad.stdout) == (2, "")
    many = piped(site, "true 1\ntrue 2\n", "submit", "p", "--wait", "--commands", "-")
    assert many.stdout == "submitted 6 (true-1), 7 (true-2)\n2 jobs completed\n"
    assert "waits for first" in site.run("why", "p", "train").out
    site.run("cancel", "p", "first", "--wait")
    manager.communicate(timeout=500)


def test_what_is_missing_is_said(site: Site) -> None:
    for words in (["submit"], ["submit", "--"], ["submit", "p", "more.toml", "--", "true"]):
        done = site.run(*words)
        assert done.code == 2, done
        assert "job file" in done.err
    named = site.run("submit", "p", "more.toml", "--name", "n")
    assert "--name: cannot be given with the job file 'more.toml'" in named.err


def test_a_pilot_of_commands_goes_on(site: Site) -> None:
    """It has no job file, and needs none."""
    code = "until [ -e gate ]; do sleep 0.05; done"
    manager = site.start("run", "--gpus", "1", "--name", "p", "--", "sh", "-c", code)
    wait_for(lambda: site.run("status", "p", "p").out.count("running"), "the command")
    manager.kill()
    manager.communicate()
    refused = site.run("run", "--resume", "p", "--", "true")
    assert refused.err == "hpcext: --resume: -- cannot be given with it\n"
    refused = site.run("run", "--retry", "p", "--", "true")
    assert refused.err == "hpcext: --retry: can be given with --resume only\n"
    (site.path / "gate").touch()
    assert site.run("run", "--resume", "p").code == 0


def test_what_has_failed_runs_again_in_a_pilot_that_is_over(site: Site) -> None:
    site.write_jobs(
        {"name": "a", "command": ["test", "-e", "mended"], "retries": 0},
        {"name": "b", "command": ["true"]},
    )
    assert site.run("run", str(site.jobs), "--gpus=1", "--name=p").code == 1
    (site.path / "mended").touch()
    # Nothing is left to do unless that is asked for.
    assert site.run("run", "--resume", "p").code == 1
    refused = site.run("run", "--resume", "p", "--retry=a", "--retry=b")
    assert refused.err == "hpcext: --retry: b is completed (valid: a job that has failed)\n"
    done = site.run("run", "--resume", "p", "--retry=a")
    assert done.code == 0, done
    assert [job["state"] for job in site.document("status", "p")["jobs"]] == ["completed"] * 2


def test_a_pilot_that_runs_is_told_otherwise_to_run_a_failed_job_again(site: Site) -> None:
    site.write_jobs(
        {"name": "a", "command": ["false"], "retries": 0}, site.counter("b", gated=True)
    )
    manager = site.start("run", str(site.jobs), "--gpus=2", "--name=p")
    wait_for(lambda: site.run("status", "p", "a").out.count("failed"), "the failure")
    refused = site.run("run", "--resume", "p", "--retry=a")
    assert (refused.code, refused.err.count("\n")) == (2, 1)
    assert "--retry: the pilot runs; hpcext resume " in refused.err
    # Nothing was asked of it.
    site.open("b")
    manager.communicate(timeout=500)
    assert site.document("status", "p")["jobs"][0]["attempts"] == 1
