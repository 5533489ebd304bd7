"""Job files that hpcext writes itself."""

from __future__ import annotations

import pytest

from hpcext import jobfields
from hpcext.jobtext import allowed_name


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("train", "train"),
        ("my net: 3", "my_net__3"),
        ("\u8bad\u7ec3-3", "job-3"),
        ("\u8bad\u7ec3", "job"),
        ("7", "job-7"),
        ("", "job"),
        ("--x--", "x"),
        ("a" * 200, "a" * jobfields.MAX_NAME_CHARS),
        ("1" * 200, ("job-" + "1" * 200)[: jobfields.MAX_NAME_CHARS]),
    ],
)
def test_any_text_makes_a_name_that_a_job_file_takes(text: str, name: str) -> None:
    assert allowed_name(text, "job") == name
    assert jobfields.name(name) == name
