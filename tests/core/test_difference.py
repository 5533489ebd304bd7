"""What differs between two JSON documents leads from one to the other, and is small."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hpcext.core.difference import SAME, Difference, apply, difference

plain = st.none() | st.booleans() | st.integers(-3, 3) | st.sampled_from([0.0, 1.0, 2.5, "", "a"])
documents = st.recursive(
    plain,
    lambda inner: (
        st.lists(inner, max_size=6) | st.dictionaries(st.sampled_from("abcd"), inner, max_size=4)
    ),
    max_leaves=20,
)


def told(change: Difference) -> Difference:
    """As another process reads it."""
    return msgspec.json.decode(msgspec.json.encode(change), type=Difference)


@given(documents, documents)
def test_it_leads_from_any_document_to_any_other(old: Any, new: Any) -> None:
    before = json.dumps(old)
    assert apply(old, told(difference(old, new))) == new
    assert json.dumps(old) == before


@given(documents)
def test_of_the_same_document_it_is_nothing(old: Any) -> None:
    assert difference(old, json.loads(json.dumps(old))) == SAME
    assert apply(old, SAME) is old


@pytest.mark.parametrize("at", [0, 5000, 9999])
def test_of_a_large_document_it_says_what_changed(at: int) -> None:
    """As that of Tiresias: what each job has had, and queues of jobs."""
    ids = [str(number) for number in range(10_000)]
    old = {"service": dict.fromkeys(ids, 0.5), "queues": [ids, []], "at_s": 1.0}
    other = [name for name in ids if name != str(at)]
    service = old["service"] | {str(at): 7.5}
    new = {"service": service, "queues": [other, [str(at)]], "at_s": 2.0}
    change = difference(old, new)
    assert apply(old, told(change)) == new
    assert len(msgspec.json.encode(change)) < 300
