"""``hpcext`` with one policy more, *slow*: it answers so many questions, then thinks for an hour.

``SLOW_ANSWERS`` says how many. It is marble's answer, and all thinking is done in Python, so that a
thread of the manager would hold it up, too.
"""

from __future__ import annotations

import os
import sys
import time

from msgspec.structs import replace

from hpcext import __main__, policies, seams
from hpcext.core.values import Snapshot, Target
from hpcext.policies import marble


def allocate(now: Snapshot) -> Target:
    answered = (now.memo or {}).get("answered", 0)
    if answered >= int(os.environ["SLOW_ANSWERS"]):
        until_s = time.monotonic() + 3600
        while time.monotonic() < until_s:
            time.sleep(0.01)
    return replace(marble.allocate(now), memo={"answered": answered + 1})


INSTALLED = seams.names


def names(group: str) -> tuple[str, ...]:
    return (*INSTALLED(group), "slow") if group == seams.POLICIES else INSTALLED(group)


policies.POLICIES["slow"] = policies.Known(__name__)
seams.names = names

if __name__ == "__main__":
    sys.exit(__main__.main())
