"""Plays seeds of the virtual machine room.

::

    python -m tests.virtual 17              one seed, with its story
    python -m tests.virtual 0-9999          many, on all processors; those that fail are shrunk
    python -m tests.virtual --room pilot 17 a pilot in a job of a virtual Slurm; lsf-pilot: of LSF
    python -m tests.virtual --tells "has restarted" 0-99   which of them tell that, and how often
    python -m tests.virtual --guided 0-9999 as many plays, with faults chosen by what they lead to
    python -m tests.virtual --mutants       which planted bugs are found, and within how many seeds
"""

from __future__ import annotations

import argparse
import hashlib
import os
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOMS = ("local", "ranks", "pilot", "harvest", "spread", "lsf-pilot", "lsf-harvest")


def main() -> int:
    """Read the arguments."""
    if os.environ.get("PYTHONHASHSEED") != "0":
        # Sets of words are in another order each time otherwise, and no seed comes out alike.
        again = [sys.executable, "-m", "tests.virtual", *sys.argv[1:]]
        return subprocess.run(
            again, env={**os.environ, "PYTHONHASHSEED": "0"}, cwd=HERE.parent.parent, check=False
        ).returncode
    parser = argparse.ArgumentParser(prog="python -m tests.virtual", description=__doc__)
    parser.add_argument(
        "seeds", nargs="?", default="0-999", help="SEED or FIRST-LAST, or more: 3,7-9"
    )
    parser.add_argument("--room", choices=ROOMS, default="local", help="its kind")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes")
    parser.add_argument("--mutants", nargs="*", metavar="NAME", help="planted bugs; all by default")
    parser.add_argument("--mutant", default="", help=argparse.SUPPRESS)
    parser.add_argument("--guided", action="store_true", help="choose faults by what they lead to")
    parser.add_argument("--until-found", action="store_true", help="stop at the first that fails")
    parser.add_argument("--digest", action="store_true", help="print a digest of each story")
    parser.add_argument("--tells", metavar="TEXT", help="say which stories have it in a line")
    args = parser.parse_args()
    sys.path.insert(0, str(HERE.parent))
    seeds = [] if ":" in args.seeds else numbers(args.seeds)
    if args.mutants is not None:
        from virtual import mutants

        return mutants.hunt(args.mutants, seeds, args.jobs, guided=args.guided)
    if args.mutant:
        from virtual import loading, mutants

        loading.plant(mutants.read()[args.mutant])
    if not seeds:
        return repeated(args.room, args.seeds)
    if args.seeds.isdecimal():
        return one(args.room, seeds[0])
    if args.jobs > 1:
        words = [f"--room={args.room}"]
        words += [f"--mutant={args.mutant}"] if args.mutant else []
        words += ["--until-found"] if args.until_found else []
        words += ["--digest"] if args.digest else []
        words += [f"--tells={args.tells}"] if args.tells else []
        words += ["--guided"] if args.guided else []
        return shared(seeds, args.jobs, words)
    by = guide(args.room, seeds[0]) if args.guided else None
    return many(
        args.room,
        seeds,
        by,
        until_found=args.until_found,
        digest=args.digest,
        tells=args.tells or "",
    )


def numbers(text: str) -> list[int]:
    """Return the seeds that a text names."""
    found: list[int] = []
    for part in text.split(","):
        first, _, last = part.partition("-")
        found += range(int(first), int(last or first) + 1)
    return found


def named(seeds: Sequence[int]) -> str:
    """Return the text that names these seeds; not a single number, which would tell its story."""
    whole = list(seeds) == list(range(seeds[0], seeds[-1] + 1))
    return f"{seeds[0]}-{seeds[-1]}" if whole else ",".join(map(str, seeds))


def room_of(kind: str, seed: int) -> Any:
    """Make the room of a seed."""
    if kind == "local":
        from virtual.room import Room

        return Room(seed)
    # The room first: it makes what follows virtual.
    from virtual import room

    assert room
    from virtual import lsf_room, ranks, slurm_room, spread_room

    return {
        "ranks": ranks.RanksRoom,
        "pilot": slurm_room.SlurmRoom,
        "harvest": slurm_room.HarvestRoom,
        "spread": spread_room.HarvestRoom,
        "lsf-pilot": lsf_room.LsfRoom,
        "lsf-harvest": lsf_room.HarvestRoom,
    }[kind](seed)


def guide(kind: str, seed: int) -> Any:
    """Make what chooses the faults of such rooms."""
    room = room_of(kind, seed)
    room.close()
    # Not before: it imports what is virtual by then.
    from virtual.guided import Guide

    return Guide(seed, room.faults.draw, room.faults.until_s)


def repeated(kind: str, name: str) -> int:
    """Play once more what failed with chosen faults, and tell its story."""
    room_of(kind, 0).close()
    from virtual.guided import Play

    try:
        play = Play.parse(name)
    except ValueError as error:
        print(f"{name}: {error}", file=sys.stderr)
        return 2
    return one(kind, *play)


def one(kind: str, seed: int, plan: Sequence[Any] | None = None) -> int:
    """Play a seed, and tell its story."""
    room = room_of(kind, seed)
    wrong = room.play(plan)
    print("\n".join(room.kernel.story))
    for each in wrong:
        print(f"WRONG {each}")
    room.close()
    if wrong:
        print(f"shrunk to: {shrunk(kind, seed, plan)}")
    return int(bool(wrong))


def many(
    kind: str,
    seeds: Iterable[int],
    by: Any = None,
    *,
    until_found: bool = False,
    digest: bool = False,
    tells: str = "",
) -> int:
    """Play seeds, or as many plays that a guide chooses; say which fail, and why."""
    failed = count = 0
    began_s = time.monotonic()
    for number in seeds:
        play = by.choose() if by else None
        seed, plan = play or (number, None)
        room = room_of(kind, seed)
        wrong = room.play(plan)
        room.close()
        if by:
            by.led_to(play, room.kernel.story)
        count += 1
        if digest:
            story = "\n".join(room.kernel.story)
            print(f"digest of {seed}: {hashlib.sha256(story.encode()).hexdigest()}")
        if tells and (lines := sum(tells in line for line in room.kernel.story)):
            print(f"told by {seed}: {lines} times")
        if wrong:
            failed += 1
            print(f"seed {play or seed}: {wrong[0].strip().splitlines()[-1]}", flush=True)
            if until_found:
                break
            print(f"seed {seed}, shrunk: {shrunk(kind, seed, plan)}", flush=True)
    took_s = time.monotonic() - began_s
    print(f"{count} seeds, {failed} failed, {took_s:.1f} s, {count / took_s:.0f} a second")
    return int(failed > 0)


def shrunk(kind: str, seed: int, plan: Sequence[Any] | None = None) -> list[str]:
    """Return the fewest faults with which a seed still fails."""

    def fails(plan: Sequence[Any]) -> bool:
        room = room_of(kind, seed)
        wrong = room.play(plan)
        room.close()
        return bool(wrong)

    room = room_of(kind, seed)
    room.play(plan)
    needed = room.plan
    room.close()
    for fault in list(needed):
        without = [each for each in needed if each is not fault]
        if fails(without):
            needed = without
    return [f"{each.what} at {each.at:.3f} s" for each in needed]


def shared(seeds: Sequence[int], jobs: int, words: Sequence[str]) -> int:
    """Play seeds in several processes."""
    size = -(-len(seeds) // jobs)
    parts = [seeds[at : at + size] for at in range(0, len(seeds), size)]
    children = [
        subprocess.Popen(
            [sys.executable, "-m", "tests.virtual", named(part), "--jobs=1", *words],
            cwd=HERE.parent.parent,
        )
        for part in parts
    ]
    return max(child.wait() for child in children)


if __name__ == "__main__":
    sys.exit(main())
