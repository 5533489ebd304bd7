"""A site's broker on a real Slurm: nodes are divided by its weights, whether it lives or not."""

from __future__ import annotations

import json
import os
import pwd
import shutil
import signal
import subprocess
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from ports import free_port
from site_of_test import Site
from slurm_cluster import Cluster, make_user
from test_harvest import harvest
from test_harvest_neighbours import (
    NAMES,
    _leases,
    _looks,
    all_end,
    leases_of,
    other,
    third,
    trainers,
)
from test_pilot import begun

__all__ = ["other", "third"]

PROGRAM = ("-c", "import sys; from hpcext.__main__ import broker; sys.exit(broker())")

NOBODYS = "hpcext-mine-20261124-120000-ab12"

FLOOD = """
import json, socket, sys
lines = [
    json.dumps({"type": "ask", "harvester": sys.argv[2], "partition": "harvest", "gpus": 6,
                "want": want, "trainers": [{"number": 1, "sizes": [6], "nodes": [1, 4]}][:want]})
    for want in (0, 4)
]
lines += ["no message", "x" * 300000, '{"type":"status"}', '{"type":']
while True:
    for line in lines:
        try:
            with socket.socket(socket.AF_UNIX) as one:
                one.connect(sys.argv[1])
                one.sendall(line.encode() + b"\\n")
                one.recv(1000)
        except OSError:
            pass
"""
"""Whoever runs it says as much as he can, under any name."""


class Broker:
    """The service, under an account of its own that is not root."""

    def __init__(self, slurm: Cluster, site: Site) -> None:
        self.site = site
        self.slurm = slurm
        self.socket = site.path / "socket"
        self.file = site.path / "broker.toml"
        self.where = str(self.socket)
        self.listen = ""

    def by_munge(self) -> None:
        """Be asked over the network, from another address, by the munged that Slurm has."""
        port, munged = free_port(), self.slurm.root / "run" / "munge.socket"
        self.where = f"munge://{self.site.user}@127.0.0.2:{port}{munged}"
        self.listen = f'listen = "munge://0.0.0.0:{port}{munged}"'

    def by_drop(self) -> None:
        """Be asked through a directory that hosts could share."""
        # What is above it must be root's.
        shared = self.slurm.root / "shared"
        shared.mkdir()
        shutil.chown(shared, self.site.user)
        shared.chmod(0o755)
        self.where = f"drop://{shared}"
        self.listen = f'listen = "{self.where}"'

    def write(self, tables: str = "", **weights: float) -> None:
        lines = [
            'partition = "harvest"',
            f'socket = "{self.socket}"',
            f'state_dir = "{self.site.path / "state"}"',
            "cycle_s = 1.5",
            self.listen,
        ]
        lines += [f'[users."{user}"]\nweight = {weight}' for user, weight in weights.items()]
        self.file.write_text("\n".join([*lines, tables]) + "\n")

    def start(self) -> subprocess.Popen[str]:
        process = self.site.start("run", "--file", str(self.file), python=PROGRAM)
        self.slurm.wait_for(self.socket.is_socket, "the broker's socket")
        return process

    def status(self, site: Site) -> dict[str, dict[str, float]]:
        """User → what somebody sees of him."""
        words = ("status", "--socket", self.where, "--json")
        said = site.run(*words, python=PROGRAM)
        while "one call at a time" in said.out:
            # A harvester of the same user asks just now.
            said = site.run(*words, python=PROGRAM)
        assert said.code == 0, said
        return {row["user"]: row for row in json.loads(said.out)["users"]}


@pytest.fixture
def broker(slurm: Cluster) -> Iterator[Broker]:
    """It does not run yet."""
    # Not named after the test: the path of a socket is short (unix(7)).
    path, name = slurm.root / "broker", f"{slurm.user}-b"
    path.mkdir()
    make_user(name, path)
    os.chmod(path, 0o755)
    environ = slurm.user_environ(HOME=str(path), USER=name, LOGNAME=name)
    site = Site(path, python=str(slurm.python), environ=environ, user=name)
    yield Broker(slurm, site)
    for process in site.started:
        process.kill()
        # Shown beside a test that has failed.
        print(process.communicate())
    subprocess.run(["userdel", name], capture_output=True, check=True)
    shutil.rmtree(path)
    shutil.rmtree(slurm.root / "shared", ignore_errors=True)


def said_of_broker(site: Site) -> str:
    """What a harvester knows of the broker at its last look."""
    try:
        return str(json.loads((site.pilot / "harvest.json").read_text())["broker"])
    except FileNotFoundError:
        return ""


def numbers(site: Site) -> set[int]:
    return {lease["number"] for lease in _leases(site)}


@pytest.mark.slow
@pytest.mark.parametrize("way", ["socket", "munge", "drop"])
def test_shares_follow_weights_and_no_training_minds_the_death_of_the_broker(
    slurm: Cluster, place: Site, other: Site, broker: Broker, way: str
) -> None:
    if way != "socket":
        broker.by_munge() if way == "munge" else broker.by_drop()
    broker.write(**{slurm.user: 3, "root": 1})
    process = broker.start()
    for one in (place, other):
        one.environ["HPCEXT_BROKER"] = broker.where
        trainers(one)
    first = harvest(place)
    begun(place, *NAMES)
    assert leases_of(slurm) == {slurm.user: 4}
    second = harvest(other)
    parts = Counter({slurm.user: 3, "root": 1})
    slurm.wait_for(lambda: leases_of(slurm) == parts, "parts by weight", 300)
    # Each sees himself; root, who is an administrator, all.
    assert broker.status(place).keys() == {slurm.user}

    def granted() -> dict[str, float]:
        return {user: row["granted"] for user, row in broker.status(other).items()}

    slurm.wait_for(lambda: granted() == dict(parts), "what was taken to be what was granted")

    def settled() -> bool:
        """A claim that has begun is a lease once its harvester has seen that."""
        return len(numbers(place)) == 3 and len(numbers(other)) == 1

    slurm.wait_for(settled, "leases that stay")
    before = numbers(place) | numbers(other)
    process.send_signal(signal.SIGKILL)
    process.wait()
    for one in (place, other):
        slurm.wait_for(lambda one=one: "away" in said_of_broker(one), "that it is missed")  # type: ignore[misc]
        _looks(slurm, one, 3)
    assert leases_of(slurm) == parts
    broker.start()
    for one in (place, other):
        slurm.wait_for(lambda one=one: "grants" in said_of_broker(one), "that it is back")  # type: ignore[misc]
        _looks(slurm, one, 3)
    assert leases_of(slurm) == parts
    assert numbers(place) | numbers(other) == before
    all_end(slurm, {place: first, other: second})
    assert pwd.getpwuid(Path(broker.socket).stat().st_uid).pw_name == broker.site.user


@pytest.mark.slow
def test_a_reservation_moves_nodes_from_others_once_it_is_read(
    slurm: Cluster, place: Site, other: Site, broker: Broker
) -> None:
    """By a lease that waits: no training loses a step, and who has less is told until when."""
    broker.write()
    process = broker.start()
    for one in (place, other):
        one.environ["HPCEXT_BROKER"] = str(broker.socket)
        trainers(one)
    first, second = harvest(place), harvest(other)
    half = Counter({slurm.user: 2, "root": 2})
    slurm.wait_for(lambda: leases_of(slurm) == half, "halves", 300)
    broker.write(
        f'[[reservations]]\nuser = "{slurm.user}"\nnodes = 3\n'
        "from = 2001-12-01T08:00:00\nto = 2901-12-01T18:00:00"
    )
    process.send_signal(signal.SIGHUP)
    most = Counter({slurm.user: 3, "root": 1})
    slurm.wait_for(lambda: leases_of(slurm) == most, "what is reserved", 300)
    said = "others have a reservation until 2901-12-01 18:00"
    slurm.wait_for(lambda: said in said_of_broker(other), "the reason")
    assert "reservation" not in said_of_broker(place)
    all_end(slurm, {place: first, other: second})


@pytest.mark.slow
def test_of_a_class_of_nodes_whoever_may_have_none_has_none(
    slurm: Cluster, place: Site, other: Site, broker: Broker
) -> None:
    """Nodes are taken by name, also those that others have and are to give back."""
    user = f'[users."{slurm.user}"]\nlimits = {{ front = 0 }}'
    broker.write(f'[classes.front]\nnodes = "n[1-2]"\n{user}')
    broker.start()
    for one in (place, other):
        one.environ["HPCEXT_BROKER"] = broker.where
        trainers(one)

    def nodes_of(user: str) -> set[str]:
        said = slurm.run("squeue", "-h", "-o", "%N", "-t", "RUNNING", "-p", "harvest", "-u", user)
        return set(said.stdout.split())

    first = harvest(place)
    slurm.wait_for(lambda: nodes_of(slurm.user) == {"n3", "n4"}, "the other nodes", 300)
    said = "the limit of the class front is 0"
    slurm.wait_for(lambda: said in said_of_broker(place), "the reason")
    _looks(slurm, place, 3)
    assert nodes_of(slurm.user) == {"n3", "n4"}
    second = harvest(other)
    slurm.wait_for(lambda: len(nodes_of("root")) == 3, "parts by class", 300)
    assert nodes_of("root") > {"n1", "n2"}
    assert nodes_of(slurm.user) < {"n3", "n4"}
    for one in (place, other):
        _looks(slurm, one, 3)
    assert leases_of(slurm) == Counter({slurm.user: 1, "root": 3})
    all_end(slurm, {place: first, other: second})


@pytest.mark.slow
def test_a_hostile_user_gets_nothing_and_stops_nobody(
    slurm: Cluster, place: Site, other: Site, third: Site, broker: Broker
) -> None:
    """He floods the socket, and speaks as the harvester of another; two others have their parts."""
    broker.write()
    broker.start()
    for one in (place, other):
        one.environ["HPCEXT_BROKER"] = str(broker.socket)
        trainers(one)
    flood = third.start(str(broker.socket), NOBODYS, python=("-c", FLOOD))
    first = harvest(place)
    slurm.wait_for((place.pilot / "pilot.json").exists, "a harvester")
    name = f"hpcext-{json.loads((place.pilot / 'pilot.json').read_text())['id']}"
    forger = third.start(str(broker.socket), name, python=("-c", FLOOD))
    second = harvest(other)
    half = Counter({slurm.user: 2, "root": 2})
    slurm.wait_for(lambda: leases_of(slurm) == half, "halves", 300)
    for one in (place, other):
        _looks(slurm, one, 5)
    assert leases_of(slurm) == half
    assert flood.poll() is forger.poll() is None
    # Leave that he has on paper moves no node, since no lease of his waits for one.
    rows = broker.status(other)
    assert {user: row["held"] for user, row in rows.items() if row["held"]} == dict(half)
    for process in (flood, forger):
        process.kill()
    all_end(slurm, {place: first, other: second})


@pytest.mark.slow
def test_a_second_broker_does_not_run(slurm: Cluster, broker: Broker) -> None:
    broker.write()
    broker.start()
    late = broker.site.run("run", "--file", str(broker.file), python=PROGRAM)
    assert late.code == 3
    assert "another broker runs" in late.err
