"""Record the directory of a pilot as a release leaves it, for test_upgrade.py.

``python tests/run/record_pilot.py`` writes ``recorded/VERSION``, once for each release, before it
is published: a manager that was killed, whose first job had ended, whose second ran, and whose
third waited for that. Nothing in it names this machine.
"""

from __future__ import annotations

import json
import os
import re
import signal
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE.parents[1]), str(HERE.parent)]

from site_of_test import Site, wait_for  # noqa: E402

from hpcext import __version__  # noqa: E402

JOBS = (
    {"name": "done", "command": "true"},
    {"name": "running", "command": ["sleep", "0.1"], "gpus": {"min": 1, "max": 2}},
    {"name": "after", "command": "true", "after": "running"},
)
KEPT = ("pilot.json", "journal.jsonl", "submissions/first.json")


def record(place: Path) -> dict[str, str]:
    """Run the pilot, and return the files that are kept, by their names."""
    place.mkdir(exist_ok=True)
    site = Site(place)
    # As long as it takes to see it run; whoever goes on with the pilot has it for a moment.
    long = {**JOBS[1], "command": ["sleep", "1000"]}
    site.write_jobs(JOBS[0], long, JOBS[2])
    manager = site.start("run", "jobs.toml", "--gpus", "2", "--dir", str(site.pilot))
    states = ["completed", "running", "pending"]

    def is_so() -> bool:
        said = site.run("status", str(site.pilot), "--json")
        return not said.code and [job["state"] for job in json.loads(said.out)["jobs"]] == states

    wait_for(is_so, "one job that has ended, and one that runs")
    manager.send_signal(signal.SIGKILL)
    manager.communicate()
    site.kill_left_behind()
    found = {name: (site.pilot / name).read_text() for name in KEPT}
    return {name: unnamed(text, place) for name, text in found.items()}


def unnamed(text: str, place: Path) -> str:
    """Take out what is of this machine."""
    profiles = re.search(r'"profiles":"([^"]*)"', text)
    if profiles:
        text = text.replace(profiles[1], "@PROFILES@")
    text = text.replace('["sleep","1000"]', '["sleep","0.1"]')
    node = os.uname().nodename.partition(".")[0]
    text = re.sub(rf"\b{re.escape(node)}\b", "there", text)
    text = text.replace(str(place), "/")
    assert str(place) not in text
    return text


def write(found: dict[str, str], to: Path) -> None:
    for name, text in found.items():
        (to / name).parent.mkdir(parents=True, exist_ok=True)
        (to / name).write_text(text)


def main() -> int:
    to = HERE / "recorded" / __version__
    if to.exists():
        print(f"{to} is there: a release that was published does not change", file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory() as place:
        found = record(Path(place))
    write(found, to)
    print(f"written: {to}; look at it, and commit it")
    return 0


if __name__ == "__main__":
    sys.exit(main())
