"""A part of the benchmarks on a GPU: what it asks, and what it has to find answers with."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

FORKS = {"PYTORCH_NVML_BASED_CUDA_CHECK": "1"}
"""Variables of a process whose forks use the GPU: to look whether there is one must not open it."""

HERE = Path(__file__).parent
SCRIPTS = HERE / "scripts"

YES, NO, MEASURED, NOT_ASKED = "yes", "no", "measured", "not asked"
VERDICTS = (YES, NO, MEASURED, NOT_ASKED)


class Part(NamedTuple):
    """A part, which runs in a process of its own.

    Attributes
    ----------
    name, title : str
    limit_s : float
        How long it may take.
    least_s : float
        With less time than this it is not begun.
    questions : Mapping of str to str
        Name → what is asked; written down before anything is measured.
    run : callable
        Finds the answers.
    """

    name: str
    title: str
    limit_s: float
    least_s: float
    questions: Mapping[str, str]
    run: Callable[[Bench], None]


class Bench:
    """What a part that runs has.

    Parameters
    ----------
    part : Part
    work : pathlib.Path
        Where all parts put what they need only meanwhile.
    limit_s : float
    rehearse : bool
        Whether stand-ins take the place of GPU, NVML and CUDA.
    only : collection of str, optional
        The questions to ask; by default all.

    Attributes
    ----------
    scratch : pathlib.Path
        A directory of this part.
    failed : bool
        Whether a question could not be answered for a reason that nobody had foreseen.
    """

    def __init__(
        self, part: Part, work: Path, limit_s: float, *, rehearse: bool, only: Collection[str] = ()
    ) -> None:
        self.part, self.rehearse, self._only = part, rehearse, only
        self.scratch = work / part.name
        self.scratch.mkdir(parents=True, exist_ok=True)
        self._answers = answers_of(work, part.name)
        self._end_s = time.monotonic() + limit_s
        self.failed = False

    @property
    def left_s(self) -> float:
        """Seconds until this part is ended."""
        return self._end_s - time.monotonic()

    def patience_s(self, usual_s: float) -> float:
        """Return how long to wait for what usually takes no longer than this: the machine of a
        rehearsal may be busy."""
        return usual_s * (10 if self.rehearse else 1)

    def answer(self, question: str, verdict: str | bool, says: str = "", **figures: Any) -> None:
        """Write down an answer, which stays whatever becomes of the part."""
        if question not in self.part.questions:
            raise KeyError(question)
        if isinstance(verdict, bool):
            verdict = YES if verdict else NO
        found = {"question": question, "verdict": verdict, "says": says, "figures": figures}
        with self._answers.open("a") as file:
            file.write(json.dumps(found) + "\n")
        print(f"[{self.part.name}] {question}: {verdict}; {says} {figures or ''}", flush=True)

    def ask(self, find: Callable[[], object], *questions: str) -> None:
        """Find the answers to some questions, if any of them is to be asked.

        The part goes on with others if these cannot be answered, and says why.

        Parameters
        ----------
        find : callable
        *questions : str
        """
        if questions and self._only and not set(questions) & set(self._only):
            return
        try:
            find()
        except Exception as error:
            first = (str(error).splitlines() or [""])[0]
            for each in set(questions) - read_answers(self._answers).keys():
                self.answer(each, NOT_ASKED, f"{type(error).__name__}: {first}"[:300])
            print_error(error)
            self.failed = True

    def script(self, name: str, *words: object) -> list[str]:
        """Return the command that runs a script of the folder ``scripts``."""
        return [sys.executable, str(SCRIPTS / f"{name}.py"), *map(str, words)]

    def run_script(
        self,
        name: str,
        *words: object,
        environ: Mapping[str, str] | None = None,
        limit_s: float | None = None,
    ) -> subprocess.CompletedProcess[str]:
        """Run a script to its end, with what it says in the log.

        Parameters
        ----------
        name : str
        *words
            Its arguments.
        environ : Mapping of str to str, optional
            What it has beside our variables.
        limit_s : float, optional
            By default the time that is left.

        Raises
        ------
        RuntimeError
            It failed; the message is the last line of what it said.
        """
        process = subprocess.Popen(
            self.script(name, *words),
            env={**os.environ, **(environ or {})},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        try:
            out, err = process.communicate(timeout=self.left_s if limit_s is None else limit_s)
        except subprocess.TimeoutExpired:
            # With all that it has forked, which would be on the GPU beside what comes next.
            os.killpg(process.pid, signal.SIGKILL)
            out, err = process.communicate()
            print(err[-8000:], flush=True)
            raise
        done = subprocess.CompletedProcess(process.args, process.returncode, out, err)
        if done.stderr:
            print(done.stderr[-8000:], flush=True)
        if done.returncode:
            last = (done.stderr.strip().splitlines() or [f"it ended with {done.returncode}"])[-1]
            raise RuntimeError(f"{name}: {last}")
        return done


def answers_of(work: Path, name: str) -> Path:
    """Return the file of the answers of a part."""
    return work / f"{name}.answers"


def read_answers(path: Path) -> dict[str, dict[str, Any]]:
    """Read the answers of a part by question; of two to the same the last one counts."""
    if not path.exists():
        return {}
    # A line that the end of its process has cut off is no answer.
    lines = path.read_text().rpartition("\n")[0].splitlines()
    return {found["question"]: found for found in map(json.loads, lines)}


def read_lines(path: Path) -> list[dict[str, Any]]:
    """Read the objects of an account, of which the last may be on its way."""
    if not path.exists():
        return []
    return [json.loads(line) for line in path.read_text().rpartition("\n")[0].splitlines()]


def wait_for(condition: Callable[[], Any], what: str, timeout_s: float) -> Any:
    """Wait until a condition holds and return what it gave; TimeoutError if it never does."""
    deadline = time.monotonic() + timeout_s
    while not (value := condition()):
        if time.monotonic() > deadline:
            raise TimeoutError(f"waited {timeout_s:.0f} s in vain for {what}")
        time.sleep(0.02)
    return value


def print_error(error: BaseException) -> None:
    """Put an error's trace into the log."""
    import traceback  # noqa: PLC0415

    print("".join(traceback.format_exception(error)), flush=True)


def in_words(values: Sequence[object]) -> str:
    """Return a list for a sentence."""
    return ", ".join(map(str, values)) or "none"
