"""The table of dependencies is that of setup.cfg, and says of each why it is there."""

from __future__ import annotations

import configparser
import re
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).parents[2]


def names(lines: str) -> list[str]:
    return [re.split(r"[ <>=;\[]", line)[0] for line in lines.splitlines() if line]


def test_the_table_is_that_of_the_package() -> None:
    setup = configparser.ConfigParser()
    setup.read(ROOT / "setup.cfg")
    wanted: dict[str, set[str]] = defaultdict(set)
    for extra, lines in setup["options.extras_require"].items():
        for name in names(lines):
            # Ours stands for other extras of ours.
            if name != "hpcext":
                wanted[name].add(extra)
    for name in names(setup["options"]["install_requires"]):
        wanted[name] = {"core"}
    text = (ROOT / "docs" / "dependencies.md").read_text(encoding="utf-8")
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in text.splitlines()
        if line.startswith("| ")
    ][1:]
    assert {name: set(extras.split(", ")) for name, extras, *_ in rows} == wanted
    assert len(rows) == len(wanted)
    assert all(reason and licence for _, _, reason, licence in rows)
