"""Every parser of what comes from outside, with good inputs of each.

Which ones there must be, ``test_every_parser.py`` finds in the source.
"""

from __future__ import annotations

import gzip
import io
import json
import os
import types
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple, cast
from unittest import mock

import numpy as np

from hpcext import config, documents, jobfile, protocol, textfiles
from hpcext.addresses import read_address
from hpcext.admin import manifest
from hpcext.allocation import Allocation
from hpcext.backends.batch_job import SubmittedPilot
from hpcext.backends.lsf import requeue as lsf_requeue
from hpcext.backends.lsf import suspend as lsf_suspend
from hpcext.batch import lsf, slurm
from hpcext.batch.lsf import (
    engine as lsf_engine,
)
from hpcext.batch.lsf import (
    fair_share as lsf_fair_share,
)
from hpcext.batch.lsf import (
    idle as lsf_idle,
)
from hpcext.batch.lsf import (
    jobs as lsf_jobs,
)
from hpcext.batch.lsf import (
    leasing as lsf_leasing,
)
from hpcext.batch.lsf import (
    probe as lsf_probe,
)
from hpcext.batch.lsf import (
    queues as lsf_queues,
)
from hpcext.batch.lsf import (
    reserved as lsf_reserved,
)
from hpcext.batch.lsf.inside import LsfJob
from hpcext.batch.slurm import fair_share as slurm_fair_share
from hpcext.batch.slurm import idle as slurm_idle
from hpcext.batch.slurm import reads as slurm_reads
from hpcext.batch.slurm import requeued
from hpcext.batch.slurm import rest as slurm_rest
from hpcext.batch.slurm import site as slurm_site
from hpcext.broker import classes
from hpcext.core.errors import InputError
from hpcext.core.values import Action, Kind
from hpcext.dashboard import server as dashboard
from hpcext.doctor import rehearsed
from hpcext.executors import gpus
from hpcext.executors.attempt.directory import AttemptFiles
from hpcext.harvest import account as lease_account
from hpcext.harvest import lease
from hpcext.harvest.ways import drop, munge
from hpcext.launch import container, sweep
from hpcext.launch.leader import Leader
from hpcext.launch.supervisor_files import SupervisorFiles
from hpcext.manager import journal, kept_worlds, locks, spool, suspendable, tickets
from hpcext.manager import pilot as pilots
from hpcext.manager.submissions import Submissions
from hpcext.papers.lb_bsp import stragglers
from hpcext.policies import find_policy
from hpcext.policies.bftrainer.limits import read_limits
from hpcext.process import Process
from hpcext.profiles import Profiles
from hpcext.rendezvous import Rendezvous
from hpcext.sim.pilots.recording import read_recording
from hpcext.sim.replay.sources import read_nodes
from hpcext.sim.traces import idle, swf
from hpcext.sim.traces import lsf as lsf_trace
from hpcext.sim.traces import slurm as slurm_trace
from hpcext.sim.traces.lines import parsed
from hpcext.sim.workloads.philly import read_philly
from hpcext.sim.workloads.trainers import read_trainers
from hpcext.training.checkpoint import CheckpointError
from hpcext.training.checkpoint import manifest as manifests
from hpcext.training.checkpoint.state import TrainingState

TESTS = Path(__file__).parents[1]
ROOT = TESTS.parent
BATCH = TESTS / "batch" / "recorded"
TRACES = TESTS / "sim" / "recorded"

ENGINE = lsf_engine.LsfEngine(
    lsf_engine.LsfRelease("LSF", "10.1.0", "c"), frozenset({"bsub"}), {"bsub": frozenset({"-J"})}
)
START = Action(Kind.START, "12", 7, 3, {"n": 2})


class Parser(NamedTuple):
    """Something that reads what others wrote.

    Attributes
    ----------
    takes : callable
        Given a path to the input. What it gives is not looked at.
    seeds : tuple of bytes
        Good inputs, which are then damaged.
    """

    takes: Callable[[Path], object]
    seeds: tuple[bytes, ...]


PROFILE = (
    b'{"schema": "hpcext.profile/1", "measurements": [{"at": 1.8e9, "gpus": 2, "nodes": 1, '
    b'"steps_per_s": 3.5, "samples_per_s": 7.0, "seconds": 20.0, "source": "job", "gpu": "slot"}]}'
)


def compared_with_itself(attempt: Path) -> object:
    told = rehearsed.read_attempt(attempt)
    return told and [*rehearsed.compared("one", told, told)]


def recorded(pattern: str) -> tuple[bytes, ...]:
    found = tuple(path.read_bytes() for path in sorted(BATCH.glob(pattern)))
    assert found, pattern
    return found


def answers_of_slurmrestd() -> tuple[bytes, ...]:
    """A job, a node and an error, of each release."""
    lines = b"".join(recorded("slurm-*/slurmrestd.json")).splitlines()
    rows = (json.loads(line) for line in lines)
    return tuple(body.encode() for path, _, body in rows if path.endswith(("b/2", "n1", "b/99")))


def text(parse: Callable[[str], object]) -> Callable[[Path], object]:
    """One that is given what a command printed, as the runner of commands decodes it."""
    return lambda path: parse(path.read_text(errors="replace"))


def lines(parse: Callable[[Iterator[str]], Iterable[object]]) -> Callable[[Path], object]:
    """One that is given a log, line by line."""
    return lambda path: list(parsed(path, parse, 1 << 20))


def rows(read: Callable[[Path], Iterable[object]]) -> Callable[[Path], object]:
    return lambda path: list(read(path))


def document(path: Path) -> object:
    try:
        return documents.read_json(path, "hpcext.report/1")
    except ValueError as error:
        raise InputError(str(error)) from None


def placed(name: str, take: Callable[[Path], object]) -> Callable[[Path], object]:
    """One that is given a directory, and finds the file in it by its name."""

    def takes(path: Path) -> object:
        file = path.parent / "place" / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(path.read_bytes())
        return take(path.parent / "place")

    return takes


def environment(take: Callable[[], object]) -> Callable[[Path], object]:
    """One that reads variables: ``NAME=VALUE`` on each line. Values that make no sense are refused
    by ValueError, as protocol.py documents, which knows none of our errors."""

    def takes(path: Path) -> object:
        said = path.read_text(errors="replace").replace("\0", "").splitlines()
        pairs = (line.partition("=")[::2] for line in said)
        variables = {name: value for name, value in pairs if name}
        with mock.patch.dict(os.environ, variables, clear=True):
            return refused(take)

    return takes


def refused(take: Callable[[], object]) -> object:
    try:
        return take()
    except ValueError as error:
        raise InputError(str(error)) from None


def attempt(name: str, take: Callable[[AttemptFiles], object]) -> Callable[[Path], object]:
    """A file that an attempt leaves for its manager."""

    def takes(path: Path) -> object:
        files = AttemptFiles(path.parent / "jobs", START)
        files.directory.mkdir(parents=True, exist_ok=True)
        (files.directory / name).write_bytes(path.read_bytes())
        return take(files)

    return takes


def of_job() -> object:
    job = LsfJob.from_environ()
    return job and job.indices


def in_mind(directory: Path) -> object:
    """What a harvester takes over of the leases of the one before."""
    return lease.read_all(directory / "leases"), lease.recorded(directory / "leases")


def registered(directory: Path) -> object:
    """What a supervisor takes for the session of its training."""
    return SupervisorFiles(directory, {"attempt": 3, "op": 7}, 0).session()


def image_before(directory: Path) -> object:
    """What a supervisor takes for the image of the attempt before."""
    place = {"image": str(directory)}
    return container.Container(place, directory / "attempt-0004", "/", attempt=4)._before()


def checkpoint(path: Path) -> object:
    try:
        return TrainingState({}).read(path)
    except CheckpointError as error:
        raise InputError(str(error)) from None


def stated(path: Path) -> object:
    try:
        return manifests.read_manifest(path)
    except CheckpointError as error:
        raise InputError(str(error)) from None


def whole_manifest() -> bytes:
    facts = {"schema": manifests.SCHEMA, "step": 3, "attempt": 1, "files": []}
    return json.dumps({**facts, "sha256": manifests._digest(facts)}).encode()


def saved() -> bytes:
    file = io.BytesIO()
    TrainingState({}).write(cast(Any, file), {"a": np.arange(3), "b": [1, "x", None, (2.5, b"y")]})
    return file.getvalue()


PARSERS = {
    "squeue's steps": Parser(text(slurm.parse_steps), recorded("slurm-*/squeue-steps.txt")),
    "squeue's jobs": Parser(text(slurm.parse_seen), recorded("slurm-*/s*-jobs.txt")),
    "squeue's end": Parser(text(slurm.parse_end), recorded("slurm-*/squeue-end*.txt")),
    "squeue's nodes": Parser(
        text(lambda said: slurm.parse_nodelist(said, 1)), recorded("slurm-*/squeue-jobs.txt")
    ),
    "scontrol's version": Parser(
        text(slurm.parse_version), recorded("slurm-*/scontrol-version.txt")
    ),
    "scontrol's nodes": Parser(text(slurm.parse_hosts), recorded("slurm-*/scontrol-nodes.txt")),
    "scontrol's configuration": Parser(
        text(slurm_site.parse_config), recorded("slurm-*/scontrol-config.txt")
    ),
    "scontrol's partitions": Parser(
        text(slurm_site.parse_partitions), recorded("slurm-*/scontrol-partitions.txt")
    ),
    "nodes of partitions": Parser(
        text(slurm_site.parse_members), recorded("slurm-*/sinfo-members.txt")
    ),
    "a controller's clock": Parser(text(slurm_site.parse_clock), recorded("slurm-*/sdiag.txt")),
    "sbatch's answer": Parser(text(slurm.parse_job_id), recorded("slurm-*/sbatch-*.txt")),
    "cores of nodes": Parser(text(slurm.parse_cpus), (b"2(x3),1", b"16")),
    "Slurm's limits": Parser(text(slurm.parse_time_limit), (b"1-02:03:04", b"UNLIMITED", b"5:00")),
    "sinfo's idle nodes": Parser(text(slurm_idle.parse_idle), recorded("slurm-*/sinfo-idle.txt")),
    "squeue's plans": Parser(
        text(slurm_idle.parse_planned), recorded("slurm-*/squeue-planned.txt")
    ),
    "how long before the end": Parser(text(suspendable.lead_of), (b"60", b"10", b"86400")),
    "squeue's leases of others": Parser(
        text(slurm_idle.parse_others), recorded("slurm-*/squeue-others.txt")
    ),
    "squeue's jobs that wait for nodes": Parser(
        text(slurm_idle.parse_due), (b"Resources|wide\nBeginTime|later\n",)
    ),
    "squeue's requeued jobs": Parser(
        text(lambda said: requeued.parse_waiting(said, 120, 0.0)),
        (b"7_2|BeginTime|1|1000|1121|\n11|BeginTime|2|1000|1121|\n",),
    ),
    "how long Slurm's credentials are good": Parser(
        text(lambda said: slurm_site.requeue_delay_s({"AuthInfo": said})), (b"cred_expire=600",)
    ),
    "sshare's associations": Parser(
        text(slurm_fair_share.parse_fair_share),
        (b"||root\n|| physics\nann|0.250000|  physics\nbob|1.0|  physics\n",),
    ),
    "squeue's leases": Parser(text(slurm_idle.parse_held), recorded("slurm-*/squeue-held.txt")),
    "an address of a broker": Parser(
        text(read_address),
        (b"munge://987@[2001:db8::1]:7420/run/munge/socket", b"drop:///shared", b"/run/socket"),
    ),
    "what unmunge printed": Parser(
        lambda path: munge.parse_decoded(0, path.read_bytes()),
        (b"STATUS:          0\nUID:             1001\nLENGTH:          3\n\nx\n\n",),
    ),
    "a hostlist of a broker": Parser(text(classes.expand), (b"gpu[001-016,20],login1", b"a[1]-ib")),
    "a name of a question": Parser(text(drop.parse_name), (b"1001." + b"a" * 32,)),
    "bhosts": Parser(text(lsf_idle.parse_hosts), recorded("*/bhosts-*")),
    "bhosts' GPUs": Parser(text(lsf_idle.parse_gpus), recorded("lsf/bhosts-*")),
    "bslots": Parser(text(lsf_idle.parse_windows), recorded("lsf/bslots-*.txt")),
    "bqueues": Parser(text(lsf_queues.parse_queue), recorded("*/bqueues-*.txt")),
    "all of bqueues": Parser(text(lsf_queues.parse_queues), recorded("*/bqueues-*.txt")),
    "LSF's shares": Parser(
        text(lsf_fair_share.parse_shares),
        recorded("lsf/bhpart-*.txt") + recorded("lsf/bqueues-shares.txt"),
    ),
    "brsvs": Parser(
        text(lambda said: lsf_reserved.parse_reserved(said, 1.8e9)), recorded("lsf/brsvs*.txt")
    ),
    "lsid": Parser(text(lsf_engine.parse_release), recorded("*/lsid*.txt")),
    "bjobs as JSON": Parser(
        text(
            lambda said: (
                lsf_leasing.held_of(jobs := lsf_jobs.parse_jobs(said), 1.8e9),
                lsf_leasing.others_of(jobs, 1e9),
            )
        ),
        (
            b'{"COMMAND":"bjobs","JOBS":1,"RECORDS":[{"JOBID":"4","STAT":"RUN","EXEC_HOST":"4*a",'
            b'"JOB_NAME":"x","TIME_LEFT":"1:0 L","JOB_DESCRIPTION":"","FINISH_TIME":""}]}',
            *recorded("volclava-*/bjobs-o-*.txt"),
        ),
    ),
    "bjobs -w": Parser(text(lsf_jobs.parse_wide), recorded("volclava-*/bjobs-a-w.txt")),
    "bjobs -l": Parser(
        text(lambda said: lsf_leasing.held_of(lsf_jobs.parse_long(said, 1.8e9), 1.8e9)),
        tuple(each[:6000] for each in recorded("volclava-*/bjobs-*l*.txt")),
    ),
    "bacct": Parser(
        text(lsf.parse_past),
        (b"Job <8>, Job Name <a>, User <user>, Project <default>, Status <DONE>, Queue <q>\n",),
    ),
    "what bjobs refuses": Parser(
        text(lambda said: lsf_engine.parse_refusal(said, ["stat", "run_time"])),
        (b"<RUN_TIME> in the format string is not a valid field name.\n", b"invalid field stat\n"),
    ),
    "an engine of LSF": Parser(
        placed("kept.json", lambda place: lsf_probe.read_kept(place / "kept.json", "who")),
        (json.dumps(lsf_engine.document(ENGINE, "who")).encode(),),
    ),
    "a job that tells the doctor": Parser(
        text(lambda said: lsf_probe.parse_trial(said, ENGINE)),
        (b"LSB_JOBID=4\nLSB_HOSTS=a a b\nLSB_MCPU_HOSTS=a 2 b 1\nHPCEXT_GPUS=1\n",),
    ),
    "a job file": Parser(
        lambda path: jobfile.parse_jobs(
            textfiles.read_text(path), where="jobs.toml", base=path.parent
        ),
        tuple(path.read_bytes() for path in sorted(ROOT.glob("examples/**/*.toml"))),
    ),
    "settings": Parser(
        config.read_file, tuple(path.read_bytes() for path in ROOT.glob("site_configs/*.toml"))
    ),
    "limits of a site": Parser(
        lambda path: read_limits(str(path)),
        (b'[[limit]]\njobs = ["b"]\nleast = 9\n[[limit]]\njobs = ["a-?"]\nof = "jobs"\nmost = 3',),
    ),
    "a document": Parser(
        document,
        (b'{"schema": "hpcext.report/1", "attempt": 3, "step": 7, "metrics": {"loss": 0.5}}',),
    ),
    "a journal": Parser(
        journal.read,
        tuple(path.read_bytes() for path in (TESTS / "run" / "recorded").rglob("*.jsonl")),
    ),
    "a world that was kept": Parser(
        placed(
            f"{kept_worlds.KEPT_DIR}/000000000001.json.gz",
            lambda place: journal.read_kept(place / "journal.jsonl", 1e9),
        ),
        (gzip.compress(b'{"schema": "hpcext.journal/1", "began_at": 1.0, "policy": "marble"}'),),
    ),
    "a profile": Parser(placed("x.json", lambda place: Profiles(place).load("x")), (PROFILE,)),
    "a rehearsal": Parser(
        placed(protocol.REHEARSAL_FILE, compared_with_itself),
        (
            b'{"schema": "hpcext.rehearsal/1", "step": 5, "state": {"weights": "ab"}, "went_on_s": '
            b'0.5, "steps": [{"step": 6, "metrics": {"loss": 0.5}, "state": {"weights": "cd"}}]}',
        ),
    ),
    "the account of leases": Parser(
        placed(lease_account.FILE, lease_account.load),
        (b'{"schema": "hpcext.harvest/1", "seen_s": 5.0, "held_node_s": 4.0, "leases": 1}',),
    ),
    "what the image of a container was": Parser(
        placed(container.IMAGE_FILE, image_before),
        (
            b'{"schema": "hpcext.image/1", "attempt": 3, "image": "/a.sif", "size": 7, '
            b'"mtime_ns": 1}',
        ),
    ),
    "the addresses of proxies": Parser(
        text(dashboard.read_peers), (b"10.0.0.7,10.0.1.0/24,fe80::1", b"::1")
    ),
    "the manifest of an installation": Parser(
        placed(manifest.NAME, lambda place: manifest.load(place, trusted=False)),
        (b'{"schema": "hpcext.installed/1", "hpcext": "0.1.0", "files": {"/a": ["00"]}}',),
    ),
    "a leader": Parser(text(lambda said: Leader.of(said, 60.0)), (str(Process.me()).encode(),)),
    "nodes": Parser(text(read_nodes), (b"2xa100:4,4xv100:8", b"8x4")),
    "idle nodes": Parser(rows(idle.read_idle), (b"time_s,joined,left\n0,0-3 7,\n10,4,1-2\n",)),
    "recorded batch times": Parser(
        rows(stragglers.read),
        (b"time,worker,batch_time_norm\n1,0,5\n1,1,6\n11,0,5.5\n11,1,7\n",),
    ),
    "SWF": Parser(
        rows(swf.read_swf),
        (
            b"; MaxNodes: 8\n1 0 5 10 4 -1 -1 4 60 -1 1 1 1 1 1 1 -1 -1\n2 9 0 7 2"
            + b" -1" * 13
            + b"\n",
        ),
    ),
    "sacct's jobs": Parser(
        lines(slurm_trace.parse_sacct),
        tuple(path.read_bytes() for path in sorted(TRACES.glob("slurm-*/sacct*.txt"))),
    ),
    "looks at sinfo": Parser(
        lines(lambda given: slurm_trace.parse_sinfo(given, {})),
        tuple(path.read_bytes() for path in sorted(TRACES.glob("slurm-*/sinfo-looks.txt"))),
    ),
    "bhist and bacct": Parser(
        lines(lsf_trace.parse_lsf),
        tuple(path.read_bytes() for path in sorted(TRACES.glob("lsf-*/*.txt"))),
    ),
    "Pollux's workloads": Parser(
        rows(read_philly),
        (b"name,time,application,num_replicas,batch_size\ncifar10-0,107,cifar10,6,2048\n",),
    ),
    "BFTrainer's trainers": Parser(
        rows(read_trainers),
        (
            b"name,submit_s,n_min,n_max,rescale_up_s,rescale_down_s,samples,rate_1,rate_2,rate_4\n"
            b"J0,0,1,64,18.0,12.0,130000000,2831.0,5259.0,9988.0\n",
        ),
    ),
    "bsub's answer": Parser(text(lsf.parse_job_id), (b"Job <8> is submitted to queue <normal>.",)),
    "LSF's limits": Parser(text(lsf.parse_time_limit), (b"90", b"2:00")),
    "help of LSF's commands": Parser(text(lsf_engine.parse_options), (b"bhosts [-w | -l] [-gpu]",)),
    "bparams": Parser(text(lsf_engine.parse_parameters), (b"MAX_JOB_REQUEUE = 3\nMBD = 2 (s)\n",)),
    "names of nodes": Parser(
        text(slurm.parse_hostnames), recorded("slurm-*/scontrol-hostnames.txt")
    ),
    "reservations": Parser(
        text(slurm_idle.parse_reserved),
        (b"ReservationName=a StartTime=1795441823 Nodes=n[1-2]\nNo reservations in the system\n",),
    ),
    "a number of slurm.conf": Parser(text(slurm_site.whole), (b"30 sec", b"-1")),
    "slurmrestd's answers": Parser(
        lambda path: [
            (job.end(), job.why) for job in slurm_rest.parse_answer(path.read_bytes()).jobs
        ],
        answers_of_slurmrestd(),
    ),
    "a release of pyslurm": Parser(
        text(lambda said: slurm_reads.release_of(types.SimpleNamespace(__version__=said))),
        (b"24.5.0",),
    ),
    "a policy and its options": Parser(
        text(find_policy), (b"bftrainer:objective=throughput,forward_s=60", b"fixed:gpus=2")
    ),
    "CUDA_VISIBLE_DEVICES": Parser(
        text(lambda said: gpus._chosen(said, ["GPU-1", "GPU-22"])), (b"0,1", b"GPU-2")
    ),
    "variables of an attempt": Parser(
        environment(protocol.Attempt.from_environ),
        (
            b"HPCEXT_PROTOCOL=1\nHPCEXT_JOB_ID=4\nHPCEXT_ATTEMPT=2\nHPCEXT_OP=3\n"
            b"HPCEXT_CHECKPOINT_DIR=/c\nHPCEXT_REPORT_DIR=/r\nHPCEXT_NUM_GPUS=2\n"
            b"HPCEXT_NOTIFY=pid:7:8\n",
        ),
    ),
    "variables of a rank": Parser(
        environment(lambda: (Rendezvous.from_environ(), protocol.node_index())),
        (
            b"HPCEXT_RENDEZVOUS=file:/r\nHPCEXT_LAUNCHER=pid:7:8\nHPCEXT_JOINS=1\n"
            b"HPCEXT_NODE_INDEX=2\n",
        ),
    ),
    "variables of a Slurm job": Parser(
        environment(Allocation.from_environ),
        (
            b"SLURM_JOB_ID=4\nSLURM_STEP_ID=0\nSLURM_STEP_GPUS=0,1\nSLURM_NODEID=1\n"
            b"SLURM_RESTART_COUNT=2\nSLURM_MEM_PER_CPU=100\nSLURM_CPUS_ON_NODE=4\n",
        ),
    ),
    "variables of an LSF job": Parser(
        environment(of_job),
        (
            b"LSB_JOBID=4\nLSB_JOBINDEX=2\nLSB_MCPU_HOSTS=a 2 b 1\nCUDA_VISIBLE_DEVICES=0,1\n",
            b"LSB_JOBID=4\nLSB_HOSTS=a a b\n",
        ),
    ),
    "a report": Parser(
        attempt(protocol.REPORT_FILE, AttemptFiles.news),
        (
            b'{"schema": "hpcext.report/1", "attempt": 3, "op": 7, "pid": 1, "start": 1, '
            b'"world_size": 2, "step": 20, "resumed_step": 10, "saved_step": 15, "done": 20.0, '
            b'"rate": 4.5, "metrics": {"loss": 0.25}, "registered_at": 1003.0, "at": 1004.0, '
            b'"restored_at": 1003.5, "first_step_at": 1003.9, "goodput": {"noise_scale": 900.5, '
            b'"initial_batch": 128, "throughput": [0.02, 1e-3, 0.0, 0, 0.1, 0.003, 2.5]}}',
        ),
    ),
    "the end of an attempt": Parser(
        attempt(protocol.EXIT_FILE, lambda files: files.ends.ended()),
        (
            b'{"schema": "hpcext.exit/1", "attempt": 3, "op": 7, "exit_code": 0, '
            b'"suspended": false, "at": 1004.0}',
        ),
    ),
    "a change of size": Parser(
        attempt(protocol.RESCALED_FILE, AttemptFiles.news),
        (
            b'{"schema": "hpcext.rescaled/1", "attempt": 3, "op": 7, "resize": 2, "ok": true, '
            b'"gpus": ["n:0"], "stall_s": 0.5, "why": ""}',
        ),
    ),
    "a request": Parser(
        placed("requests/a.json", lambda place: list(spool.pending(place))),
        (b'{"schema": "hpcext.request/1", "verb": "suspend", "job": "one"}',),
    ),
    "a reply": Parser(
        placed("replies/a.json", lambda place: refused(lambda: spool.answer(place, "a"))),
        (b'{"schema": "hpcext.reply/1", "ok": true}',),
    ),
    "who manages": Parser(
        placed(spool.MANAGER_FILE, spool.manager_of),
        (
            b'{"schema": "hpcext.manager/1", "pid": 1, "start": 2, "host": "n", "boot_id": "b", '
            b'"batch": "", "batch_job": null, "deaf": false}',
            b'{"schema": "hpcext.manager/1", "pid": 1e999, "start": 2}',
            b'{"schema": "hpcext.manager/1", "pid": 9999999999999999999, "start": 2}',
        ),
    ),
    "who harvests": Parser(
        placed("a.json", lambda place: locks._holder(place / "a.lock")),
        (b'{"schema": "hpcext.harvester/1", "directory": "/d", "pid": 4}',),
    ),
    "what a pilot is": Parser(
        placed("pilot.json", pilots.load),
        tuple(path.read_bytes() for path in (TESTS / "run" / "recorded").rglob("pilot.json")),
    ),
    "jobs that were handed in": Parser(
        placed("handed/a.json", lambda place: Submissions(place / "handed").jobs),
        tuple(
            path.read_bytes() for path in (TESTS / "run" / "recorded").rglob("submissions/*.json")
        ),
    ),
    "the trainer of a ticket": Parser(
        placed("submissions/a.json", lambda place: tickets.trainer_of(place, "a")),
        tuple(
            path.read_bytes() for path in (TESTS / "run" / "recorded").rglob("submissions/*.json")
        ),
    ),
    "how much a ticket has shown": Parser(
        placed(f"{tickets.FOLDER}/a.shown", lambda place: tickets.shown(place, "a")), (b"42",)
    ),
    "the batch job of a pilot": Parser(
        placed(
            "slurm.json", SubmittedPilot("slurm", "slurm.json", "Slurm", submit="sbatch").job_of
        ),
        (b'{"schema": "hpcext.slurm-job/1", "job_id": 7, "options": ["-N2"]}',),
    ),
    "how often a pilot was requeued": Parser(
        placed(lsf_requeue.BEFORE_FILE, lsf_requeue.restarts), (b'{"times": 2}',)
    ),
    "how often an LSF job has begun": Parser(
        placed(lsf_suspend.FILE, lambda place: refused(lambda: lsf_suspend.runs(place))),
        (b'{"schema": "%s", "job_id": 7, "file": "f", "runs": 2}' % lsf_suspend.SCHEMA.encode(),),
    ),
    "the manifest of a checkpoint": Parser(stated, (whole_manifest(),)),
    "leases of the manager before": Parser(
        placed("leases/1/lease.json", in_mind),
        (
            b'{"schema": "hpcext.lease/1", "number": 1, "node": "n", "kind": "", "asked_at": 1.0, '
            b'"idle_at": 1.0, "job_id": 3, "ends_at": null, "planned": true, "idle_s": 60}',
            b'{"schema": "hpcext.lease/1", "number": 1e999, "node": "n", "kind": ""}',
        ),
    ),
    "a supervisor of another node": Parser(
        placed(protocol.SUPERVISOR_FILE, sweep._supervisor),
        (
            b'{"schema": "hpcext.supervisor/1", "pid": 1, "start": 2, "boot_id": "b"}',
            b'{"schema": "hpcext.supervisor/1", "pid": 1e999, "start": 2, "boot_id": "b"}',
        ),
    ),
    "who has registered": Parser(
        placed(protocol.REPORT_FILE, registered),
        (
            b'{"schema": "hpcext.report/1", "pid": 1, "start": 2}',
            b'{"schema": "hpcext.report/1", "pid": 1e999, "start": 2}',
        ),
    ),
    "a recording of a pilot": Parser(
        read_recording,
        (
            b'{"schema": "hpcext.recording/1", "policy": "pollux", "nodes": [{"gpus": 2}], "jobs": '
            b'[{"id": "1", "name": "plain", "submitted_s": 0.0, "sizes": [1, 2], "optimal": 2, '
            b'"work": 40.0, "speed": {"1": 1.0, "2": 2.0}, "costs": {"resume_s": 3.0}}], '
            b'"report_s": 0.5}',
        ),
    ),
    "the header of a log": Parser(
        text(lambda said: swf.header_count({"MaxNodes": said}, "MaxNodes")), (b"8", b"12 (of 16)")
    ),
    "an array file of a checkpoint": Parser(checkpoint, (saved(),)),
}
