"""Part 1: what GPU this is, and whether a pilot finds it and gives it to one job at a time."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import time
from pathlib import Path
from typing import Any

from machine import Gpu, Watch, site
from part import MEASURED, NOT_ASKED, Bench, Part, in_words, read_lines, wait_for

from hpcext.executors.gpu_facts import gpu_facts, mps_runs
from hpcext.launch import gpu_faults
from hpcext.launch.mps import CONTROL

MIB = 1 << 20
SLACK_BYTES = 64 * MIB
"""What of a GPU's memory may come and go with nobody on it."""


def run(bench: Bench) -> None:
    """Find the answers."""
    gpu = Gpu()
    bench.ask(lambda: _describe(bench, gpu), "gpu")
    bench.ask(lambda: _doctor(bench), "doctor")
    bench.ask(lambda: _uuid(bench, gpu), "software", "uuid", "processes")
    bench.ask(lambda: _pilot(bench, gpu), "pilot", "alone", "free")
    bench.ask(lambda: _faults(bench, gpu.index), "faults")


def _describe(bench: Bench, gpu: Gpu) -> None:
    nvml, handle = gpu.nvml, gpu.handle

    def said(question: str, *about: Any) -> Any:
        try:
            found = getattr(nvml, question)(*about)
        except (AttributeError, nvml.NVMLError) as error:
            return f"not known ({type(error).__name__})"
        return found.decode() if isinstance(found, bytes) else found

    facts = next(each for each in gpu_facts() if each.index == gpu.index)
    bench.answer(
        "gpu",
        MEASURED,
        facts.name,
        gpus=gpu.count,
        uuid=gpu.uuid,
        driver=said("nvmlSystemGetDriverVersion"),
        memory_mib=gpu.total_bytes // MIB,
        used_mib=gpu.used_bytes // MIB,
        mig=facts.mig,
        compute_mode=said("nvmlDeviceGetComputeMode", handle),
        capability=said("nvmlDeviceGetCudaComputeCapability", handle),
        processes=len(gpu.processes()),
    )


def _software(bench: Bench, torch: dict[str, Any]) -> None:
    status = dict(line.split(":\t", 1) for line in _read("/proc/self/status") if ":\t" in line)
    bench.answer(
        "software",
        MEASURED,
        mps=shutil.which(CONTROL) or "not in PATH",
        mps_runs=mps_runs(),
        cuda_checkpoint=shutil.which("cuda-checkpoint") or "not in PATH",
        criu=shutil.which("criu") or "not in PATH",
        kernel_log="readable" if os.access(gpu_faults.KERNEL_LOG, os.R_OK) else "not readable",
        user=os.geteuid(),
        capabilities=status.get("CapEff", "?"),
        ptrace_scope=(_read("/proc/sys/kernel/yama/ptrace_scope") or ["none"])[0],
        **torch,
    )


def _read(path: str) -> list[str]:
    try:
        return Path(path).read_text().splitlines()
    except OSError:
        return []


def _doctor(bench: Bench) -> None:
    document = site(bench.scratch / "doctor").document("doctor", timeout_s=bench.left_s)
    findings = {each["name"]: each for each in document["findings"]}
    gpus = findings["gpus"]
    wrong = [name for name, each in findings.items() if each["verdict"] == "wrong"]
    bench.answer("doctor", gpus["verdict"] == "ok", f"{gpus['says']}; wrong: {in_words(wrong)}")


def _uuid(bench: Bench, gpu: Gpu) -> None:
    """Hold a GPU by its UUID, and look at it from outside."""
    before = gpu.used_bytes
    holder = subprocess.Popen(
        bench.script("torch_facts", "--hold"),
        env={**os.environ, "CUDA_VISIBLE_DEVICES": gpu.uuid},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert holder.stdout is not None
        facts = json.loads(holder.stdout.readline())
        uses, used = gpu.processes(), gpu.used_bytes - before
        _software(bench, facts)
    finally:
        holder.kill()
        holder.communicate()
    if bench.rehearse:
        bench.answer("uuid", NOT_ASKED, "there is no CUDA that would read the variable")
    else:
        wrong = {**os.environ, "CUDA_VISIBLE_DEVICES": "GPU-" + 8 * "0"}
        others = json.loads(bench.run_script("torch_facts", environ=wrong).stdout)
        mine = facts["count"] == 1 and facts["uuid"].removeprefix("GPU-") in gpu.uuid
        bench.answer(
            "uuid",
            mine and others["count"] == 0,
            seen_by_uuid=facts["count"],
            seen_by_another_uuid=others["count"],
        )
    says = "with its pid" if holder.pid in uses else f"as {in_words(list(uses))}"
    bench.answer(
        "processes",
        holder.pid in uses,
        f"{says}, of {holder.pid}",
        said_mib=(uses.get(holder.pid) or 0) // MIB,
        used_mib=used // MIB,
        seconds_until_free_after_sigkill=gpu.freed_s(before + SLACK_BYTES),
    )


def _pilot(bench: Bench, gpu: Gpu) -> None:
    """Two trainings, of which the first is suspended for the other, and resumed."""
    place = site(bench.scratch / "pilot")
    pace = [] if bench.rehearse else ["--pace", "0.01"]
    steps = 40 if bench.rehearse else 200
    accounts = {name: place.path / f"{name}.account" for name in ("first", "second")}
    place.write_jobs(*(
        {
            "name": name,
            "command": bench.script(
                "trained", "--steps", steps, "--account", path, "--result", f"{path}.result",
                *(["--pace", 0.1] if name == "first" and bench.rehearse else pace),
            ),
        }
        for name, path in accounts.items()
    ))  # fmt: skip
    idle, others = gpu.used_bytes, frozenset(gpu.processes())
    with Watch(gpu) as watch:
        manager = place.start("run", str(place.jobs), "--gpus", "1", "--dir", str(place.pilot))
        wait_for(lambda: _steps(accounts["first"]) >= 10, "ten steps", bench.left_s - 10)
        asked_s = time.monotonic()
        place.run_until_done("suspend", str(place.pilot), "first")
        wait_for(lambda: read_lines(accounts["second"]), "the second job", bench.left_s - 5)
        handed_s = time.monotonic() - asked_s
        place.run_until_done("resume", str(place.pilot), "first")
        out, err = manager.communicate(timeout=max(1.0, bench.left_s - 2))
    print(out, err)
    lines = {name: read_lines(path) for name, path in accounts.items()}
    begun = [line for line in lines["first"] + lines["second"] if "pid" in line]
    done = {name: _steps(path) for name, path in accounts.items()}
    lost = sum(job["lost_steps"] for job in place.document("status", str(place.pilot))["jobs"])
    device = next(line["device"] for line in lines["second"] if "device" in line)
    bench.answer(
        "pilot",
        manager.returncode == 0 and set(done.values()) == {steps} and lost == 0 and len(begun) == 3,
        f"on {device}; CUDA_VISIBLE_DEVICES={begun[0]['visible']}",
        attempts=len(begun),
        steps=list(done.values()),
        lost_steps=lost,
        seconds_from_suspend_to_the_other=handed_s,
    )
    seen = [each.pids - others for each in watch.seen]
    _alone(bench, seen, {line["pid"] for line in begun})
    above = max(line.get("used_bytes", 0) for line in begun) - idle
    bench.answer("free", above <= SLACK_BYTES, most_mib_in_use_at_a_start=above // MIB)


def _steps(account: Path) -> int:
    return max((line["step"] for line in read_lines(account) if "step" in line), default=0)


def _alone(bench: Bench, seen: list[frozenset[int]], ours: set[int]) -> None:
    """Judge by all processes that NVML named meanwhile."""
    together = max(map(len, seen), default=0)
    known = frozenset[int]().union(*seen)
    if not known:
        bench.answer("alone", NOT_ASKED, "NVML named no process at any time", samples=len(seen))
        return
    bench.answer(
        "alone",
        together <= 1,
        "" if known <= ours else f"pids of another namespace: {in_words(sorted(known - ours))}",
        most_at_once=together,
        samples=len(seen),
    )


def _faults(bench: Bench, index: int) -> None:
    """Have a training fail by its own fault, and look at the GPU as its supervisor does."""
    before = json.loads(bench.run_script("looked", index, time.monotonic()).stdout)
    began_s = time.monotonic()
    done = subprocess.run(
        bench.script("faulty"), capture_output=True, text=True, check=False, timeout=bench.left_s
    )
    after = json.loads(bench.run_script("looked", index, began_s).stdout)
    bench.answer(
        "faults",
        after["nvml"] and done.returncode != 0 and not before["broken"] and not after["broken"],
        f"{(done.stderr.strip().splitlines() or ['nothing'])[-1][:100]}; "
        f"said of the GPU: {in_words(after['broken'] + after['noted'])}",
        nvml_found_by_supervisors=after["nvml"],
        seconds_of_a_look=after["seconds"],
        xids_in_the_log=_xids(),
    )


def _xids() -> list[str]:
    """Return the last faults of programs, too, that the kernel's log has."""
    try:
        said = subprocess.run(["dmesg"], capture_output=True, text=True, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        return ["the log cannot be read"]
    return [line.partition("NVRM: ")[2][:80] for line in said.splitlines() if "Xid" in line][-3:]


PART = Part(
    "facts",
    "1. The GPU, the doctor, a pilot",
    70.0,
    20.0,
    {
        "gpu": "What does NVML say of the GPU?",
        "software": "What software is there, and what may we do?",
        "doctor": "Does `hpcext doctor` find the GPU?",
        "uuid": "Does `CUDA_VISIBLE_DEVICES` with the UUID of NVML show CUDA exactly that GPU?",
        "processes": "Does NVML name a process that computes, by its pid?",
        "pilot": "Does a pilot with `--gpus` train, suspend and resume there, losing no step?",
        "alone": "Were its jobs never on the GPU at once, by NVML?",
        "free": "Was the GPU's memory free, by NVML, whenever one of them began?",
        "faults": "Is a failure by a program's own fault not put down to the GPU?",
    },
    run,
)
