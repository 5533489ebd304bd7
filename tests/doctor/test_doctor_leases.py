"""Each thing that keeps a harvester from its leases is found, said why, and how to mend it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from hpcext.batch.slurm import site as slurm_site
from hpcext.doctor import leases
from hpcext.doctor.leases import SlurmConfiguration

RECORDED = Path(__file__).parents[1] / "batch" / "recorded" / "slurm-22.05"


def site(partition: dict[str, str] | None = None, **more: Any) -> SlurmConfiguration:
    """The one that was recorded, with other values."""
    config = slurm_site.parse_config((RECORDED / "scontrol-config.txt").read_text())
    partitions = slurm_site.parse_partitions((RECORDED / "scontrol-partitions.txt").read_text())
    partitions["harvest"] |= partition or {}
    known = {key: more.pop(key) for key in SlurmConfiguration._fields if key in more}
    facts = {
        "release": (22, 5),
        "config": config | more,
        "partitions": partitions,
        "members": slurm_site.parse_members((RECORDED / "sinfo-members.txt").read_text()),
        "waiting": 3,
        "leases": 64,
        "saving_s": 4.0,
    }
    return SlurmConfiguration(**(facts | known))


def wrong(one: SlurmConfiguration) -> dict[str, str]:
    """What is not ok, by name; each says why and what to do."""
    found = [each for each in leases.check(one, "harvest") if each.verdict != "ok"]
    assert all(each.why and each.do for each in found), found
    return {each.name: f"{each.verdict} {each.says}; {each.do}" for each in found}


NOTICE = {"SlurmctldParameters": "preempt_send_user_signal"}


def test_all_is_well() -> None:
    assert wrong(site(**NOTICE)) == {}


@pytest.mark.parametrize(
    ("one", "name", "says"),
    [
        (site(PreemptType="preempt/none"), "preemption", "wrong 'harvest': nothing preempts"),
        (site(PreemptType="preempt/qos"), "preemption", "note preempt/qos: the QOS decides"),
        (site({"PreemptMode": "OFF"}), "preemption", "wrong 'harvest': PreemptMode=OFF leaves"),
        (site({"PreemptMode": "GANG,SUSPEND"}), "preemption", "PreemptMode=GANG,SUSPEND does not"),
        (site({"PriorityTier": "100"}), "preemption", "no partition with its nodes has"),
        (site({"PriorityTier": "10"}), "preemption", "note jobs of batch have nodes of harvest"),
        (site({"GraceTime": "0"}), "GraceTime", "wrong 'harvest': GraceTime is 0 s"),
        (site(saving_s=11.0), "GraceTime", "GraceTime is 10 s, and saving took 11.0 s; an admin"),
        (site(saving_s=100.0), "GraceTime", "sets GraceTime=240 for harvest"),
        (site(saving_s=None), "GraceTime", "note none of your suspensions has been measured yet"),
        (site(saving_s=6.0), "KillWait", "note KillWait is 5 s, and saving took 6.0 s"),
        (site(), "signal at preemption", "SlurmctldParameters=preempt_send_user_signal"),
        (site(release=(24, 11), **NOTICE), "signal at preemption", "PreemptParameters has no send"),
        (site(JobRequeue="0"), "requeue", "note JobRequeue=0"),
        (site(PrivateData="cloud,nodes"), "PrivateData", "wrong PrivateData hides nodes"),
        (site(PrivateData="jobs"), "PrivateData", "note PrivateData hides jobs"),
        (site(SchedulerType="sched/builtin"), "backfill", "wrong SchedulerType=sched/builtin"),
        (site(SchedulerParameters="bf_interval=600"), "backfill", "bf_interval is 600 s"),
        (site(SchedulerParameters="bf_interval=-1"), "backfill", "bf_interval turns it off"),
        (site(SchedulerParameters="bf_max_job_user=10"), "backfill", "harvest_max_nodes=10"),
        (
            site(SchedulerParameters="BF_MAX_JOB_PART=63"),
            "backfill",
            "bf_max_job_part=63: only that many",
        ),
        (site(SchedulerParameters="bf_max_job_assoc=1"), "backfill", "bf_max_job_assoc=64, or"),
        (site(SchedulerParameters="bf_max_job_test=3"), "backfill", "only that many jobs"),
        (site(waiting=500, SchedulerParameters="bf_continue"), "backfill", "bf_max_job_test=1000"),
        (site(waiting=200), "backfill", "no bf_continue, and 200 jobs wait"),
        (site(SchedulerParameters="max_rpc_cnt=4"), "backfill", "max_rpc_cnt=4"),
        (site(SchedulerParameters="bf_window=60"), "backfill", "a lease lasts 240"),
    ],
)
def test_what_is_wrong(one: SlurmConfiguration, name: str, says: str) -> None:
    assert says in wrong(one)[name]


def test_limits_that_do_no_harm() -> None:
    """None, larger than what is asked for, or a window as long as the partition's own limit."""
    said = "bf_max_job_user=64,bf_max_job_part=0,max_rpc_cnt=150,bf_window=60,defer"
    assert wrong(site({"MaxTime": "1:00:00"}, SchedulerParameters=said, **NOTICE)) == {}
