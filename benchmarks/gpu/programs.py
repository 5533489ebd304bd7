"""Part 8: other frameworks on a GPU: sessions of JAX, and programs that know nothing of hpcext."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from machine import Gpu, Watch
from part import NOT_ASKED, Bench, Part

from hpcext.protocol import Attempt

NATIVE = {"lightning": "lightning", "transformers": "transformers", "accelerate": "accelerate"}
"""Question → package; each is a program of ``tests/native``."""

STEPS, TIMES = 400, 2
SUSPENDED_AT = 11


def run(bench: Bench) -> None:
    """Find the answers."""
    bench.ask(lambda: _all(bench), "jax", *NATIVE)


def _all(bench: Bench) -> None:
    """Ask all of them at once: each takes long to begin, and none is about time."""
    with ThreadPoolExecutor() as pool, Watch(Gpu()) as watch:
        asked = [pool.submit(_native, bench, name, watch) for name in NATIVE]
        asked.append(pool.submit(_jax, bench))
        for each in asked:
            each.result()


def _native(bench: Bench, name: str, watch: Watch) -> None:
    if importlib.util.find_spec(NATIVE[name]) is None:
        bench.answer(name, NOT_ASKED, f"{NATIVE[name]} is missing")
        return
    sys.path.append(str(Path(__file__).parents[2] / "tests" / "native"))
    import test_programs  # noqa: PLC0415

    place = bench.scratch / name
    place.mkdir()
    program = test_programs.SLOW[name]._replace(steps=STEPS)
    figures: dict[str, Any] = {}
    try:
        course = test_programs.suspended(place, program, TIMES, 1, gpu=not bench.rehearse)
        says, done = "", course.suspensions == TIMES
        figures = {
            "suspensions": course.suspensions,
            "lost_steps": course.lost,
            "lost_s": [end["checkpoint"]["lost_s"] for end in course.ends[:-1]],
        }
    except AssertionError as error:
        says, done = str(error)[-300:], False
    log = (place / "log.txt").read_text()[-3000:]
    print(f"--- {name}", log, sep="\n", flush=True)
    seen = max((len(each.pids) for each in watch.seen), default=0)
    bench.answer(name, done, says, **figures, most_on_the_gpu_at_once=seen)


def _jax(bench: Bench) -> None:
    """Suspend a session of JAX, and have it end with the bits of one that was not."""
    environ = {**os.environ, "XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
    environ["XLA_FLAGS"] = "--xla_gpu_deterministic_ops=true"
    if bench.rehearse:
        # The stand-in's folder, where JAX seems to be missing to make the doctor quick.
        paths = environ["PYTHONPATH"].split(os.pathsep)
        environ["PYTHONPATH"] = os.pathsep.join(each for each in paths if "absent" not in each)
        environ["JAX_PLATFORMS"] = "cpu"
    find = [sys.executable, "-c", "import jax"]
    if subprocess.run(find, env=environ, capture_output=True, check=False).returncode:
        bench.answer("jax", NOT_ASKED, "JAX is missing")
        return
    place = bench.scratch / "jax"
    place.mkdir()

    def begin(name: str, attempt: int, *words: object) -> subprocess.Popen[bytes]:
        here = place / f"{name}-{attempt}"
        here.mkdir()
        told = Attempt("jax", attempt, attempt, place / f"{name}-checkpoint", here, 1)
        return subprocess.Popen(
            bench.script("jaxed", "--result", place / f"{name}.result", *words),
            env={**environ, **told.environ()},
            stdin=subprocess.DEVNULL,
        )

    together = [begin("straight", 1), begin("suspended", 1, "--suspend-at", SUSPENDED_AT)]
    codes = [each.wait(bench.left_s) for each in together]
    early = (place / "suspended.result").exists()
    codes.append(begin("suspended", 2).wait(bench.left_s))
    straight, suspended = (
        json.loads((place / f"{name}.result").read_text()) for name in ("straight", "suspended")
    )
    same = straight["digest"] == suspended["digest"] and straight["step"] == suspended["step"]
    bench.answer(
        "jax",
        same and suspended["resumed"] and not early,
        f"on {suspended['device']}, suspended after step {SUSPENDED_AT} of {suspended['step']}",
        codes=codes,
        digests=[each["digest"][:12] for each in (straight, suspended)],
    )


_ASKS = "Does a program with {} go on as its preset promises, if it is suspended twice?"

PART = Part(
    "programs",
    "8. Other frameworks",
    90.0,
    40.0,
    {
        "jax": "Does a session of JAX end with the same bits if it is suspended and resumed?",
        "lightning": _ASKS.format("Lightning's Trainer"),
        "transformers": _ASKS.format("the Trainer of transformers"),
        "accelerate": _ASKS.format("accelerate"),
    },
    run,
)
