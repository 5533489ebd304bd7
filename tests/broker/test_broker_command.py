"""``hpcext-broker``: its settings, the one line that each fault gives, and the service itself."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from own_munged import Munged
from ports import free_port
from site_of_test import wait_for

from hpcext.addresses import DropAddress, MungeAddress
from hpcext.broker.alone import alone, name_for
from hpcext.broker.division import Share
from hpcext.broker.settings import Settings as BrokerSettings
from hpcext.broker.settings import load
from hpcext.cli.broker import main
from hpcext.config import Settings
from hpcext.core.errors import InputError
from hpcext.doctor import broker as doctor
from hpcext.doctor.checkup import CheckOptions
from hpcext.harvest import leave, ways
from hpcext.harvest.ways.local import Local

WHOLE = """
partition = "preemptible"
batch = "slurm"
socket = "/run/hpcext-broker/socket"
state_dir = "/var/lib/hpcext-broker"
policy = "bftrainer:forward_s=60"
gpus = 4
slots = 2
cycle_s = 10
administrators = ["adm"]
listen = ["munge://hpcext-broker@0.0.0.0:7420", "drop:///shared/broker"]

[everybody]
limit = 8

[users.ann]
weight = 3
limit = 16

[groups.physics]
priority = 1
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "broker.toml"


def test_the_file_says_who_may_have_what(file: Path) -> None:
    file.write_text(WHOLE)
    found = load(file)
    assert found == BrokerSettings(
        "preemptible",
        policy="bftrainer:forward_s=60",
        gpus=4,
        slots=2,
        cycle_s=10,
        everybody=Share(limit=8),
        users={"ann": Share(3, limit=16)},
        groups={"physics": Share(priority=1, limit=8)},
        administrators=("adm",),
        listen=(
            MungeAddress("0.0.0.0", 7420, "hpcext-broker"),
            DropAddress(Path("/shared/broker")),
        ),
    )
    assert found.share("ann") == Share(3, limit=16)
    assert found.share("nobody-has-this-name") == Share(limit=8)


def test_the_first_group_of_the_file_that_somebody_is_in_counts(file: Path) -> None:
    """Groups are the system's; root is in the one of its name."""
    file.write_text('partition = "p"\n[groups.none-such]\nweight = 9\n[groups.root]\nweight = 2\n')
    assert load(file).share("root") == Share(2)
    file.write_text('partition = "p"\n[groups.root]\nweight = 2\n[users.root]\nlimit = 1\n')
    assert load(file).share("root") == Share(limit=1)


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("", 'no partition (valid: partition = "NAME")'),
        ("partition = 3", "partition: 3 is an integer (valid: a string)"),
        ('partition = "a,b"', "partition: 'a,b' (valid: one name)"),
        ('partition = "p"\nsockett = "/x"', "unknown key 'sockett'"),
        ('partition = "p"\nsocket = "x"', "socket: 'x' (valid: an absolute path without ..)"),
        (
            f'partition = "p"\nsocket = "/{"x" * 107}"',
            "socket: 108 bytes (valid: at most 107 bytes (unix(7)))",
        ),
        ('partition = "p"\ncycle_s = 0', "cycle_s: 0 (valid: a number, 1 to 3600)"),
        ('partition = "p"\npolicy = "best"', "unknown policy 'best'"),
        ('partition = "p"\nadministrators = "ann"', "administrators: 'ann' is a string"),
        ('partition = "p"\nusers = 3', "users: 3 is an integer (valid: a table)"),
        ('partition = "p"\n[users]\nann = 3', "users: ann: 3 is an integer (valid: a table)"),
        ('partition = "p"\n[users.ann]\nweight = 0', "users: ann: weight: 0 (valid: a number"),
        ('partition = "p"\n[users.ann]\nlimit = -1', "users: ann: limit: -1 (valid: an integer"),
        ('partition = "p"\n[everybody]\nshare = 2', "everybody: unknown key 'share'"),
        ("partition =", "line 1"),
        ('partition = "p"\nlisten = 3', "listen: 3 is an integer (valid: a string)"),
        ('partition = "p"\nlisten = "login1:7420"', "listen: 'login1:7420' (valid: an absolute"),
        ('partition = "p"\nlisten = "/run/x"', "listen: '/run/x' (valid: munge://HOST:PORT, or"),
        ('partition = "p"\nlisten = ["munge://h"]', "listen: 'munge://h' (valid: munge://HOST"),
        ('partition = "p"\nlisten = "drop://x"', "listen: 'drop://x' (valid: an absolute path"),
        (f'partition = "p"\nlisten = {["drop:///x"] * 9}', "listen: 9 addresses (valid: at most"),
        ('partition = "p"\nshares = "slurm"', "shares: 'slurm' (valid: file, batch)"),
        ('partition = "p"\nshares_unknown = 0', "shares_unknown: 0 (valid: a number"),
        ('partition = "p"\nshares_every_s = 1', "shares_every_s: 1 (valid: a number, 10"),
        ('partition = "p"\n[accounts.x]\nweight = 1', "accounts: x: unknown key 'weight'"),
        ('partition = "p"\n[accounts]\nx = 1', "accounts: x: 1 is an integer (valid: a table)"),
        (
            'partition = "p"\n[groups.x]\ntogether = -1',
            "groups: x: together: -1 (valid: an integer",
        ),
        ('partition = "p"\n[users.x]\ntogether = 1', "users: x: unknown key 'together'"),
        ('partition = "p"\nbatch = "lsf"\n[accounts.x]\ntogether = 1', "lsf has no accounts"),
        ('partition = "p"\nbatch = "pbs"', "batch: unknown batch system 'pbs' (valid: slurm, lsf)"),
    ],
)
def test_what_is_wrong_is_one_line(
    file: Path, capsys: pytest.CaptureFixture[str], text: str, line: str
) -> None:
    file.write_text(text + "\n")
    assert main(["run", "--file", str(file), "--check"]) == 2
    said = capsys.readouterr().err
    assert line in said
    assert said.count("\n") == 1
    assert str(file) in said


def test_a_file_that_others_can_write_is_refused(file: Path) -> None:
    file.write_text('partition = "p"\n')
    load(file)
    file.chmod(0o666)
    with pytest.raises(InputError, match="others can write"):
        load(file)


def test_a_damaged_journal_is_left_as_it_is(
    service: Service, capsys: pytest.CaptureFixture[str]
) -> None:
    service.write()
    (service.path / "state").mkdir(mode=0o700)
    journal = service.path / "state" / "journal.jsonl"
    journal.write_text("no journal\n")
    assert main(["run", "--file", str(service.file)]) == 3
    said = capsys.readouterr().err
    assert "line 1 is damaged" in said
    assert "move it away: harvesters keep what they have" in said
    assert journal.read_text() == "no journal\n"


def test_without_a_broker_its_status_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["status", "--socket", str(tmp_path / "socket")]) == 1
    assert "is not there" in capsys.readouterr().err


# The service, beside a Slurm that does not answer.


class Service:
    def __init__(self, path: Path) -> None:
        self.path = path
        self.file = path / "broker.toml"
        self.socket = path / "socket"
        programs = path / "bin"
        programs.mkdir()
        self.programs = programs
        for name in ("sinfo", "squeue", "scontrol", "sacct", "sshare"):
            self.command(name, "exit 1")
        # Of a cluster of its own, beside those of other tests.
        conf = {"SLURM_CONF": str(path / "slurm.conf")}
        self.environ = {**os.environ, **conf, "PATH": f"{programs}:/usr/bin:/bin"}
        self.processes: list[subprocess.Popen[str]] = []

    def command(self, name: str, text: str) -> None:
        """What a command of Slurm does from now on."""
        draft = self.programs / f"{name}.new"
        draft.write_text(f"#!/bin/sh\n{text}\n")
        draft.chmod(0o755)
        draft.replace(self.programs / name)

    def status(self, capsys: pytest.CaptureFixture[str]) -> dict[str, Any]:
        assert main(["status", "--socket", str(self.socket), "--json"]) == 0
        document: dict[str, Any] = json.loads(capsys.readouterr().out)
        return document

    def write(self, more: str = "") -> None:
        self.file.write_text(
            f'partition = "p"\nsocket = "{self.socket}"\nstate_dir = "{self.path}/state"\n'
            f"cycle_s = 1\n{more}"
        )

    def start(self) -> subprocess.Popen[str]:
        words = ["import sys; from hpcext.__main__ import broker; sys.exit(broker())"]
        words += ["run", "--file", str(self.file)]
        process = subprocess.Popen(
            [sys.executable, "-c", *words],
            env=self.environ,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self.processes.append(process)
        return process


@pytest.fixture
def service(tmp_path: Path) -> Iterator[Service]:
    one = Service(tmp_path)
    yield one
    for process in one.processes:
        process.kill()
        process.wait()


def test_it_serves_while_the_batch_system_does_not_answer(
    service: Service, capsys: pytest.CaptureFixture[str]
) -> None:
    """One line of log, a status, other settings at a signal, and an end without a trace."""
    service.write(f"[users.root]\nweight = 2\n{RESERVED}")
    process = service.start()
    wait_for(service.socket.is_socket, "the socket")
    assert main(["status", "--socket", str(service.socket), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["decides"] is False
    assert main(["status", "--socket", str(service.socket)]) == 0
    out = capsys.readouterr().out
    assert "0 nodes of p to divide; decides nothing yet" in out
    lines = [" ".join(line.split()) for line in out.splitlines()]
    assert "reservation nodes held from to in force" in lines
    assert "group thesis 16 0 2001-12-01 08:00 2901-12-01 18:00 yes" in lines
    second = service.start()
    _, err = second.communicate(timeout=120)
    assert second.returncode == 3
    assert "another broker runs" in err
    service.write("cycle = 3\n")
    process.send_signal(signal.SIGHUP)
    # Each of these is a turn of its loop, so that it has heard the signal.
    for _ in range(3):
        assert main(["status", "--socket", str(service.socket), "--json"]) == 0
    process.send_signal(signal.SIGTERM)
    out, err = process.communicate(timeout=120)
    assert process.returncode == 0
    assert "divides the idle nodes of p" in out
    assert "the settings stay as they are" in err
    assert err.count("sinfo") + err.count("squeue") <= 2
    assert not service.socket.exists()


RESERVED = """
[[reservations]]
group = "thesis"
nodes = 16
from = 2001-12-01T08:00:00
to = 2901-12-01T18:00:00
"""

IDLE = "|".join(["n1", "idle", "gpu:4", "8", "8000", "up", "1-00:00:00", "gpu:0", "0/8/0/8", "0"])
"""A node as sinfo shows it."""


def test_decisions_go_on_while_the_fair_share_does_not_come(
    service: Service, capsys: pytest.CaptureFixture[str]
) -> None:
    """It hangs, it fails, it comes; each is said, and no look waits for it."""
    service.command("sinfo", f"echo '{IDLE}|'")
    service.command("squeue", "exit 0")
    asked = service.path / "asked"
    service.command("sshare", f"echo $$ >{asked}.new; mv {asked}.new {asked}; exec sleep 1000")
    service.write('shares = "batch"\n[users.root]\nweight = 2\n')
    process = service.start()
    wait_for(asked.exists, "the question")
    wait_for(service.socket.is_socket, "the socket")
    wait_for(lambda: service.status(capsys)["decides"], "a decision meanwhile")
    shares = service.status(capsys)["shares"]
    assert shares == {"from": "batch", "age_s": None, "failed": ""}
    # Its end is not delayed either.
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == 0
    os.kill(int(asked.read_text()), signal.SIGKILL)
    service.command("sshare", "echo 'sshare: error: slurmdbd is down' >&2; exit 1")
    process = service.start()
    wait_for(service.socket.is_socket, "the socket")
    wait_for(lambda: service.status(capsys)["shares"]["failed"], "what has failed")
    assert "slurmdbd is down" in service.status(capsys)["shares"]["failed"]
    assert main(["status", "--socket", str(service.socket)]) == 0
    said = capsys.readouterr()
    assert "the fair share stays as nobody was known: sshare failed: slurmdbd is down" in said.err
    process.send_signal(signal.SIGTERM)
    _, err = process.communicate(timeout=60)
    assert err.count("slurmdbd is down") == 1
    service.command("sshare", "echo '||root'; echo 'root|0.25| root'")
    service.start()
    wait_for(service.socket.is_socket, "the socket")
    wait_for(lambda: service.status(capsys)["shares"]["age_s"] is not None, "an answer")
    ask = leave.Ask("hpcext-me-20261124-120000-ab12", "p", 4, 1)
    wait_for(lambda: not ways.ask(Local(service.socket), ask).refused, "to be heard")
    document = service.status(capsys)
    assert document["shares"]["failed"] == ""
    [row] = document["users"]
    assert (row["user"], row["fair_share"], row["weight"]) == ("root", 0.25, 0.5)


# A second broker.


def refusal(service: Service) -> str:
    """What another broker says, which does not run."""
    late = service.start()
    _, err = late.communicate(timeout=120)
    assert late.returncode == 3
    assert err.count("\n") == 1
    return err


def test_two_brokers_with_different_directories_do_not_share_a_socket(service: Service) -> None:
    service.write()
    service.start()
    wait_for(service.socket.is_socket, "the socket")
    facts = service.socket.stat()
    text = service.file.read_text()
    # Another partition makes no difference.
    for partition in ("p", "q"):
        service.file.write_text(
            text.replace("/state", "/other").replace(
                'partition = "p"', f'partition = "{partition}"'
            )
        )
        assert f"{service.socket}: another broker listens there; there is one" in refusal(service)
    assert service.socket.stat().st_ino == facts.st_ino
    # Whoever could read it could hold the lock.
    assert service.socket.with_name("socket.lock").stat().st_mode & 0o777 == 0o600


def test_two_brokers_of_a_partition_with_different_sockets_are_found_out(service: Service) -> None:
    service.write()
    first = service.start()
    wait_for(service.socket.is_socket, "the socket")
    text = service.file.read_text().replace("/state", "/other")
    other = service.path / "socket2"
    text = text.replace(str(service.socket), str(other))
    service.file.write_text(text)
    for _ in range(3):
        err = refusal(service)
        assert f"{other}: another broker divides partition 'p', with another socket" in err
    assert not other.exists()
    # It is about a partition of a cluster.
    service.file.write_text(text.replace('partition = "p"', 'partition = "q"'))
    service.start()
    wait_for(other.is_socket, "the socket of another partition")
    service.file.write_text(text.replace("/other", "/third").replace("socket2", "socket3"))
    first.kill()
    first.wait()
    service.start()
    wait_for((service.path / "socket3").is_socket, "the socket of the next one")


def test_two_brokers_do_not_share_a_directory_whatever_their_hosts_are(service: Service) -> None:
    """Nor their partitions: harvesters of both ask there."""
    shared = service.path / "shared"
    shared.mkdir(mode=0o755)
    service.write(f'listen = "drop://{shared}"\n')
    service.start()
    wait_for(service.socket.is_socket, "the socket")
    text = service.file.read_text().replace("/state", "/other").replace("/socket", "/socket2")
    # Another partition stands for another host, where the name of this one is not seen.
    service.file.write_text(text.replace('partition = "p"', 'partition = "q"'))
    assert f"drop://{shared}: another broker answers there; there is one" in refusal(service)


def test_a_broker_of_another_host_is_asked_and_found_out(
    service: Service, capsys: pytest.CaptureFixture[str]
) -> None:
    """It is where harvesters ask, as they are set."""
    munged = Munged()
    try:
        where = f"munge://{os.getuid()}@127.0.0.1:{free_port()}{munged.socket}"
        service.environ["HPCEXT_BROKER"] = where
        service.write(f'listen = "{where}"\n')
        process = service.start()
        wait_for(service.socket.is_socket, "the socket")
        # As from another host, to which the network alone leads.
        wait_for(lambda: main(["status", "--socket", where]) == 0, "a status")
        assert "0 nodes of p to divide; decides nothing yet" in capsys.readouterr().out
        [finding] = doctor.check(CheckOptions(Settings(broker=where)))
        assert finding.says.startswith(f"{where} decides nothing for p now")
        text = service.file.read_text().replace("/state", "/other")
        text = text.replace(str(service.socket), f"{service.socket}2")
        # Of another cluster as far as this host knows, so that nothing else is found.
        service.environ["SLURM_CONF"] = "/elsewhere/slurm.conf"
        service.file.write_text(text.replace(f'listen = "{where}"\n', ""))
        assert f"{where}: another broker divides partition 'p'; there is one" in refusal(service)
        process.send_signal(signal.SIGTERM)
        _, err = process.communicate(timeout=120)
        assert process.returncode == 0
        assert "no broker answers yet where harvesters ask" in err
        # It is gone, and another one takes its place.
        service.file.write_text(text)
        service.start()
        wait_for((service.path / "socket2").is_socket, "the socket of the next one")
    finally:
        munged.end()


def test_a_broker_that_cannot_listen_on_the_network_does_not_run(service: Service) -> None:
    service.write(f'listen = "munge://127.0.0.1:7420{service.path}/none"\n')
    late = service.start()
    _, err = late.communicate(timeout=120)
    # Not 2, after which systemd does not start it again: munged may be there soon.
    assert late.returncode == 1
    assert "cannot be served: munge failed: " in err
    assert "see systemctl status munge" in err
    assert not service.socket.exists()


@pytest.mark.skipif(os.getuid() != 0, reason="only root can be somebody else")
def test_a_stranger_who_takes_the_name_stops_no_broker(
    service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    service.write()
    monkeypatch.setenv("SLURM_CONF", service.environ["SLURM_CONF"])
    words = "import os, socket, sys; os.setuid(65534); s = socket.socket(socket.AF_UNIX)"
    words += "; s.bind(bytes.fromhex(sys.argv[1])); s.listen(); print(flush=True); input()"
    name = name_for(load(service.file)).encode().hex()
    stranger = subprocess.Popen(
        [sys.executable, "-c", words, name],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    service.processes.append(stranger)
    assert stranger.stdout
    assert stranger.stdout.readline() == "\n"
    process = service.start()
    wait_for(service.socket.is_socket, "the socket")
    process.send_signal(signal.SIGTERM)
    _, err = process.communicate(timeout=120)
    assert process.returncode == 0
    assert "(uid 65534) has the name by which a second broker of 'p' is found out" in err


def test_everybody_reaches_the_socket_whatever_the_umask(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLURM_CONF", str(tmp_path / "slurm.conf"))
    before = os.umask(0o077)
    try:
        with alone(BrokerSettings("p", socket=tmp_path / "run" / "socket")):
            assert (tmp_path / "run").stat().st_mode & 0o777 == 0o755
    finally:
        os.umask(before)
    # One that is there is its owner's.
    (tmp_path / "run").chmod(0o700)
    with alone(BrokerSettings("p", socket=tmp_path / "run" / "socket")):
        assert (tmp_path / "run").stat().st_mode & 0o777 == 0o700


def test_a_socket_that_harvesters_would_not_believe_is_refused(
    service: Service, capsys: pytest.CaptureFixture[str]
) -> None:
    service.write()
    open_ = service.path / "open"
    open_.mkdir(mode=0o700)
    open_.chmod(0o777)
    service.file.write_text(service.file.read_text().replace("/socket", "/open/socket"))
    assert main(["run", "--file", str(service.file)]) == 2
    said = capsys.readouterr().err
    assert "harvesters would not believe a socket there" in said
    assert said.count("\n") == 1
