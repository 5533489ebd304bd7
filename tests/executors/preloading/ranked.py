"""A module that asks for its rank as it is imported, as Lightning does."""

from __future__ import annotations

import os

RANK = os.environ.get("LOCAL_RANK")
