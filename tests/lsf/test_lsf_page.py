"""docs/lsf.md: each command that it shows is run, here or by the test that is named here."""

# ruff: noqa: F811 - a fixture is imported, and then an argument.

from __future__ import annotations

import ast
import shlex
from pathlib import Path

from lsf_site import Host
from lsf_tools import ROOT, command
from site_of_test import wait_for
from test_lsf_suspendable import MakeCluster, make_cluster  # noqa: F401 - a fixture

PAGE = ROOT / "docs" / "lsf.md"
HERE = ("bsub -K", 'bsub -a "hpcext(gpus', 'bsub -a "hpcext(suspendable,lead')
"""What lines begin with that :func:`test_what_a_user_submits` runs."""

ELSEWHERE = (
    ("hpcext pilot", "test_lsf_pilot", "test_what_the_page_shows_works"),
    (
        'bsub -a "hpcext(suspendable)" -J "train[',
        "test_lsf_arrays",
        "test_a_notice_to_one_element_is_its_own",
    ),
    ("bstop", "test_lsf_arrays", "test_a_stopped_element_leaves_its_host_and_commands_say_which"),
    (
        "hpcext status job",
        "test_lsf_arrays",
        "test_a_stopped_element_leaves_its_host_and_commands_say_which",
    ),
    (
        'bsub -a "hpcext(suspendable)" -k',
        "test_lsf_suspendable",
        "test_a_checkpoint_is_made_and_the_training_goes_on",
    ),
    (
        "bchkpnt",
        "test_lsf_suspendable",
        "test_killed_with_a_checkpoint_it_is_restarted_as_another_job",
    ),
    (
        "brestart",
        "test_lsf_suspendable",
        "test_killed_with_a_checkpoint_it_is_restarted_as_another_job",
    ),
    ("hpcext harvest holes", "test_lsf_harvest", "test_holes"),
    (
        "hpcext harvest start",
        "test_lsf_harvest",
        "test_slots_are_leased_and_why_says_what_is_not_answered",
    ),
    ('bsub -a "hpcext(trainer', "test_lsf_ticket", "test_a_ticket_ends_as_its_trainer_does"),
    (
        "bsub -r -o out 'exec hpcext trainer",
        "test_lsf_ticket",
        "test_in_a_script_without_a_starter",
    ),
    ("hpcext doctor --submit", "test_doctor_lsf", "test_a_job_finds_out"),
    ("hpcext doctor --probe", "test_probe_lsf", "test_a_lease_is_preempted_and_its_work_survives"),
    ("hpcext doctor", "test_doctor_lsf", "test_as_a_user_calls_it"),
    ("hpcext-admin install lsf", "test_install_lsf", "test_what_is_installed_works"),
    (
        "hpcext-admin uninstall lsf",
        "test_install_lsf",
        "test_twice_is_once_and_uninstall_leaves_nothing",
    ),
    ("JOB_STARTER", "test_starter", "test_hostile_command_lines_arrive_byte_for_byte"),
    (
        "JOB_CONTROLS",
        "test_lsf_suspendable",
        "test_stopped_it_leaves_its_host_and_resumed_it_goes_on",
    ),
)
"""What lines begin with, and the test that runs such a one."""


def shown() -> list[str]:
    """The lines of the page's examples, without files."""
    found, inside = [], False
    for line in PAGE.read_text().splitlines():
        if line.startswith("```"):
            inside = line == "```text"
        elif inside:
            found.append(line)
    begin, end = found.index("Begin Queue"), found.index("End Queue")
    return found[:begin] + found[end + 1 :]


def test_each_command_has_a_test() -> None:
    tests = {
        (path.stem, node.name)
        for path in Path(__file__).parent.glob("test_*.py")
        for node in ast.parse(path.read_text()).body
        if isinstance(node, ast.FunctionDef)
    }
    assert {(file, name) for _, file, name in ELSEWHERE} <= tests
    known = (*HERE, *(begin for begin, _, _ in ELSEWHERE))
    for line in shown():
        assert line.startswith(known), f"no test runs {line}"


def test_what_a_user_submits(make_cluster: MakeCluster) -> None:
    cluster = make_cluster(hosts=(Host("h1", 8, 4),))
    script = cluster.site.directory / "train.sh"
    script.write_text('#!/bin/sh\necho "trained with ${HPCEXT_GPUS-} ${HPCEXT_SCALING-}"\n')
    script.chmod(0o755)
    lines = [line.replace("QUEUE", "normal") for line in shown() if line.startswith(HERE)]
    assert len(lines) == 4
    for line in lines:
        # LSF knows a script by its path in the job's directory.
        words = shlex.split(line.replace(" train.sh", " ./train.sh"))
        ended = command(cluster.site, *words, **cluster.environ)
        assert ended.returncode == 0, (line, ended)
    wait_for(lambda: all(job.over() for job in cluster.site.jobs()), cluster.output())
    assert {job.state for job in cluster.site.jobs()} == {"DONE"}, cluster.output()
    said = cluster.output()
    for text in ("trained with 4 \n", "trained with 1:8 resnet\n", "trained with  \n", "a  b\nc\n"):
        assert text in said
