"""A site for tests: a broker's world on nodes that exist on paper, without sockets."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

from hpcext.batch.leasing import Idle, Other
from hpcext.broker.account import Account
from hpcext.broker.division import Share
from hpcext.broker.identity import Peer
from hpcext.broker.settings import Settings
from hpcext.broker.site import Site
from hpcext.harvest.leave import Answer, Ask, Trainer
from hpcext.manager.journal import Header, Journal

PARTITION = "harvest"


def harvester_of(user: str) -> str:
    return f"hpcext-{user}-20261124-120000-ab12"


def one_node_trainers(number: int, gpus: int = 4) -> tuple[Trainer, ...]:
    return tuple(Trainer(each, (gpus,), (1, 1)) for each in range(1, number + 1))


class Machine:
    """A site on some nodes of four GPUs, whose time a test passes."""

    def __init__(
        self,
        path: Path,
        nodes: int,
        *,
        clock: Callable[[], float] = time.time,
        **settings: object,
    ) -> None:
        path.mkdir(mode=0o700, exist_ok=True)
        self.path = path
        self.nodes = [f"n{each:04d}" for each in range(nodes)]
        self.waits: list[str] = []
        self.held: dict[str, tuple[str, str]] = {}
        self.now_s = 1000.0
        self.clock = clock
        self.uids: dict[str, int] = {}
        self.settings = Settings(PARTITION, **settings)  # type: ignore[arg-type]
        self.account = Account()
        self.begin()

    def begin(self) -> None:
        """A broker begins, or another one in its place."""
        self.journal = Journal(self.path / "journal.jsonl", Header(began_at=0.0, policy="x"))
        names = {uid: user for user, uid in self.uids.items()}
        self.site = Site(
            self.settings,
            self.journal,
            self.account,
            self.now_s,
            names.__getitem__,
            clock=self.clock,
        )

    def again(self) -> None:
        """The broker dies, and another one begins."""
        self.journal.close()
        self.begin()

    def peer(self, user: str) -> Peer:
        return Peer(self.uids.setdefault(user, 5000 + len(self.uids)), user)

    def ask(self, user: str, want: int, trainers: tuple[Trainer, ...] | None = None) -> Answer:
        said = one_node_trainers(want) if trainers is None else trainers
        return self.site.hear(
            self.peer(user), Ask(harvester_of(user), PARTITION, 4, want, said), self.now_s
        )

    def look(self, *, taken: frozenset[str] = frozenset(), waits: Iterable[Other] = ()) -> None:
        """A cycle passes, and the broker looks; `waits`: leases for nodes by name."""
        self.now_s += self.settings.cycle_s
        nodes = {
            name: Idle(name, name not in self.held and name not in taken, False, 4, "a100", 8, 8000)
            for name in self.nodes
        }
        others = [
            Other(harvester, user, node, True, 0.0) for node, (user, harvester) in self.held.items()
        ]
        others += [Other(harvester_of(user), user, "", False) for user in self.waits]
        others += waits
        self.site.look(nodes, others, self.now_s)

    def take(self, user: str, *nodes: str) -> None:
        """Leases of a user's harvester begin on some nodes."""
        self.held.update(dict.fromkeys(nodes, (user, harvester_of(user))))

    def settle(self, wants: Mapping[str, int]) -> dict[str, Answer]:
        """Users ask until the broker has decided with all of them; what each may have then."""
        for _ in range(5):
            found = {user: self.ask(user, want) for user, want in wants.items()}
            self.look()
        return {**found, **{user: self.ask(user, want) for user, want in wants.items()}}

    def grants(self, wants: Mapping[str, int]) -> dict[str, int]:
        answers = self.settle(wants)
        assert not any(each.keep or each.refused for each in answers.values()), answers
        return {user: each.nodes for user, each in answers.items()}


def weights(**users: float) -> dict[str, Share]:
    return {user: Share(weight) for user, weight in users.items()}
