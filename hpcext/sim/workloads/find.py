"""The workloads that a command line names."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from hpcext.checks import read_options
from hpcext.core.errors import InputError
from hpcext.core.values import Job
from hpcext.sim.pilots.recording import read_recording
from hpcext.sim.replay.physics import Physics
from hpcext.sim.traces.lines import place, read_lines, table_of
from hpcext.sim.workloads import philly, trainers
from hpcext.sim.workloads.applications import (
    REPORT_S,
    WorkloadOptions,
    application_jobs,
    check,
    measurements,
    names,
)
from hpcext.sim.workloads.generated import (
    GENERATORS,
    MeasuredOptions,
    folder_of,
    generated,
    model_file,
    way_of,
)
from hpcext.sim.workloads.jobfiles import read_job_file
from hpcext.sim.workloads.logged import read_logged
from hpcext.sim.workloads.recorded import recorded_jobs
from hpcext.sim.workloads.workload import Setting, Workload, changed
from hpcext.text import clean, did_you_mean, shown

VALID = (
    "a job file (.toml), a recording of a pilot (.json), a log (.swf, .swf.gz), trainers or "
    "measured trainings (.csv), " + ", ".join(GENERATORS)
)

JOB_FILE, RECORDING = ".toml", ".json"
TABLES = (".csv", ".csv.gz")


def find_workload(text: str, setting: Setting) -> Workload:
    """Return the workload of this name, made for a setting.

    Parameters
    ----------
    text : str
        A name or a path, as described by :data:`VALID`.
    setting : Setting

    Raises
    ------
    InputError
        There is no such workload, or a job in it does not state its speed and its work.
    """
    found = _found(text, setting)
    return found._replace(jobs=lambda seed: changed(found.jobs(seed), setting))


def _found(text: str, setting: Setting) -> Workload:
    path = Path(text)
    if setting.users and not text.endswith((".swf", ".swf.gz", *TABLES)):
        do = f"say whose they are: USER={clean(text)}"
        raise InputError(f"jobs of {shown(text)} name no users", where="WORKLOAD", do=do)
    if found := generated(text, setting):
        return found
    if path.suffix == JOB_FILE:
        known = read_job_file(path, elastic=setting.elastic, profiles=setting.profiles)
        return Workload(text, lambda _: known, (path,))
    if path.suffix == RECORDING:
        recording = read_recording(path)
        return Workload(text, lambda _: recorded_jobs(recording), (path,), recording.report_s)
    if text.endswith((".swf", ".swf.gz")):
        return Workload(
            text,
            lambda _: read_logged(
                path, gpus=setting.gpus, per_node=setting.per_node, users=setting.users
            ),
            (path,),
        )
    if text.endswith(TABLES):
        return _table(text, path, "", setting)
    name, _, options = text.rpartition(":")
    if name.endswith(TABLES):
        return _table(text, Path(name), options, setting)
    do = did_you_mean(text.partition(":")[0], GENERATORS)
    raise InputError(f"unknown workload {shown(text)}", where="WORKLOAD", valid=VALID, do=do)


def job_file(text: str) -> Path | None:
    """Return the job file that a workload is, or is made from; None if there is none."""
    if text.partition(":")[0] in GENERATORS:
        return model_file(text)
    return Path(text) if Path(text).suffix == JOB_FILE else None


def _table(text: str, path: Path, given: str, setting: Setting) -> Workload:
    """Return the workload of a CSV file, by its header."""
    columns, where, _ = table_of(path, read_lines(path, trainers.MOST_BYTES))
    if not set(columns).isdisjoint(philly.OWN_COLUMNS):
        if setting.users:
            do = f"say whose they are: USER={clean(text)}"
            raise InputError("measured trainings name no users", where=where, do=do)
        return _measured(text, path, given, setting)
    if not any(column in trainers.OWN_COLUMNS or column.startswith("rate_") for column in columns):
        raise InputError(
            f"its first line is {shown(','.join(columns))}",
            where=where,
            valid=f"{','.join(trainers.COLUMNS)},rate_1,rate_2,... for trainers, or "
            f"name,{','.join(philly.COLUMNS)} for measured trainings",
        )
    if given:
        raise InputError("a file of trainers takes no options", where=f"WORKLOAD {shown(text)}")
    return Workload(
        text,
        lambda _: trainers.read_trainers(path, gpus=setting.gpus, users=setting.users),
        (path,),
    )


def _measured(text: str, path: Path, given: str, setting: Setting) -> Workload:
    options = read_options(MeasuredOptions, given, f"WORKLOAD {path}")
    folder, way = folder_of(options.data, setting.data, path.parent), way_of(options, setting)
    files = (path, *measurements(folder))
    return Workload(text, lambda _: _trainings(path, folder, way), files, REPORT_S, measured=True)


def _trainings(path: Path, folder: Path, way: WorkloadOptions) -> Iterator[tuple[Job, Physics]]:
    asked = philly.read_philly(path, names(folder))
    # Each job has one line after the header, and there are no other lines.
    check(asked, folder, [place(path, number) for number in range(2, len(asked) + 2)])
    yield from application_jobs(asked, folder, way)
