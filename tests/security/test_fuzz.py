"""Every parser of what comes from outside, given damaged input: an answer, or one line of refusal.

Nothing else may come out of it: no other exception, no endless loop. In the default run each
parser has a hundred inputs; in the slow one a thousand, or as many as ``FUZZ_INPUTS`` says:
``FUZZ_INPUTS=100000 pytest -m slow tests/security/test_fuzz.py``.
"""

from __future__ import annotations

import contextlib
import os
import struct
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, given, note, settings
from hypothesis import strategies as st
from parsers import PARSERS

from hpcext.core.errors import HpcextError

TOKENS = (
    b"", b"\n", b"\0", b"\xff", b"\xed\xa0\x80", b"\x1b[2J", b"-1", b"0", b"9" * 400, b"9" * 5000,
    b"1e999", b"nan", b"inf", b"-", b"|", b",", b"=", b'"', b"'", b"[", b"]]", b"{", b"}", b"null",
    b"true", b"../..", b"n[1-99999999999]", b"%s", "\u0663".encode(), "\u2028".encode(), b"\r",
    b"\t", b":", b"9" * 18, b"9" * 19, b"-0", b"-0.0", b"1e308", b"1_000", b"999999999-23:59:59",
    b"0001-01-01T00:00:00", b"9999-12-31T23:59:59", b"\\ud800", b'"\\udc00\\ud800"', b"[" * 3000,
    b'{"a":' * 3000, b"a.b=" * 1500, b"a" * 5000,
)  # fmt: skip

TOGETHER = 25
"""So many inputs are one example: Hypothesis's own work for an example is ten times a parser's."""

EDIT = struct.Struct(">HBB")
"""Where, how many bytes are taken out there, and what is put in their place. From one draw of
bytes: a strategy for each would take ten times as long as what is tested."""


def damaged(seed: bytes, edits: bytes) -> bytes:
    for where, less, more in EDIT.iter_unpack(edits[: len(edits) // EDIT.size * EDIT.size]):
        at = where * (len(seed) + 1) >> 16
        # The last of the bytes, which no text has, stand for tokens.
        token = bytes([more]) if more < 256 - len(TOKENS) else TOKENS[more - 256]
        # Some cut off what follows.
        seed = seed[:at] + token + (seed[at + less % 13 :] if less < 240 else b"")
    return seed


def fuzz(name: str, folder: Path, inputs: int) -> None:
    parser = PARSERS[name]
    path = folder / "input"

    @settings(
        max_examples=inputs // TOGETHER,
        deadline=None,
        database=None,
        phases=(Phase.generate, Phase.shrink),
        suppress_health_check=list(HealthCheck),
    )
    @given(drawn=st.binary(min_size=5 * TOGETHER, max_size=25 * TOGETHER))
    def each(drawn: bytes) -> None:
        for one in range(TOGETHER):
            which, edits = drawn[one], drawn[one + TOGETHER :: TOGETHER]
            given = damaged(parser.seeds[which % len(parser.seeds)], edits)
            path.write_bytes(given)
            try:
                parser.takes(path)
            except HpcextError:
                pass
            except BaseException:
                note(f"the input: {given!r}")
                raise

    good = 0
    for seed in parser.seeds:
        path.write_bytes(seed)
        with contextlib.suppress(HpcextError):
            parser.takes(path)
            good += 1
    assert good, "no seed is good input, so most would be refused at once"
    each()


@pytest.mark.parametrize("name", PARSERS)
def test_damaged_input_is_refused_or_read(name: str, tmp_path: Path) -> None:
    fuzz(name, tmp_path, 100)


@pytest.mark.slow
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("name", PARSERS)
def test_much_damaged_input_is_refused_or_read(name: str, tmp_path: Path) -> None:
    fuzz(name, tmp_path, int(os.environ.get("FUZZ_INPUTS", "1000")))
