"""What sharing saved in a pilot that ran: two trainings of one GPU, side by side on two."""

from __future__ import annotations

import pytest
from site_of_test import Site, wait_for

from hpcext.manager.views.accounting import HOUR_S

STEPS, STEP_S = 25, 0.1


def test_two_side_by_side_save_a_node(site: Site) -> None:
    site.write_jobs(*(site.counter(name, steps=STEPS, step_s=STEP_S) for name in ("a", "b")))
    words = ("run", str(site.jobs), "--gpus", "2", "--dir", str(site.pilot))
    ran = site.document(*words)["jobs"]
    assert [job["state"] for job in ran] == ["completed", "completed"], ran

    found = site.document("report", str(site.pilot), "--saved")
    (pilot,) = found["pilots"]
    assert pilot["estimated_unknown"] is None
    assert pilot["held_gpu_h"] * HOUR_S >= 2 * STEPS * STEP_S
    for job in pilot["jobs"]:
        # Alone it keeps both GPUs, for the steps at least; and for no longer than it did, had it
        # been alone: what a busy machine did to one is in the costs of both, in the mean.
        assert job["estimated_alone_gpu_h"] * HOUR_S > 2 * STEPS * STEP_S
        assert job["estimated_alone_used_gpu_h"] == pytest.approx(
            job["estimated_alone_gpu_h"] / 2, abs=2e-6
        )
        assert 0.5 < job["estimated_alone_used_gpu_h"] / job["held_gpu_h"] < 2, (job, pilot)
    alone = sum(job["estimated_alone_gpu_h"] for job in pilot["jobs"])
    assert pilot["estimated_alone_gpu_h"] == pytest.approx(alone)
    saved = pilot["estimated_saved_gpu_h"]
    assert saved == pytest.approx(alone - pilot["held_gpu_h"], abs=1e-5)
    assert saved > 0, pilot
    assert 0.5 < pilot["estimated_busy_s"] / pilot["busy_s"] < 2, pilot


def test_of_one_that_runs_it_is_not_known(site: Site) -> None:
    site.write_jobs(site.counter("waits", gated=True))
    manager = site.start("run", str(site.jobs), "--gpus", "1", "--dir", str(site.pilot))
    wait_for(lambda: site.steps("waits"), "the first step")
    (pilot,) = site.document("report", str(site.pilot), "--saved")["pilots"]
    assert pilot["estimated_unknown"] == "it still runs"
    assert pilot["estimated_saved_gpu_h"] is None
    site.open("waits")
    assert manager.wait(timeout=500) == 0
