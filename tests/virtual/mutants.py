"""Bugs to be planted one by one: a room that finds none of them would prove nothing.

Each changes one line or a few of a module of ours, as it is imported; the file is left alone.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent.parent


class Mutant(NamedTuple):
    """A planted bug: in which module, what is replaced by what."""

    module: str
    old: str
    new: str


ALL: dict[str, Mutant] = {
    "checkpoint: its directory is not synchronised": Mutant(
        "hpcext.training.checkpoint.store",
        "        sync_directory(self.directory)\n        return Checkpoint",
        "        return Checkpoint",
    ),
    "checkpoint: files are not synchronised": Mutant(
        "hpcext.training.checkpoint.hashing", "os.fsync(", "(lambda _fd: None)("
    ),
    "checkpoint: the manifest is not synchronised": Mutant(
        "hpcext.training.checkpoint.store", "            os.fsync(file.fileno())\n", ""
    ),
    "checkpoint: an older attempt is not fenced off": Mutant(
        "hpcext.training.checkpoint.store", "if newest > self.attempt:", "if False:"
    ),
    "checkpoint: the oldest one is resumed from": Mutant(
        "hpcext.training.checkpoint.store", "sorted(found, reverse=True)", "sorted(found)"
    ),
    "checkpoint: pruned before the new one is there": Mutant(
        "hpcext.training.checkpoint.store", "whole[self._keep :]", "whole[:1]"
    ),
    "session: acknowledges before it has saved": Mutant(
        "hpcext.training.coordinator",
        "            checkpoint = self.write(write)\n        except (OSError, CheckpointError)",
        "            checkpoint = self.store.newest()\n        except (OSError, CheckpointError)",
    ),
    "session: leaves though it could not save": Mutant(
        "hpcext.training.coordinator", "        if outcome == SAVED:", "        if True:"
    ),
    "session: a request at the last step is taken twice": Mutant(
        "hpcext.training.signals",
        "return self._flag or SUSPEND_SIGNAL in signal.sigpending()",
        "return False",
    ),
    "supervisor: two may take one attempt": Mutant(
        "hpcext.launch.supervisor_files",
        "            except FileExistsError:\n                return False",
        "            except FileExistsError:\n                pass",
    ),
    "supervisor: does not reap orphans": Mutant(
        "hpcext.launch.supervisor", "        command.become_reaper()\n", ""
    ),
    "supervisor: its command outlives it": Mutant(
        "hpcext.launch.command", "    hear_of_parent(signal.SIGKILL)\n    if", "    if"
    ),
    "supervisor: a signal kills the command": Mutant(
        "hpcext.launch.command",
        "signal.pthread_sigmask(signal.SIG_SETMASK, blocked)",
        "signal.pthread_sigmask(signal.SIG_SETMASK, ())",
    ),
    "supervisor: does not write down its end": Mutant(
        "hpcext.launch.supervisor", "self._files.record(self._end_of(code, suspended=suspended))", "pass"
    ),
    "supervisor: reports a suspension as a completion": Mutant(
        "hpcext.launch.supervisor", "suspended = self._files.suspended()\n        # No child", "suspended = False\n        # No child"
    ),
    "executor: starts what runs already": Mutant(
        "hpcext.executors.processes",
        "launched = os.path.exists(files.directory / LAUNCH_FILE)",
        "launched = False",
    ),
    "executor: a GPU is free too early": Mutant(
        "hpcext.executors.local",
        "held = {gpu for watch in self._watches.values() for gpu in watch.gpus}",
        "held = {gpu for watch in list(self._watches.values())[1:] for gpu in watch.gpus}",
    ),
    "executor: what a dead supervisor left is not swept": Mutant(
        "hpcext.executors.local",
        "        while await asyncio.to_thread(tree.kill_marked, marks, watch.victims):\n            await asyncio.sleep(pause_s)\n            pause_s = min(2 * pause_s, SWEEP_PAUSE_MAX_S)\n",
        "",
    ),
    "executor: an end that was recorded is not read": Mutant(
        "hpcext.executors.processes", "elif ended := watch.files.ended():", "elif ended := None:"
    ),
    "processes: a pid that is used again is signalled": Mutant(
        "hpcext.protocol", "        if self.alive():\n            return fd", "        if True:\n            return fd"
    ),
    "processes: a zombie is alive": Mutant(
        "hpcext.protocol", 'return None if fields[0] in "ZX" else', "return None if False else"
    ),
    "tree: a pid that is used again is signalled": Mutant(
        "hpcext.launch.tree",
        "if facts is None or facts[1] != process.start:",
        "if facts is None:",
    ),
    "journal: acts before it has written": Mutant(
        "hpcext.manager.driver",
        '            log.warning("%s", error)\n            self._retry_s = now_s + RETRY_S\n            return\n',
        '            log.warning("%s", error)\n            self._retry_s = now_s + RETRY_S\n',
    ),
    "journal: is not synchronised": Mutant(
        "hpcext.manager.journal", "os.fdatasync(self._fd)", "None"
    ),
    "journal: half a line stays": Mutant(
        "hpcext.manager.journal",
        "            os.ftruncate(self._fd, self._size)\n            reason",
        "            reason",
    ),
    "journal: a torn line is kept": Mutant(
        "hpcext.manager.journal", "            os.ftruncate(self._fd, self._size)\n        else", "        else"
    ),
    "journal: a step is not written down": Mutant(
        "hpcext.manager.driver", "        self._journal.note(now_s, facts)\n", "        if facts:\n            self._journal.note(now_s, facts[:1])\n"
    ),
    "documents: replaced before they are written": Mutant(
        "hpcext.documents", "        os.replace(name, path)\n", "        os.replace(name, path)\n        os.unlink(path)\n"
    ),
    "documents: not synchronised": Mutant(
        "hpcext.documents", "            if durable:\n                os.fsync(fd)\n", ""
    ),
    "manager: two run one pilot": Mutant(
        "hpcext.manager.locks",
        "    except filelock.Timeout:\n        raise LockedError from None",
        "    except filelock.Timeout:\n        yield\n        return",
    ),
    "manager: news is not heard": Mutant(
        "hpcext.manager.driver", "loop.add_signal_handler(NEWS_SIGNAL, self._on_news)", "loop.add_signal_handler(NEWS_SIGNAL, lambda: None)"
    ),
    "manager: a request is done twice": Mutant(
        "hpcext.manager.driver",
        "            for facts, answer in self._requests() if not self._answers else ():",
        "            for facts, answer in self._requests():",
    ),
}  # fmt: skip


def hunt(names: Sequence[str], seeds: range, jobs: int) -> int:
    """Plant bugs one by one; say which are found, and by which seed."""
    chosen = {name: each for name, each in ALL.items() if not names or name in names}
    wrong = [name for name, each in chosen.items() if not _fits(each)]
    for name in wrong:
        print(f"{name}: does not fit the module any more")
    found = 0

    def one(name: str) -> tuple[str, str, float]:
        began_s = time.monotonic()
        words = [
            sys.executable, "-m", "tests.virtual", f"{seeds[0]}-{seeds[-1]}", "--jobs=1",
            "--until-found", f"--mutant={name}",
        ]  # fmt: skip
        ended = subprocess.run(
            words, cwd=ROOT, capture_output=True, text=True, check=False, env=dict(os.environ)
        )
        lines = [line for line in ended.stdout.splitlines() if line.startswith("seed ")]
        said = lines[0] if lines else ended.stderr.strip().splitlines()[-1:] or "not found"
        return name, str(said), time.monotonic() - began_s

    with ThreadPoolExecutor(jobs) as pool:
        for name, said, took_s in pool.map(one, [name for name in chosen if name not in wrong]):
            found += said.startswith("seed ")
            print(f"{name}: {said} ({took_s:.0f} s)", flush=True)
    print(f"{found} of {len(chosen)} found")
    return int(found < len(chosen))


def _fits(mutant: Mutant) -> bool:
    path = ROOT / f"{mutant.module.replace('.', '/')}.py"
    return mutant.old != mutant.new and mutant.old in path.read_text(encoding="utf-8")


_: Iterable[str] = ()
