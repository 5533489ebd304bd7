"""A journal as a manager writes it who is told facts, and whose policy answers at once."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from hpcext.core.engine import answer_of
from hpcext.core.facts import Fact
from hpcext.manager.journal import Header, Journal
from hpcext.policies import find_policy


def tell(path: Path, header: Header, *steps: tuple[float, Iterable[Fact]]) -> None:
    """Begin a journal, or go on with it."""
    book, policy = Journal(path, header), find_policy(header.policy)
    engine = book.past().replay()
    for now_s, facts in steps:
        told = tuple(facts)
        book.append(now_s, told)
        engine.step(now_s, told)
        while (wanted := engine.wants) is not None:
            decided = engine.answer(answer_of(policy, wanted.now), terse=True)
            book.append(now_s, (decided,))
            engine.step(now_s, (decided,))
    book.close()
