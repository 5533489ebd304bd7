"""Several virtual nodes: what they share, and what each has for itself."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator

import pytest
from virtual import calls
from virtual.kernel import Kernel
from virtual.nodes import Node, cluster


@pytest.fixture
def kernel() -> Iterator[Kernel]:
    one = Kernel(1, lambda _: None)
    one.switches = 0.0
    calls.use(one)
    yield one
    calls.use(None)


def does(node: Node, what: Callable[[], object]) -> object:
    """Have a process of a node do something; return its answer."""
    found: list[object] = []
    process = node.kernel.spawn(node, ["test"], {}, lambda _: found.append(what()))
    node.kernel.run(lambda: process.dead, node.kernel.now + 1)
    assert not node.kernel.errors
    return found[0] if found else None


def write(path: str, text: str, flags: int = os.O_CREAT | os.O_EXCL) -> None:
    fd = calls.open(path, os.O_WRONLY | flags, 0o644)
    calls.write(fd, text.encode())
    calls.close(fd)


def read(path: str) -> str:
    try:
        fd = calls.open(path, os.O_RDONLY)
    except FileNotFoundError:
        return "nothing"
    return calls.read(fd, 100).decode()


def later(kernel: Kernel, seconds: float) -> None:
    kernel.at(kernel.now + seconds, lambda: None)
    until = kernel.now + seconds
    kernel.run(lambda: kernel.now >= until, until + 1)


def test_nodes_share_their_home_and_nothing_else(kernel: Kernel) -> None:
    one, two = cluster(kernel, ["n1", "n2"])
    does(one, lambda: write("/home/a", "x"))
    does(one, lambda: write("/tmp/a", "x"))
    assert does(two, lambda: read("/home/a")) == "x"
    assert does(two, lambda: read("/tmp/a")) == "nothing"
    assert does(two, lambda: calls.uname().nodename) == "n2"
    assert one.boot_id != two.boot_id


def test_a_node_learns_of_the_others_names_late_and_of_its_own_at_once(kernel: Kernel) -> None:
    one, two = cluster(kernel, ["n1", "n2"], stale_s=3.0)
    assert does(two, lambda: read("/home/a")) == "nothing"
    does(one, lambda: write("/home/a", "x"))
    assert does(one, lambda: read("/home/a")) == "x"
    assert does(two, lambda: read("/home/a")) == "nothing"
    later(kernel, 3.0)
    assert does(two, lambda: read("/home/a")) == "x"
    does(one, lambda: write("/home/b", "y"))
    does(one, lambda: calls.rename("/home/b", "/home/a"))
    # Its inode is gone, so the other node looks it up anew to open it, and not for its facts.
    before = does(two, lambda: calls.stat_("/home/a").st_ino)
    assert before != does(one, lambda: calls.stat_("/home/a").st_ino)
    assert does(two, lambda: read("/home/a")) == "y"


def test_to_list_a_directory_asks_the_server(kernel: Kernel) -> None:
    one, two = cluster(kernel, ["n1", "n2"], stale_s=3.0)
    assert does(two, lambda: read("/home/a")) == "nothing"
    does(one, lambda: write("/home/a", "x"))
    assert does(two, lambda: calls.listdir("/home")) == ["a"]
    assert does(two, lambda: read("/home/a")) == "x"


def test_a_node_that_loses_its_power_is_another_one_when_it_is_back(kernel: Kernel) -> None:
    one, two = cluster(kernel, ["n1", "n2"])
    first = one.boot_id
    sleeping = kernel.spawn(one, ["sleep"], {}, lambda _: calls.sleep(100))
    other = kernel.spawn(two, ["sleep"], {}, lambda _: calls.sleep(100))
    does(one, lambda: write("/tmp/a", "x"))
    later(kernel, 1.0)
    one.lose_power()
    assert sleeping.dead
    assert not other.dead
    assert not one.processes
    one.boot()
    assert one.boot_id != first
    does(one, lambda: write("/home/b", "y"))
    assert does(two, lambda: read("/home/b")) == "y"


def test_what_was_not_written_back_may_be_lost_with_its_node(kernel: Kernel) -> None:
    one, two = cluster(kernel, ["n1", "n2"])

    def writes() -> None:
        fd = calls.open("/home/a", os.O_WRONLY | os.O_CREAT, 0o644)
        calls.write(fd, b"safe")
        calls.fsync(fd)
        calls.write(fd, b"perhaps")
        calls.sleep(100)

    kernel.spawn(one, ["writer"], {}, lambda _: writes())
    does(one, lambda: write("/home/closed", "kept"))
    later(kernel, 1.0)
    one.lose_power()
    left = does(two, lambda: read("/home/a"))
    assert str(left).startswith("safe")
    assert "safeperhaps".startswith(str(left))
    assert does(two, lambda: read("/home/closed")) == "kept"


def test_clocks_differ(kernel: Kernel) -> None:
    one, two = cluster(kernel, ["n1", "n2"])
    two.skew_s = 7.0
    there, here = does(two, calls._time), does(one, calls._time)
    assert isinstance(there, float)
    assert isinstance(here, float)
    assert 6.9 < there - here < 7.1
