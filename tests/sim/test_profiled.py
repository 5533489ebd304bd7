"""Jobs whose truth is a measurement, and the files that say it."""

from __future__ import annotations

from pathlib import Path

import pytest
from made_measurements import EPOCHS, STEPS, step_s, write

from hpcext.core.errors import InputError
from hpcext.sim.replay.measured import Application, read_application
from hpcext.sim.replay.physics import Where
from hpcext.sim.replay.profiled import Adaptive, Fixed, split
from hpcext.sim.workloads.philly import HOURLY, SHARES, TUNED, make_philly, read_philly


@pytest.fixture(scope="module")
def application(tmp_path_factory: pytest.TempPathFactory) -> Application:
    return read_application(write(tmp_path_factory.mktemp("made") / "made"))


@pytest.mark.parametrize(
    "gpus", [(1,), (4,), (4, 2), (2, 4), (1, 1, 1, 1), (4,) * 6, (3,) * 5, (2,) * 16, (1,) * 7]
)
def test_what_the_model_is_linear_in_is_what_was_measured(
    application: Application, gpus: tuple[int, ...]
) -> None:
    for batch in (4, 10, 64):
        seen = application.times(gpus, batch)
        assert seen == pytest.approx(step_s(sum(gpus), len(gpus), batch))


def test_limits_are_those_of_the_measurements(application: Application) -> None:
    assert (application.initial_batch, application.most_batch) == (16, 256)
    assert (application.least_per_gpu, application.most_per_gpu) == (4, 64)
    assert application.work == 16 * STEPS * EPOCHS


def test_progress_is_that_of_the_noise_scale(application: Application) -> None:
    # phi = 64 samples, then 640: eq. 6 times the batch over the initial one.
    for epoch, phi in ((0, 64), (EPOCHS - 1, 640)):
        assert application.noise_scale(64, epoch) == pytest.approx(phi)
        assert application.gain(64, epoch) == pytest.approx(4 * (phi + 16) / (phi + 64))
    early, late = 4 * 80 / 128, 4 * 656 / 704
    half = STEPS * EPOCHS / 2
    assert application.steps(64) == pytest.approx(half / early + half / late)


def test_an_epoch_ends_where_its_progress_says(application: Application) -> None:
    assert [application.epoch(16 * STEPS * each) for each in (0.0, 0.5, 1.0, 2.7)] == [0, 0, 1, 2]
    # What a rounding error lacks is done; after the last one there is none.
    assert application.epoch(16 * STEPS * (1 - 1e-12)) == 1
    assert application.epoch(application.work) == EPOCHS - 1


@pytest.mark.parametrize(
    ("total", "gpus", "found"),
    [(256, 4, (64, 1)), (256, 2, (64, 2)), (256, 3, (42, 2)), (16, 1, (16, 1)), (64, 1, (32, 2))],
)
def test_a_total_batch_is_split(
    application: Application, total: int, gpus: int, found: tuple[int, int]
) -> None:
    assert split(application, total, gpus) == found


def test_a_job_of_one_batch_is_as_fast_all_the_time(application: Application) -> None:
    job = Fixed(application, 64)
    here = job.stretch(Where((4,)), 0.0)
    assert here.rate == pytest.approx(64 / step_s(4, 1, 16)[0])
    assert here == job.stretch(Where((4,)), job.work / 2)
    assert job.work == pytest.approx(64 * application.steps(64))


def train(job: Adaptive, where: Where, done: float, epochs: int = 1) -> tuple[float, float]:
    """Go on to the end of so many epochs; the work then, and the seconds that it took."""
    seconds = 0.0
    for _ in range(epochs):
        stretch = job.stretch(where, done)
        seconds += (stretch.until - done) / stretch.rate
        done = stretch.until
        job.said(where, done)
    return done, seconds


def test_an_adaptive_job_begins_with_its_initial_batch_and_learns_a_better_one(
    application: Application,
) -> None:
    job, where = Adaptive(application), Where((4,))
    first = job.stretch(where, 0.0)
    # 16 samples on 4 GPUs.
    assert first.rate == pytest.approx(16 / step_s(4, 1, 4)[0])
    assert job.said(where, 0.0).goodput is None
    done, _ = train(job, where, 0.0)
    report = job.said(where, done).goodput
    assert report is not None
    assert report.noise_scale == pytest.approx(64)
    assert (report.initial_batch, report.most_batch) == (16, 256)
    later = job.stretch(where, done)
    assert later.rate > 1.3 * first.rate
    assert later.step_work > first.step_work


def test_more_noise_wants_a_larger_batch_and_in_the_end_it_is_the_best(
    application: Application,
) -> None:
    job, where = Adaptive(application), Where((4,))
    done, _ = train(job, where, 0.0, EPOCHS - 1)
    # What it knows of the noise is what it last measured.
    done, _ = train(job, where, done - 1.0)
    last = job.stretch(where, application.end(EPOCHS - 2) + 1.0)
    best = job.best_rate((4,), application.end(EPOCHS - 2) + 1.0)
    assert best * 0.97 <= last.rate <= best * 1.03


def test_a_job_that_always_has_one_batch_says_so(application: Application) -> None:
    job, where = Adaptive(application, 64), Where((1,))
    done, _ = train(job, where, 0.0)
    report = job.said(where, done).goodput
    assert report is not None
    assert report.initial_batch == report.most_batch == 64
    assert job.stretch(where, done).rate == pytest.approx(
        16 * application.gain(64, 1) / (step_s(1, 1, 32)[0] * 2)
    )


@pytest.mark.parametrize(
    ("file", "line", "text", "said"),
    [
        ("placements.csv", 1, "placement,step_time", "first line"),
        ("placements.csv", 3, "10,4,0.5,0.1", "placement '10'"),
        ("placements.csv", 3, "1,4,0,0.1", "step_time '0'"),
        ("placements.csv", 3, "1,4,x,0.1", "step_time 'x'"),
        ("placements.csv", 3, "1,4,0.5", "3 fields"),
        ("scalability.csv", 2, "6,5,4,0.5,0.1", "5 GPUs on 6 nodes"),
        ("scalability.csv", 2, "6.5,7,4,0.5,0.1", "num_nodes '6.5'"),
        ("validation-16.csv", 4, "10,1,1,1,1", "progress 10"),
        ("validation-16.csv", 4, "1e3,1,1,-1,1", "grad_sqr '-1'"),
        ("validation-16.csv", 4, "1e3,1,1,1,inf", "grad_var 'inf'"),
    ],
)
def test_an_invalid_measurement_is_named_with_its_line(
    tmp_path: Path, file: str, line: int, text: str, said: str
) -> None:
    path = write(tmp_path / "made") / file
    lines = path.read_text().splitlines()
    lines[line - 1] = text
    path.write_text("\n".join(lines))
    with pytest.raises(InputError) as error:
        read_application(tmp_path / "made")
    assert error.value.where == f"{path}: line {line}"
    assert said in error.value.what


def test_what_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"placements\.csv"):
        read_application(tmp_path / "none")
    folder = write(tmp_path / "made")
    for path in folder.glob("validation-*"):
        path.unlink()
    with pytest.raises(InputError, match="no validation-BATCH"):
        read_application(folder)


HEADER = "name,time,application,num_replicas,batch_size"


def test_a_workload_is_read_with_and_without_names(tmp_path: Path) -> None:
    path = tmp_path / "workload.csv"
    path.write_text(f"{HEADER}\na,3,bert,6,384\nb,3.5,ncf,1,32768\n")
    assert read_philly(path)[1] == ("b", 3.5, "ncf", 1, 32768)
    path.write_text("time,application,num_replicas,batch_size\n3,bert,6,384\n4,bert,6,384\n")
    assert [job.name for job in read_philly(path)] == ["bert-0", "bert-1"]


@pytest.mark.parametrize(
    ("text", "line", "said"),
    [
        ("time,gpus\n", 1, "header"),
        (f"{HEADER}\n", 2, "no job"),
        (f"{HEADER}\na,3,bert,6\n", 2, "4 fields"),
        (f"{HEADER}\na,3,bert,6,384", 2, "cut short"),
        (f"{HEADER}\na,-3,bert,6,384\n", 2, "time '-3'"),
        (f"{HEADER}\na,nan,bert,6,384\n", 2, "time 'nan'"),
        (f"{HEADER}\na,3,brt,6,384\n", 2, "unknown application 'brt'"),
        (f"{HEADER}\na,3,bert,0,384\n", 2, "num_replicas '0'"),
        (f"{HEADER}\na,3,bert,6,99999999999999\n", 2, "batch_size"),
        (f"{HEADER}\na,3,bert,6,384\na,4,bert,6,384\n", 3, "twice"),
        (f"{HEADER}\na,3,bert,6,384\nb,2,bert,6,384\n", 3, "time 2"),
    ],
)
def test_an_invalid_workload_is_named_with_its_line(
    tmp_path: Path, text: str, line: int, said: str
) -> None:
    path = tmp_path / "workload.csv"
    path.write_text(text)
    with pytest.raises(InputError) as error:
        read_philly(path)
    assert error.value.where == f"{path}: line {line}"
    assert said in error.value.what


def test_made_workloads_have_the_mixture_and_the_hours_of_the_paper() -> None:
    jobs = make_philly(1, load=100.0)
    assert len(jobs) == 16000
    for name, share in SHARES.items():
        found = sum(job.application == name for job in jobs) / len(jobs)
        assert found == pytest.approx(share / sum(SHARES.values()), abs=0.015)
    hours = [sum(3600 * h <= job.submitted_s < 3600 * (h + 1) for job in jobs) for h in range(8)]
    assert sum(hours) == len(jobs)
    for seen, stated in zip(hours, HOURLY, strict=True):
        assert seen / len(jobs) == pytest.approx(stated / sum(HOURLY), abs=0.015)
    assert all((job.gpus, job.batch) in TUNED[job.application] for job in jobs)
    assert [job.submitted_s for job in jobs] == sorted(job.submitted_s for job in jobs)
    assert make_philly(1) == make_philly(1) != make_philly(2)
