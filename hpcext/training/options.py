"""The keyword arguments of a session that are not objects to save."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Collection, Iterator, Mapping
from typing import Any


def collected(unsaved: Any) -> Collection[Any] | None:
    """Return the objects that are deliberately not saved; None for any."""
    if isinstance(unsaved, bool):
        return None if unsaved else ()
    # Only these types, since a module that contains modules is a collection too.
    return tuple(unsaved) if isinstance(unsaved, list | tuple | set | frozenset) else (unsaved,)


def refuse_misspelt(state: Mapping[str, Any], kind: type) -> None:
    """Raise TypeError for a number or text among the objects, which is a misspelt option.

    Parameters
    ----------
    state : Mapping[str, Any]
        Objects to save, by name.
    kind : type
        The class of the session.
    """
    options = {name for each in kind.__mro__[:-1] for name in _options(each)}
    for name, value in state.items():
        if isinstance(value, bool | int | float | str):
            near = difflib.get_close_matches(name, sorted(options), n=1)
            hint = f"did you mean {near[0]}?" if near else f"valid: {', '.join(sorted(options))}"
            raise TypeError(f"Session({name}={value!r}): no such option; {hint}")


def _options(kind: type) -> Iterator[str]:
    """Yield the keyword-only parameters of a class."""
    for name, each in inspect.signature(kind).parameters.items():
        if each.kind is each.KEYWORD_ONLY:
            yield name
