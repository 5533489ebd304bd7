"""hpcext-protocol(7): the training in Perl that the page shows is suspended and goes on."""

from __future__ import annotations

import re
import textwrap
from pathlib import Path

from site_of_test import Site, wait_for

from hpcext import protocol

PAGE = (Path(__file__).parents[2] / "man/hpcext-protocol.7.rst").read_text(encoding="utf-8")


def test_the_training_of_the_page(site: Site) -> None:
    (shown,) = re.findall(r"A training in Perl.*?::\n\n(.*?)\n\nIt is run", PAGE, re.S)
    script = site.path / "count.pl"
    script.write_text(textwrap.dedent(shown))
    # Until it has been suspended it does not end, however long that takes.
    end = site.path / "end"
    end.write_text("1000000")
    count = f"exec perl {script} $(cat {end})"
    site.write_jobs({"name": "count", "command": ["sh", "-c", count]})
    manager = site.start("run", str(site.jobs), "--gpus", "1", "--dir", str(site.pilot))

    def job() -> dict[str, object]:
        (found,) = site.document("status", str(site.pilot))["jobs"]
        return dict(found)

    def registered() -> bool:
        reports = list(site.pilot.glob("jobs/*/attempt-0001/report.json"))
        return bool(reports) and '"step":0' not in reports[0].read_text()

    wait_for(registered, "the first step")
    assert site.run("suspend", str(site.pilot), "count").code == 0
    wait_for(lambda: job()["suspends"] == 1, "the suspension")
    (saved,) = site.pilot.glob("jobs/*/checkpoint/count")
    end.write_text(str(int(saved.read_text()) + 20))
    assert site.run("resume", str(site.pilot), "count").code == 0
    out, err = manager.communicate(timeout=500)
    assert manager.returncode == 0, (out, err)
    ended = job()
    assert (ended["state"], ended["attempts"], ended["lost_steps"]) == ("completed", 2, 0)
    (log,) = site.pilot.glob("jobs/*/log.txt")
    assert log.read_text().rstrip().endswith(f"counted to {end.read_text()}")


def test_the_page_has_all_files_and_schemas() -> None:
    names = [name for name in vars(protocol) if name.endswith("_FILE")]
    assert len(names) > 5
    for name in names:
        assert f"``{getattr(protocol, name)}``" in PAGE
        assert f"``{getattr(protocol, name.removesuffix('_FILE'))}``" in PAGE
