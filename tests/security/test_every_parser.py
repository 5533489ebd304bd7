"""No reader of what comes from outside is left out of the table of parsers.

A reader is a function that decodes JSON or TOML, is called ``parse_...``, or makes a number of a
text that it did not make itself. Each must be reached by the good inputs of the table, or stand
below with the reason why it need not be.
"""

from __future__ import annotations

import ast
import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

from parsers import PARSERS, ROOT

from hpcext.core.errors import HpcextError

DECODERS = frozenset(
    {
        "json.loads", "json.load", "msgspec.json.decode", "msgspec.json.Decoder", "msgspec.convert",
        "tomllib.loads", "documents.read_json", "documents.decoded", "decoded", "csv.reader",
        "csv.DictReader",
    }
)  # fmt: skip

READING = (
    "backends",
    "batch",
    "executors",
    "harvest",
    "launch",
    "manager",
    "sim/traces",
    "sim/workloads",
)
"""Packages, and top-level modules, that read what others wrote. In the others numbers are made of
numbers, or of what a person types, which argparse and hpcext.checks look at."""


def dotted(node: ast.AST) -> str:
    if isinstance(node, ast.Attribute):
        before = dotted(node.value)
        return f"{before}.{node.attr}" if before else ""
    return node.id if isinstance(node, ast.Name) else ""


def reads(call: ast.Call, numbers: bool) -> bool:
    """Whether a call decodes; or makes a number of what is neither a sum nor a constant."""
    name = dotted(call.func)
    if name in DECODERS:
        return True
    if not numbers or name not in {"int", "float", "whole"} or not call.args:
        return False
    return not isinstance(call.args[0], (ast.BinOp, ast.Constant, ast.Compare, ast.BoolOp))


def readers() -> Iterator[tuple[str, int]]:
    """``MODULE:FUNCTION`` of each, and the line where it begins."""
    for path in sorted((ROOT / "hpcext").rglob("*.py")):
        module = path.relative_to(ROOT / "hpcext")
        numbers = str(module).startswith(READING) or len(module.parts) == 1
        yield from _readers(ast.parse(path.read_text()), str(module), numbers)


def _readers(
    node: ast.AST, module: str, numbers: bool, within: tuple[Any, ...] = ()
) -> Iterator[tuple[str, int]]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            inner = (*within, child)
            if child.name.startswith("parse_"):
                yield _named(module, inner)
            yield from _readers(child, module, numbers, inner)
            continue
        if isinstance(child, ast.Call) and reads(child, numbers):
            yield _named(module, within)
        yield from _readers(child, module, numbers, within)


def _named(module: str, within: tuple[Any, ...]) -> tuple[str, int]:
    if not within:
        return f"{module}:", 1
    first = min([within[-1], *within[-1].decorator_list], key=lambda each: each.lineno)
    return f"{module}:{'.'.join(each.name for each in within)}", first.lineno


def reached(folder: Path) -> set[tuple[str, int]]:
    """Module and first line of every function that the good inputs of the table run."""
    codes: set[CodeType] = set()

    def called(frame: FrameType, event: str, _: Any) -> None:
        if event == "call":
            codes.add(frame.f_code)

    path = folder / "input"
    for parser in PARSERS.values():
        for seed in parser.seeds:
            path.write_bytes(seed)
            sys.setprofile(called)
            try:
                with contextlib.suppress(HpcextError):
                    parser.takes(path)
            finally:
                sys.setprofile(None)
    home = ROOT / "hpcext"
    found = ((Path(code.co_filename), code.co_firstlineno) for code in codes)
    return {
        (str(file.relative_to(home)), line) for file, line in found if file.is_relative_to(home)
    }


KERNEL = "the kernel wrote it: proc(5)"
MANAGER = "its manager wrote it; read by documents.read_json, which is in the table"
CHECKPOINTS = "a training's own checkpoint, of which any error says that it is not whole"
ATTEMPT = "a process of the same attempt wrote it; read by documents.read_json"
NUMBERS = "a number made of numbers"
OWN = "our own output, read once more in the same call"
RANKS = "ranks of one training say it to each other"
CHECKED = "part of a file whose checksum was verified before"

REASONS = {
    "backends/lsf/steps.py:_by_node": OWN,
    "executors/attempt/directory.py:left_on": MANAGER,
    "executors/gpu_facts.py:_nvidias": "a driver gives numbers",
    "executors/gpus.py:amd_gpus": KERNEL,
    "executors/seats.py:_capability": "a driver gives numbers",
    "launch/transparent/links.py:_deleted": KERNEL,
    "manager/views/metrics.py:_of": NUMBERS,
    "papers/lb_bsp/measured.py:measured": "a table that is part of the package",
    "sim/pilots/recording.py:encoded": OWN,
    "sim/workloads/recorded.py:Trained._chosen": NUMBERS,
    "sim/workloads/recorded.py:Trained.alone_s": NUMBERS,
    "sim/workloads/recorded.py:kept": NUMBERS,
    "batch/slurm/api.py:Api.end": "pyslurm gives numbers",
    "cli/main.py:Parser.parse_known_args": "argparse reads them, which names the method",
    "cli/output.py:Output.document": OWN,
    "cli/reproduce.py:run": OWN,
    "doctor/probe.py:_Probe._lease": "an agent that the same command has started says it",
    "harvest/lease_jobs.py:LeaseJobs.held": "job ids that parse_held has read",
    "harvest/book.py:LeaseBook._look": "as leases of the manager before, in the table",
    "harvest/lease_jobs.py:LeaseJobs._new": NUMBERS,
    "harvest/parts.py:Watch.next_index": "names of files, matched before",
    "harvest/leases.py:fits_s": NUMBERS,
    "backends/lsf/steps.py:LsfSteps._sweep_host": MANAGER,
    "jobfields.py:mem_per_gpu": "digits that its pattern has matched; files/test_jobfile.py",
    "launch/agent.py:Agent.__init__": MANAGER,
    "launch/agent.py:Agent._look": MANAGER,
    "launch/agent.py:Agent._start": MANAGER,
    "launch/agent.py:_Attempt.can_leave": "of a report it compares one key",
    "launch/agent.py:main": MANAGER,
    "launch/ending.py:oom_kills": KERNEL,
    "manager/notifications.py:_read": MANAGER,
    "manager/spool.py:batch_job_of": MANAGER,
    "launch/supervisor_files.py:SupervisorFiles._of_this_attempt": (
        "of the document it compares keys"
    ),
    "launch/supervisor_files.py:SupervisorFiles.manager": MANAGER,
    "launch/supervisor_files.py:SupervisorFiles.unsaved": (
        "of the report it compares one key, and of the other file it reads digits"
    ),
    "checks.py:age_s": "an argument of a command, which its user gives",
    "launch/change.py:Request.read": MANAGER,
    "launch/ranks.py:": "a signal's number",
    "launch/leader.py:RemoteLeader.stopped": ATTEMPT,
    "launch/spread.py:_end_of": ATTEMPT,
    "manager/pilot.py:_host_of_our_job": MANAGER,
    "manager/first_life.py:standing": MANAGER,
    "launch/spread.py:spread": MANAGER,
    "launch/launch_file.py:Launch.__init__": MANAGER,
    "launch/launch_file.py:read": MANAGER,
    "launch/sweep.py:main": "digits, which it looks at before",
    "launch/native.py:Native.__init__": MANAGER,
    "launch/own_checkpoints.py:OwnCheckpoints.begin": "numerals.whole, of a note of its own",
    "launch/sweep.py:marks_of": ATTEMPT,
    "launch/transparent/manifest.py:Images.read": ATTEMPT,
    "executors/attempt/learned.py:_read": ATTEMPT,
    "launch/transparent/residence.py:_read": ATTEMPT,
    "launch/transparent/saver.py:_seconds": "a number that is in a document of the same attempt",
    "launch/transparent/criu.py:Criu.probe": "a number that criu says of itself",
    "launch/trackers.py:_read": ATTEMPT,
    "launch/trackers.py:_committed": CHECKPOINTS,
    "harvest/ways/drop.py:Drop._beat": "digits that the account of the broker wrote",
    "harvest/ways/remote.py:Remote._uid": "an account in an address that read_address has read",
    "harvest/ways/__init__.py:ask": "tests/broker/test_server.py has a broker answer nonsense",
    "harvest/ways/__init__.py:status": "the same words of the service, whose keys it looks for",
    "broker/desk.py:": "tests/broker/test_server.py sends it damaged requests",
    "launch/tree.py:dying": "/proc, as the kernel writes it",
    "launch/transparent/connections.py:_plain": "an address as the kernel writes it",
    "launch/transparent/driver.py:said": "its own helper wrote it; read by documents.read_json",
    "launch/transparent/driver_api.py:Driver._call": "a code of NVIDIA's library",
    "launch/transparent/driver_helper.py:main": "an argument, by the supervisor of the attempt",
    "launch/transparent/driver_steps.py:Helper.__init__": "of the same argument",
    "launch/transparent/room.py:_kilobytes": KERNEL,
    "launch/transparent/room.py:left": KERNEL,
    "launch/transparent/gpus.py:visible": "numerals.whole, of the variable that names GPUs",
    "launch/apart.py:answer": OWN,
    "doctor/counter.py:_Attempt._read": ATTEMPT,
    "doctor/driver.py:without": "what its own process has printed",
    "doctor/transparent.py:_tried": "two numbers that its own trial has printed",
    "launch/wholeness.py:_is_complete": CHECKPOINTS,
    "launch/wholeness.py:_safetensors_length": CHECKPOINTS,
    "launch/wholeness.py:written_by": KERNEL,
    "launch/nursery.py:main": "the number of a descriptor that its manager has given it",
    "launch/nursery.py:show_as": KERNEL,
    "launch/nursery.py:serve": "the order of whoever started it",
    "launch/nursery.py:_fork_for": "numerals.whole, of the pid that its own child has forked",
    "launch/words.py:launched": "numerals.whole, of words of the user's own command",
    "launch/agent.py:_Attempt.is_others": ATTEMPT,
    "launch/agent.py:Agent._nursery": ATTEMPT,
    "launch/preload.py:main": "the number of a descriptor that its manager has given it",
    "launch/run_here.py:_region": KERNEL,
    "launch/run_here.py:open_files": KERNEL,
    "launch/nurseries.py:Nursery.begin": "the pid that its own process has forked",
    "launch/gpu_faults.py:_ask": "a code of NVIDIA's library",
    "launch/gpu_faults.py:_gpus": "numerals.whole, of the variable that names GPUs",
    "launch/gpu_faults.py:xids": "the kernel wrote it; only root may write there, too",
    "launch/tree.py:_does": KERNEL,
    "launch/tree.py:_own_pid": KERNEL,
    "launch/tree.py:_pids": KERNEL,
    "launch/tree.py:_stat": KERNEL,
    "launch/tree.py:tell": "a signal's number",
    "launch/tree.py:end_of": KERNEL,
    "manager/cleaning/in_use.py:_refuse_if_in_batch": MANAGER,
    "manager/journal.py:": "the decoders, which reading a journal calls",
    "manager/orphans.py:ran_on": MANAGER,
    "manager/orphans.py:still_running": MANAGER,
    "manager/profile.py:_Run.look": "as a report, which is in the table",
    "manager/suspendable.py:spec": NUMBERS,
    "private.py:_is_unknown": KERNEL,
    "profiles.py:Profiles.add": OWN,
    "protocol.py:Attempt.environ": NUMBERS,
    "rendezvous.py:Rendezvous._read": RANKS,
    "rendezvous.py:Rendezvous.published": RANKS,
    "rendezvous.py:Rendezvous.last_cut": RANKS,
    "rendezvous.py:Rendezvous.multiple": RANKS,
    "papers/lb_bsp/table.py:recorded": "a table that is part of the package",
    "sim/evaluate/store.py:RunStore.load": "runs of the same user; damaged: sim/test_sim_store.py",
    "sim/evaluate/store.py:RunStore.timings": (
        "runs of the same user; damaged: sim/test_sim_store.py"
    ),
    "sim/traces/generate.py:_Model._trial": NUMBERS,
    "sim/traces/generate.py:_Steps.leaving": NUMBERS,
    "sim/traces/generate.py:_Steps.next": NUMBERS,
    "sim/traces/generate.py:_fit_lives": NUMBERS,
    "sim/traces/generate.py:_fit_sizes": NUMBERS,
    "sim/traces/generate.py:_flow": NUMBERS,
    "sim/traces/idle.py:_plain": NUMBERS,
    "sim/traces/swf.py:_lines": NUMBERS,
    "sim/workloads/generated.py:_marble": NUMBERS,
    "sim/workloads/philly.py:make_philly": NUMBERS,
    "text.py:sized": NUMBERS,
    "training/checkpoint/keeper.py:Keeper.find": RANKS,
    "training/checkpoint/keeper.py:Keeper.load": CHECKED,
    "training/data/undivided.py:compare": RANKS,
    "training/jax/pieces.py:listed": CHECKED,
    "training/jax/sharded.py:JaxShards.write": RANKS,
    "training/lightning/random_states.py:RandomStates.gather": RANKS,
    "training/lightning/random_states.py:RandomStates.restore": CHECKED,
    "training/checkpoint/state.py:_numpy_state": OWN,
    "training/tensorflow/cluster.py:_launched": "what who starts a training says to it",
    "training/balance/balancing.py:Balancing._names": RANKS,
    "training/torch/sharded.py:TorchShards.write": RANKS,
}
"""Reader → why it is not in the table."""


def test_every_reader_is_in_the_table_or_has_a_reason(tmp_path: Path) -> None:
    there = reached(tmp_path)
    wanted = dict(readers())
    missing = {name for name, line in wanted.items() if (name.partition(":")[0], line) not in there}
    assert missing == set(REASONS)
