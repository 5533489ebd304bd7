"""A module that takes long to import, as its test has it: each import is written down."""

from __future__ import annotations

import os
from pathlib import Path

with Path(os.environ["IMPORTS"]).open("a", encoding="utf-8") as file:
    file.write(f"{os.getpid()}\n")
# As sklearn does.
os.environ.setdefault("SET_BY_IMPORT", "1")
