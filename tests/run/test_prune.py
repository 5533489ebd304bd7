"""``hpcext pilot rm`` and ``hpcext prune``, as a user has them."""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path

import pexpect
import pytest
from site_of_test import Site, wait_for

from hpcext.checks import age_s
from hpcext.core.errors import InputError

DYING = """
import os, signal, sys
from hpcext.cli.main import main
os.rmdir = lambda *a, **k: os.kill(os.getpid(), signal.SIGKILL)
main(sys.argv[1:])
"""


# Other checks import every framework.
DOCTOR = """
import sys
from hpcext.cli import doctor, main
doctor.CHECKS = [check for check in doctor.CHECKS if check.name == "pilots"]
sys.exit(main.main(sys.argv[1:]))
"""


def done(site: Site, name: str) -> Path:
    """A pilot that is over; its directory."""
    site.write_jobs({"name": "one", "command": ["true"]})
    assert site.run("run", str(site.jobs), "--gpus=1", "--name", name).code == 0
    (found,) = (site.path / "state" / "hpcext" / "pilots").glob(f"{name}-*")
    return found


def grow_old(pilot: Path) -> None:
    (pilot / "pilot.json").write_text(
        (pilot / "pilot.json").read_text().replace('"began_at":17', '"began_at":16')
    )
    for name in ("pilot.json", "journal.jsonl"):
        os.utime(pilot / name, (1_600_000_000, 1_600_000_000))


def test_a_pilot_is_removed_once_it_is_over(site: Site) -> None:
    site.write_jobs(site.counter("a", gated=True))
    manager = site.start("run", str(site.jobs), "--gpus=1", "--dir", str(site.pilot))
    wait_for(lambda: site.steps("a"), "a step")
    refused = site.run("pilot", "rm", str(site.pilot), "--yes")
    assert (refused.code, "a manager runs it" in refused.err) == (3, True)
    # Killed, it leaves its training behind, which goes on.
    manager.send_signal(signal.SIGKILL)
    manager.wait(60)
    refused = site.run("pilot", "rm", str(site.pilot), "--yes")
    assert (refused.code, "still runs (pid" in refused.err) == (3, True)
    # Where else one would start a second training beside it.
    assert "ended, 1 job left" in site.run("pilot", "list").out
    told = site.run("status", str(site.pilot)).out
    assert "no manager runs this pilot, but its job 1 still runs (pid" in told
    newer = site.run("run", str(site.jobs), "--gpus=1", "--dry-run")
    assert "of the same file has lost its manager, but its job 1 still runs (pid" in newer.err
    site.open("a")
    assert site.run("run", "--resume", str(site.pilot)).code == 0
    nobody = site.run("pilot", "rm", str(site.pilot))
    assert (nobody.code, "--yes" in nobody.err) == (2, True)
    looked = site.document("pilot", "rm", str(site.pilot), "--dry-run")
    assert looked["schema"] == "hpcext.removed/1"
    (plan,) = looked["pilots"]
    assert (plan["removed"], plan["unfinished_jobs"], looked["dry_run"]) == (False, 0, True)
    assert plan["bytes"] == looked["bytes"] > 0
    assert site.pilot.is_dir()
    assert site.run("pilot", "rm", str(site.pilot), "--yes").code == 0
    assert not site.pilot.exists()
    assert site.run("pilot", "list").out.splitlines()[1:] == []
    assert site.run("pilot", "rm", str(site.pilot), "--yes").code == 3


def test_the_next_one_finishes_what_a_kill_has_interrupted(site: Site) -> None:
    half, other = done(site, "half"), done(site, "other")
    killed = site.run("pilot", "rm", half.name, "--yes", python=("-c", DYING))
    assert killed.code == -signal.SIGKILL
    assert half.is_dir()
    listed = site.run("pilot", "list").out
    assert (half.name in listed, other.name in listed) == (False, True)
    assert site.run("status", half.name).code == 3
    ended = site.run("prune", "--older-than=30d", "--yes")
    assert ended.code == 0
    assert f"the removal of {half.name} was interrupted, and is now finished" in ended.err
    assert not half.exists()
    assert other.is_dir()


def test_old_pilots_are_pruned_and_young_ones_stay(site: Site) -> None:
    old, young = done(site, "old"), done(site, "young")
    grow_old(old)
    assert "there is nothing to remove" in site.run("prune", "--older-than=5000w").out
    looked = site.run("prune", "--older-than=30d", "--keep-checkpoints=none", "--dry-run")
    assert looked.code == 0
    assert f"{old.name}  all of it" in looked.out
    assert "of 1 pilot would be removed" in looked.out
    assert old.is_dir()
    kept = site.run("prune", "--older-than=30d", "--yes")
    assert "1 part" in kept.out
    assert not list(old.glob("jobs/*/attempt-*"))
    assert site.run("status", old.name).code == 0
    gone = site.document("prune", "--older-than=30d", "--keep-checkpoints=none", "--yes")
    assert [each["removed"] for each in gone["pilots"]] == [True]
    assert not old.exists()
    assert young.is_dir()


@pytest.mark.parametrize(("answer", "goes"), [("n", False), ("", False), ("y", True)])
def test_who_sits_at_a_terminal_is_asked(site: Site, answer: str, goes: bool) -> None:
    pilot = done(site, "mine")
    terminal = pexpect.spawn(
        sys.executable, ["-m", "hpcext", "pilot", "rm", pilot.name],
        env=site.environ, encoding="utf-8", timeout=500, cwd=str(site.path),
    )  # fmt: skip
    terminal.expect(r"Remove .* of 1 pilot\? \[y/N\] ")
    assert pilot.is_dir()
    terminal.sendline(answer)
    terminal.expect("removed .*iB" if goes else "nothing was removed")
    terminal.expect(pexpect.EOF)
    terminal.close()
    assert terminal.exitstatus == 0
    assert pilot.exists() is not goes


def diagnosed(site: Site) -> dict[str, str]:
    """What the doctor finds of pilots."""
    said = site.run("doctor", "--json", python=("-c", DOCTOR))
    (found,) = json.loads(said.out)["findings"]
    assert found["name"] == "pilots"
    return dict(found)


def test_sizes_are_listed_and_old_pilots_are_a_finding(site: Site) -> None:
    pilot = done(site, "old")
    head, row = site.run("pilot", "list").out.splitlines()
    assert head.split() == ["pilot", "job", "state", "size", "directory"]
    assert " KiB " in row
    assert " ended  " in row
    found = diagnosed(site)
    assert found["verdict"] == "ok"
    assert found["says"].startswith("1 pilot with ")
    grow_old(pilot)
    found = diagnosed(site)
    assert found["verdict"] == "note"
    assert "hpcext prune --older-than 30d" in found["do"]


@pytest.mark.parametrize(
    "text", ["", "30", "d", "-1d", "1.5d", "1y", "999992000w", "\x1b[2J", "٣d"]
)
def test_invalid_ages_are_refused(text: str) -> None:
    with pytest.raises(InputError, match="--older-than") as refused:
        age_s(text, "--older-than")
    assert str(refused.value).isprintable()


def test_ages() -> None:
    assert [age_s(text, "--older-than") for text in ("0s", "2m", "12h", "30d", "2w")] == [
        0.0, 120.0, 43_200.0, 2_592_000.0, 1_209_600.0,
    ]  # fmt: skip
