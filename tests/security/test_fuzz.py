"""Every parser of what comes from outside, given damaged input: an answer, or one line of refusal.

Nothing else may come out of it: no other exception, no endless loop. In the default run each parser
has a thousand inputs; ``pytest -m slow tests/security/test_fuzz.py`` gives each a hundred thousand.
"""

from __future__ import annotations

import contextlib
import struct
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from hpcext import checks, config, jobfile, protocol
from hpcext.admin import manifest
from hpcext.batch import lsf, lsf_idle, lsf_leasing, lsf_probe, lsf_reserved, slurm, slurm_idle
from hpcext.core.errors import HpcextError, InputError
from hpcext.executors import lease_account
from hpcext.launch.leader import Leader
from hpcext.manager import journal
from hpcext.policies.limits import read_limits
from hpcext.profiles import Profiles
from hpcext.sim.sources import read_nodes
from hpcext.sim.traces import idle, swf
from hpcext.sim.traces import lsf as lsf_trace
from hpcext.sim.traces import slurm as slurm_trace
from hpcext.sim.traces.lines import parsed
from hpcext.sim.workloads.philly import read_philly
from hpcext.sim.workloads.trainers import read_trainers

TESTS = Path(__file__).parents[1]
ROOT = TESTS.parent
BATCH = TESTS / "batch" / "recorded"
TRACES = TESTS / "sim" / "recorded"


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


def recorded(pattern: str) -> tuple[bytes, ...]:
    found = tuple(path.read_bytes() for path in sorted(BATCH.glob(pattern)))
    assert found, pattern
    return found


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
        return protocol.read_json(path, "hpcext.report/1")
    except ValueError as error:
        raise InputError(str(error)) from None


def profile(path: Path) -> object:
    (path.parent / "x.json").write_bytes(path.read_bytes())
    return Profiles(path.parent).load("x")


def account(path: Path) -> object:
    (path.parent / lease_account.FILE).write_bytes(path.read_bytes())
    return lease_account.load(path.parent)


def installed(path: Path) -> object:
    (path.parent / manifest.NAME).write_bytes(path.read_bytes())
    return manifest.load(path.parent, trusted=False)


PARSERS = {
    "squeue's steps": Parser(text(slurm.parse_steps), recorded("slurm-*/squeue-steps.txt")),
    "squeue's jobs": Parser(text(slurm.parse_jobs), recorded("slurm-*/s*-jobs.txt")),
    "squeue's end": Parser(text(slurm.parse_end), recorded("slurm-*/squeue-end*.txt")),
    "sinfo's nodes": Parser(text(slurm.parse_nodes), recorded("slurm-*/sinfo-nodes.txt")),
    "scontrol's version": Parser(
        text(slurm.parse_version), recorded("slurm-*/scontrol-version.txt")
    ),
    "scontrol's nodes": Parser(text(slurm.parse_hosts), recorded("slurm-*/scontrol-nodes.txt")),
    "scontrol's configuration": Parser(
        text(slurm.parse_config),
        (b"Configuration data as of now\nGraceTime = 10\nPreemptMode = REQUEUE\n\nx is UP\n",),
    ),
    "sbatch's answer": Parser(text(slurm.parse_job_id), recorded("slurm-*/sbatch-*.txt")),
    "cores of nodes": Parser(text(slurm.parse_cpus), (b"2(x3),1", b"16")),
    "Slurm's limits": Parser(text(slurm.parse_time_limit), (b"1-02:03:04", b"UNLIMITED", b"5:00")),
    "sinfo's idle nodes": Parser(text(slurm_idle.parse_idle), recorded("slurm-*/sinfo-idle.txt")),
    "squeue's plans": Parser(
        text(slurm_idle.parse_planned), recorded("slurm-*/squeue-planned.txt")
    ),
    "squeue's leases": Parser(text(slurm_idle.parse_held), recorded("slurm-*/squeue-held.txt")),
    "bhosts": Parser(text(lsf_idle.parse_hosts), recorded("lsf/bhosts-*")),
    "bhosts' GPUs": Parser(text(lsf_idle.parse_gpus), recorded("lsf/bhosts-*")),
    "bslots": Parser(text(lsf_idle.parse_windows), recorded("lsf/bslots-*.txt")),
    "bqueues": Parser(text(lsf_idle.parse_queue), recorded("lsf/bqueues-*.txt")),
    "all of bqueues": Parser(text(lsf_idle.parse_queues), recorded("lsf/bqueues-*.txt")),
    "brsvs": Parser(
        text(lambda said: lsf_reserved.parse_reserved(said, 1.8e9)), recorded("lsf/brsvs*.txt")
    ),
    "lsid": Parser(text(lsf_probe.parse_release), recorded("lsf/lsid*.txt")),
    "bjobs": Parser(
        text(lsf.parse_jobs),
        (b'{"COMMAND":"bjobs","JOBS":1,"RECORDS":[{"JOBID":"4","STAT":"RUN","EXIT_CODE":""}]}',),
    ),
    "bjobs' leases": Parser(
        text(lambda said: lsf_leasing.parse_held(said, 1.8e9)),
        (
            b'{"COMMAND":"bjobs","JOBS":1,"RECORDS":[{"JOBID":"4","STAT":"RUN","EXEC_HOST":"4*a",'
            b'"JOB_NAME":"x","TIME_LEFT":"1:0 L","JOB_DESCRIPTION":"","FINISH_TIME":""}]}',
        ),
    ),
    "a job that tells the doctor": Parser(
        text(
            lambda said: lsf_probe.parse_trial(
                said, lsf_probe.Engine(lsf_probe.Release("LSF", "10.1.0", "c"), frozenset(), {})
            )
        ),
        (b"LSB_JOBID=4\nLSB_HOSTS=a a b\nLSB_MCPU_HOSTS=a 2 b 1\nHPCEXT_GPUS=1\n",),
    ),
    "a job file": Parser(
        lambda path: jobfile.parse_jobs(
            checks.read_text(path), where="jobs.toml", base=path.parent
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
    "a profile": Parser(profile, (PROFILE,)),
    "the account of leases": Parser(
        account,
        (b'{"schema": "hpcext.harvest/1", "seen_s": 5.0, "held_node_s": 4.0, "leases": 1}',),
    ),
    "the manifest of an installation": Parser(
        installed,
        (b'{"schema": "hpcext.installed/1", "hpcext": "0.1.0", "files": {"/a": ["00"]}}',),
    ),
    "a leader": Parser(
        text(lambda said: Leader.of(said, 60.0)), (str(protocol.Process.me()).encode(),)
    ),
    "nodes": Parser(text(read_nodes), (b"2xa100:4,4xv100:8", b"8x4")),
    "idle nodes": Parser(rows(idle.read_idle), (b"time_s,joined,left\n0,0-3 7,\n10,4,1-2\n",)),
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
}

TOKENS = (
    b"", b"\n", b"\0", b"\xff", b"\xed\xa0\x80", b"\x1b[2J", b"-1", b"0", b"9" * 400, b"1e999",
    b"nan", b"inf", b"-", b"|", b",", b"=", b'"', b"'", b"[", b"]]", b"{", b"}", b"null", b"true",
    b"../..", b"n[1-99999999999]", b"%s", "\u0663".encode(), "\u2028".encode(), b"\r", b"\t", b":",
)  # fmt: skip

EDIT = struct.Struct(">HBB")
"""Where, how many bytes are taken out there, and what is put in their place. From one draw of
bytes: a strategy for each would take ten times as long as what is tested."""


def damaged(seed: bytes, edits: bytes) -> bytes:
    for where, less, more in EDIT.iter_unpack(edits[: len(edits) // EDIT.size * EDIT.size]):
        at = where * (len(seed) + 1) >> 16
        token = TOKENS[more] if more < len(TOKENS) else bytes([more])
        # Some cut off what follows.
        seed = seed[:at] + token + (seed[at + less % 13 :] if less < 240 else b"")
    return seed


def fuzz(name: str, folder: Path, inputs: int) -> None:
    parser = PARSERS[name]
    path = folder / "input"

    @settings(
        max_examples=inputs,
        deadline=None,
        database=None,
        phases=(Phase.generate, Phase.shrink),
        suppress_health_check=list(HealthCheck),
    )
    @given(seed=st.sampled_from(parser.seeds), edits=st.binary(min_size=4, max_size=24))
    def each(seed: bytes, edits: bytes) -> None:
        path.write_bytes(damaged(seed, edits))
        with contextlib.suppress(HpcextError):
            parser.takes(path)

    good = 0
    for seed in parser.seeds:
        path.write_bytes(seed)
        with contextlib.suppress(HpcextError):
            parser.takes(path)
            good += 1
    assert good, "no seed is good input, so most would be refused at once"
    each()


@pytest.mark.parametrize("name", PARSERS)
def test_damaged_input_is_refused_or_read(name: str, tmp_path: Path) -> None:
    fuzz(name, tmp_path, 1000)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("name", PARSERS)
def test_much_damaged_input_is_refused_or_read(name: str, tmp_path: Path) -> None:
    fuzz(name, tmp_path, 100_000)
