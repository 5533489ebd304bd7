"""Contract engine of LSF, written from the vendor's documentation: bsub and its esubs."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import lsf_arrays
import lsf_checkpoint
from lsf_site import ABORT_VALUE, Job, Queue, RefusedError, Site, me

NAME = re.compile(r"[A-Za-z0-9_-]+")
METHOD = re.compile(r"\s*([A-Za-z0-9_-]+)\s*(?:\(([^()]*)\))?")
KEYS = {"LSB_SUB_QUEUE": "-q", "LSB_SUB_JOB_NAME": "-J", "LSB_SUB_RERUNNABLE": "-r"}
"""What an esub may change here, besides the command."""

VALUES = {"-a", "-J", "-q", "-n", "-o", "-e", "-Q", "-E", "-W", "-R", "-gpu", "-nnodes", "-env"}
VALUES |= {"-w", "-wa", "-wt", "-k", "-i", "-is", "-m", "-Jd", "-cwd"}
SWITCHES = {"-K", "-I", "-r", "-rn"}
SAFE = re.compile(r"[\w./:=@%+,-]+", re.ASCII)


@dataclass
class Request:
    """A command line of bsub."""

    options: dict[str, str] = field(default_factory=dict)
    text: str = ""
    is_script: bool = False


def parse(argv: Sequence[str], stdin: bytes) -> Request:
    """Read a command line; without a command the script is on standard input."""
    words, request = list(argv), Request()
    while words and words[0].startswith("-"):
        option = words.pop(0)
        if option in SWITCHES:
            request.options[option] = "Y"
        elif option in VALUES and words:
            request.options[option] = words.pop(0)
        else:
            raise RefusedError(f"{option}: not played by this engine")
    if not words:
        request.text, request.is_script = os.fsdecode(stdin), True
        if not request.text:
            raise RefusedError("No command is specified. Job not submitted.")
    elif len(words) == 1:
        request.text = words[0]
    elif all(SAFE.fullmatch(word) for word in words):
        request.text = " ".join(words)
    else:
        raise RefusedError("several words that need quotes: not played; give one text")
    return request


def submit(
    site: Site,
    argv: Sequence[str],
    *,
    stdin: bytes = b"",
    environ: Mapping[str, str],
    cwd: Path,
) -> tuple[list[Job], str]:
    """Take a job in; the job or all elements of the array, and what its esubs said to the user.

    Raises
    ------
    RefusedError
        With all that the user sees.
    """
    request = parse(argv, stdin)
    changes, said, to_eexec = _run_esubs(site, request, environ, cwd)
    job_environ = {} if request.options.get("-env") == "none" else dict(environ)
    if request.options.get("-env", "all") not in {"all", "none"}:
        raise RefusedError("-env: only all and none are played")
    job_environ.update(changes)
    queue = request.options.get("-q", next(iter(site.queues)))
    if queue not in site.queues:
        raise RefusedError(f"{queue}: No such queue. Job not submitted.")
    values = request.options.get("-Q", "").split() or site.queues[queue].requeue_exit_values
    output = request.options.get("-o", "/dev/null")
    ptile = _ptile(request.options.get("-R", ""))
    gpus, per_task = _gpus(request.options.get("-gpu", "num=0"))
    if "-nnodes" in request.options:
        # Whole nodes, with all that they have.
        first = site.hosts[0]
        request.options["-n"] = str(int(request.options["-nnodes"]) * first.slots)
        ptile, gpus = first.slots, first.gpus
    job = Job(
        id=0,
        text=request.text,
        is_script=request.is_script,
        queue=queue,
        name=request.options.get("-J", request.text),
        user=me(),
        description=request.options.get("-Jd", ""),
        asked_hosts=request.options.get("-m", "").split(),
        slots=int(request.options.get("-n", "1")),
        cwd=request.options.get("-cwd", str(cwd)),
        environ=job_environ,
        output=output,
        errors=request.options.get("-e", output),
        requeue_exit_values=[int(value) for value in values],
        to_eexec=to_eexec,
        pre_exec=request.options.get("-E", ""),
        run_limit=_minutes(request.options.get("-W", "0")),
        ptile=ptile or (int(request.options.get("-n", "1")) if ptile is None else 0),
        gpus_wanted=gpus,
        gpus_per_task=per_task,
        rerunnable=_rerunnable(site.queues[queue], request.options),
        **_warning(site, request.options),
        **lsf_checkpoint.options(request.options.get("-k", "")),
    )
    if "-I" in request.options or "-i" in request.options:
        raise RefusedError("-I, -i: not played but for esubs")
    if depends := request.options.get("-w", ""):
        lsf_arrays.check_depends(site, depends)
        job.depends = depends
    jobs = lsf_arrays.elements(job) or [job]
    site.add(*jobs)
    return jobs, said


def _rerunnable(queue: Queue, options: Mapping[str, str]) -> bool:
    return "-rn" not in options and (queue.rerunnable or options.get("-r") == "Y")


def _warning(site: Site, options: Mapping[str, str]) -> dict[str, Any]:
    """Both options or none."""
    if ("-wa" in options) != ("-wt" in options):
        raise RefusedError("-wa without -wt, or the other way: not played by this engine")
    if "-wa" not in options or site.quirks.warning_misparsed:
        return {}
    return {"warning": options["-wa"], "warning_time": _minutes(options["-wt"])}


def _minutes(text: str) -> int:
    """``[HOUR:]MINUTE[/HOST]``; all hosts are as fast."""
    text = text.partition("/")[0]
    if not re.fullmatch(r"(\d+:)?\d+", text, re.ASCII):
        raise RefusedError(f"-W: {text}: not played by this engine")
    hours, _, minutes = text.rpartition(":")
    return 60 * int(hours or 0) + int(minutes)


def _ptile(text: str) -> int | None:
    """Slots on each host by -R; None: all on one; 0: as they come."""
    if not text:
        return 0
    found = re.fullmatch(r"span\[(?:ptile=(\d+)|hosts=1)\]", text, re.ASCII)
    if not found:
        raise RefusedError(f"-R: {text}: not played by this engine")
    return int(found[1]) if found[1] else None


def _gpus(text: str) -> tuple[int, bool]:
    """How many GPUs -gpu asks for, and whether for each task; else for each host."""
    number, *rest = text.split(":")
    found = re.fullmatch(r"num=(\d+)(/task|/host)?", number, re.ASCII)
    if not found or not set(rest) <= {"mode=shared", "mode=exclusive_process", "j_exclusive=yes"}:
        raise RefusedError(f"-gpu: {text}: not played by this engine")
    return int(found[1]), found[2] == "/task"


def _run_esubs(
    site: Site, request: Request, environ: Mapping[str, str], cwd: Path
) -> tuple[dict[str, str], str, str]:
    """Variables that esubs gave, what they said to the user, and what is for eexec."""
    said, to_eexec = "", ""
    with tempfile.TemporaryDirectory(dir=site.directory) as scratch:
        parm, modify, env = (Path(scratch) / name for name in ("parm", "modify", "env"))
        parm.write_bytes(_parameters(site, request))
        for esub, arguments in _chain(site, request):
            ended = subprocess.run(
                [esub, *arguments],
                stdin=subprocess.DEVNULL,
                capture_output=True,
                cwd=cwd,
                env={
                    **environ,
                    "LSB_SUB_PARM_FILE": str(parm),
                    "LSB_SUB_MODIFY_FILE": str(modify),
                    "LSB_SUB_MODIFY_ENVFILE": str(env),
                    "LSB_SUB_ABORT_VALUE": str(ABORT_VALUE),
                },
                check=False,
            )
            said += os.fsdecode(ended.stderr)
            to_eexec += os.fsdecode(ended.stdout)
            if ended.returncode == ABORT_VALUE:
                raise RefusedError(f"{said}Request aborted by esub. Job not submitted.")
        if modify.exists():
            _change(site, request, _assignments(modify))
        return _assignments(env) if env.exists() else {}, said, to_eexec


def _chain(site: Site, request: Request) -> list[tuple[Path, list[str]]]:
    """`esub`, then those of LSB_ESUB_METHOD, then those of -a."""
    methods = [(name, "") for name in site.esub_method.split()]
    text = request.options.get("-a", "")
    while text.strip():
        found = METHOD.match(text)
        if not found:
            raise RefusedError(f"-a: {text.strip()}: Bad argument. Job not submitted.")
        methods.append((found[1], found[2] or ""))
        text = text[found.end() :]
    chain = []
    if (site.serverdir / "esub").exists():
        chain.append((site.serverdir / "esub", []))
    for name, inside in methods:
        if name == "user":
            raise RefusedError("esub.user is reserved. Job not submitted.")
        esub = site.serverdir / f"esub.{name}"
        if not esub.exists():
            raise RefusedError(f"{name}: no such esub. Job not submitted.")
        arguments = [part.strip() for part in inside.split(",")] if inside.strip() else []
        if site.quirks.no_esub_arguments:
            arguments = []
        if site.quirks.stray_argument:
            arguments.insert(0, name)
        chain.append((esub, arguments))
    return chain


def _parameters(site: Site, request: Request) -> bytes:
    options = request.options
    lines = []
    named = site.command_name and not site.quirks.no_command_line
    if named and (not request.is_script or site.quirks.script_flattened):
        text = request.text
        if request.is_script:
            text = text.replace("\n", ";").rstrip(";") + "  "
        lines.append(("LSB_SUB_COMMAND_LINE", text))
    keys = {"-J": "LSB_SUB_JOB_NAME", "-q": "LSB_SUB_QUEUE", "-a": "LSB_SUB_ADDITIONAL"}
    lines += [(key, options[option]) for option, key in keys.items() if option in options]
    if not site.quirks.bare_quotes:
        lines = [(key, re.sub(r'(["\\$`])', r"\\\1", value)) for key, value in lines]
    found = [f'{key}="{value}"\n' for key, value in lines]
    found += ["LSB_SUB_INTERACTIVE=Y\n"] * ("-I" in options)
    found += [f'LSB_SUB_IN_FILE="{options["-i"]}"\n'] if "-i" in options else []
    found += [f'LSB_SUB2_IN_FILE_SPOOL="{options["-is"]}"\n'] if "-is" in options else []
    found += [f'LSB_SUB_ERR_FILE="{options["-e"]}"\n'] if "-e" in options else []
    found += ["LSB_SUB_RERUNNABLE=Y\n"] * ("-r" in options)
    found += ["LSB_SUB_RERUNNABLE=N\n"] * ("-rn" in options)
    if "-n" in options:
        found.append(f"LSB_SUB_NUM_PROCESSORS={options['-n']}\n")
    return os.fsencode("".join(found))


def _assignments(path: Path) -> dict[str, str]:
    """Lines `KEY="value"` or `KEY=value`."""
    found = {}
    for line in os.fsdecode(path.read_bytes()).splitlines():
        key, equals, value = line.partition("=")
        if not equals or not NAME.fullmatch(key):
            raise RefusedError(f"{path.name}: {shlex.quote(line)}: not a line of KEY=value")
        quoted = len(value) > 1 and value[0] == value[-1] == '"'
        found[key] = value[1:-1] if quoted else value
    return found


def _change(site: Site, request: Request, changes: Mapping[str, str]) -> None:
    for key, value in changes.items():
        if key in KEYS:
            request.options[KEYS[key]] = value
        elif key == "LSB_SUB_COMMAND_LINE":
            request.text, request.is_script = value, False
        elif not site.quirks.unknown_keys_ignored:
            raise RefusedError(f"{key}: unknown key in LSB_SUB_MODIFY_FILE. Job not submitted.")
