"""The difference between two JSON documents, which is what the journal keeps of a memo.

A memo may say something of each of 10,000 jobs, and a decision changes it for a few of them. RFC
7396 (JSON Merge Patch) does not do: it has no way to set null, and replaces lists as a whole.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
from msgspec import UNSET, UnsetType


class Difference(msgspec.Struct, frozen=True, omit_defaults=True):
    """A change of one document into another; by default it changes nothing.

    Attributes
    ----------
    value : Any
        The new document, where it is another as a whole.
    keys : Mapping[str, Difference]
        Of an object: what changes, by key. Of a list: by index, the part from `start` to `stop`.
    gone : tuple of str
        Keys of an object that it has no more.
    start, stop : int
        Of a list: `items` take the place of this part.
    items : list or None
    """

    value: Any | UnsetType = UNSET
    keys: Mapping[str, Difference] = {}
    gone: tuple[str, ...] = ()
    start: int = 0
    stop: int = 0
    items: list[Any] | None = None


SAME = Difference()


def difference(old: Any, new: Any) -> Difference:
    """Find how a document becomes another, or one that is equal to it, as 1 is to 1.0.

    Parameters
    ----------
    old, new : Any
        JSON: objects with keys that are strings, lists, strings, numbers, booleans and None.

    Examples
    --------
    >>> difference({"a": 1, "b": [1, 2, 3]}, {"a": 1, "b": [1, 3]}).keys["b"]
    Difference(start=1, stop=2, items=[])
    """
    if isinstance(old, dict) and isinstance(new, dict):
        keys = {
            key: difference(old[key], value) if key in old else Difference(value)
            for key, value in new.items()
            if key not in old or old[key] != value
        }
        return Difference(keys=keys, gone=tuple(old.keys() - new.keys()))
    if isinstance(old, list) and isinstance(new, list):
        return _of_lists(old, new)
    return SAME if old == new else Difference(new)


def _of_lists(old: list[Any], new: list[Any]) -> Difference:
    """Leave out what both begin and end with; go into the rest where it is as long."""
    fewer, start = min(len(old), len(new)), 0
    while start < fewer and old[start] == new[start]:
        start += 1
    end = 0
    while end < fewer - start and old[-1 - end] == new[-1 - end]:
        end += 1
    stop, items = len(old) - end, new[start : len(new) - end]
    if len(items) != stop - start:
        return Difference(start=start, stop=stop, items=items)
    keys = {
        str(at): difference(old[at], new[at]) for at in range(start, stop) if old[at] != new[at]
    }
    return Difference(keys=keys)


def apply(old: Any, change: Difference) -> Any:
    """Make the new document of an old one, which stays as it is."""
    if change.value is not UNSET:
        return change.value
    if change == SAME:
        return old
    if isinstance(old, list):
        made = list(old)
        if change.items is not None:
            made[change.start : change.stop] = change.items
        for key, each in change.keys.items():
            made[int(key)] = apply(old[int(key)], each)
        return made
    kept = {key: value for key, value in old.items() if key not in change.gone}
    return kept | {key: apply(kept.get(key), each) for key, each in change.keys.items()}
