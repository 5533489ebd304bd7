"""A real Slurm on this machine, for the tests: daemons, ports, files and a user of its own.

Four nodes of six GPUs (``slurmd -N``; device files that no driver knows), memory as a resource,
and accounting in a database. Nothing of it is in the machine's own ``/etc/slurm`` or on its ports,
so an installed Slurm is left alone. All lies in one directory, and ends with :meth:`Cluster.stop`.

Run as ``python tests/system/slurm_cluster.py`` it is a cluster to try things on, until Ctrl-C. Its
release is the one that is installed; ``in-release`` runs a command where that is another one.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import itertools
import os
import pwd
import secrets
import shutil
import signal
import socket
import stat
import subprocess
import sys
import sysconfig
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TextIO

import cluster_processes
import copied_python

# Scripts import this too: record.py, and whoever runs this file.
sys.path.insert(0, str(Path(__file__).parents[1]))
from ports import free_ports, listens

from hpcext.batch import slurm

REPOSITORY = Path(__file__).parents[2]
NODES = ("n1", "n2", "n3", "n4")
GPUS, CPUS, MEMORY_MB = 6, 24, 12_000
WAIT_S = 240.0

_SMALL_DATABASE = (
    "--innodb-log-file-size=4M",
    "--innodb-buffer-pool-size=16M",
    # A machine's requests for these are limited, for all that runs on it.
    "--innodb-use-native-aio=OFF",
    "--innodb-flush-log-at-trx-commit=0",
)
"""The default one takes 100 MB of a disk, and several clusters are there at once."""

_SLURM_CONF = """
ClusterName=hpcext
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ctld_port}
SlurmUser=root
SlurmctldPidFile={root}/run/slurmctld.pid
SlurmctldLogFile={root}/log/slurmctld.log
StateSaveLocation={root}/state
SlurmdPidFile={root}/run/slurmd-%n.pid
SlurmdLogFile={root}/log/slurmd-%n.log
SlurmdSpoolDir={root}/spool/%n
SlurmdParameters=config_overrides
AuthType=auth/munge
AuthInfo=socket={root}/run/munge.socket,cred_expire=10
AccountingStorageType=accounting_storage/slurmdbd
AccountingStorageHost=127.0.0.1
AccountingStoragePort={dbd_port}
AccountingStoragePass={root}/run/munge.socket
AccountingStorageTRES=gres/gpu
{tracking}
MpiDefault=none
ReturnToService=2
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
DefMemPerCPU={memory_per_cpu}
GresTypes=gpu
PlugStackConfig={root}/etc/plugstack.conf
SlurmdTimeout=300
KillWait=5
MinJobAge=600
SchedulerParameters=bf_interval=2,bf_resolution=10,defer_batch
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
{more}
NodeName={nodes} NodeHostname={host} NodeAddr=127.0.0.1 Port=[{node_ports}] CPUs={cpus} \
RealMemory={memory} Gres=gpu:{gpus} State=UNKNOWN
PartitionName=batch Nodes=ALL Default=YES PriorityTier=10 MaxTime=1-0 GraceTime=0
PartitionName=urgent Nodes=ALL PriorityTier=100 MaxTime=1-0 PreemptMode=OFF
PartitionName=harvest Nodes=ALL PriorityTier=1 MaxTime=1-0 GraceTime=10
"""

_WITHOUT_CGROUPS = """JobAcctGatherType=jobacct_gather/none
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none"""

_WITH_CGROUPS = """JobAcctGatherType=jobacct_gather/cgroup
ProctrackType=proctrack/cgroup
TaskPlugin=task/cgroup,task/affinity
PrologFlags=Contain"""

_CGROUP_CONF = """
CgroupPlugin=cgroup/v1
CgroupMountpoint={cgroups}
ConstrainDevices=yes
ConstrainRAMSpace=yes
ConstrainSwapSpace=no
ConstrainCores={constrain_cores}
"""

CGROUPS = Path("/sys/fs/cgroup")
CONTROLLERS = ("freezer", "devices", "memory", "cpuacct", "cpuset")

_DBD_CONF = """
AuthType=auth/munge
AuthInfo=socket={root}/run/munge.socket
DbdHost={host}
DbdAddr=127.0.0.1
DbdPort={dbd_port}
SlurmUser=root
PidFile={root}/run/slurmdbd.pid
LogFile={root}/log/slurmdbd.log
StorageType=accounting_storage/mysql
StorageHost=127.0.0.1
StoragePort={db_port}
StorageUser=root
StoragePass={password}
StorageLoc=slurm
"""


class ClusterError(RuntimeError):
    """The cluster cannot be had here; says what is missing."""


class Cluster:
    """A Slurm of four nodes, or of those that are named.

    Parameters
    ----------
    root : pathlib.Path
        A directory that everybody may enter; everything is put there.
    more : str
        Lines for ``slurm.conf``; ``{send_user_signal}`` is the one for a signal at preemption,
        which has another name in each release, and ``{root}`` the cluster's directory.
    cgroups : bool
        Processes are tracked, and devices and memory confined, by cgroups (version 1), as most
        sites have it; and each job has an ``extern`` step, as pam_slurm_adopt wants it.
    cpus : int
        Of each node. Cores are confined, too, where the machine has as many.
    nodes : sequence of str
        Their names.
    """

    def __init__(
        self,
        root: Path,
        more: str = "",
        *,
        cgroups: bool = False,
        cpus: int = CPUS,
        nodes: Sequence[str] = NODES,
    ) -> None:
        if os.getuid() != 0:
            raise ClusterError("a test cluster needs root: it starts daemons and devices")
        self.root = root
        self.nodes = tuple(nodes)
        self.cgroups = cgroups
        self.user = f"hpcext-{root.name[-8:].lower()}"
        self._daemons: list[subprocess.Popen[bytes]] = []
        self._slurmds: dict[str, subprocess.Popen[bytes]] = {}
        self._ctld: subprocess.Popen[bytes] | None = None
        self._cgroup_lock: TextIO | None = None
        self._conf = root / "etc" / "slurm.conf"
        ports = free_ports(3 + len(self.nodes))
        self._facts = {
            "root": root,
            "host": socket.gethostname().partition(".")[0],
            "ctld_port": ports[0],
            "dbd_port": ports[1],
            "db_port": ports[2],
            "node_ports": ",".join(map(str, ports[3:])),
            "nodes": ",".join(self.nodes),
            "cpus": cpus,
            "memory": MEMORY_MB,
            "gpus": GPUS,
            "password": secrets.token_hex(8),
            "tracking": _WITH_CGROUPS if cgroups else _WITHOUT_CGROUPS,
            # Without cgroups nobody looks how much is used.
            "memory_per_cpu": 500 if cgroups else 100,
            "cgroups": CGROUPS,
            "constrain_cores": "yes" if cpus <= (os.cpu_count() or 1) else "no",
        }
        self.environ = {**os.environ, "SLURM_CONF": str(self._conf)}
        # 22.05 does not start with what later releases want (slurm.conf(5)).
        old = self.release < (23, 2)
        signal_at_preemption = (
            "SlurmctldParameters=preempt_send_user_signal"
            if old
            else "PreemptParameters=send_user_signal"
        )
        self._facts["more"] = more.format(send_user_signal=signal_at_preemption, root=root)

    # -- its life

    def start(self) -> None:
        """Bring it up; returns when every node is idle."""
        if self.cgroups:
            self._claim_cgroups()
        spools = (f"spool/{node}" for node in self.nodes)
        for name in ("etc", "run", "log", "state", "dev", "home", *spools):
            (self.root / name).mkdir(parents=True)
        make_user(self.user, self.root / "home")
        self._make_python()
        self._write("slurm.conf", _SLURM_CONF)
        self._write("slurmdbd.conf", _DBD_CONF, mode=0o600)
        # 22.05 does not know this value, later releases start no slurmd without it where cgroups
        # are not theirs (cgroup.conf(5)).
        groups = "" if self.release < (23, 2) else "CgroupPlugin=disabled\n"
        self._write("cgroup.conf", _CGROUP_CONF if self.cgroups else groups)
        self._write("plugstack.conf", "")
        self._make_gpus()
        self._start_munge()
        self._start_database()
        dbd = self._daemon("slurmdbd", "-D")
        self._wait(lambda: listens(int(str(self._facts["dbd_port"]))), "slurmdbd", dbd)
        self._add_account()
        self.start_ctld()
        for node in self.nodes:
            self.start_node(node)
        self._wait(lambda: self._states() == {"idle"}, "idle nodes", logs="slurm*d*")

    def stop(self) -> None:
        """End everything at once, and remove it: nothing of it is to be kept."""
        for daemon in self._daemons:
            daemon.kill()
        for daemon in self._daemons:
            daemon.wait()
        cluster_processes.end(self.root)
        self._release_cgroups()
        subprocess.run(["userdel", self.user], capture_output=True, check=False)
        shutil.rmtree(self.root, ignore_errors=True)

    def start_ctld(self) -> None:
        """Start the controller."""
        self._ctld = self._daemon("slurmctld", "-D")
        self._wait(lambda: self.run("scontrol", "ping").returncode == 0, "slurmctld", self._ctld)

    def stop_ctld(self) -> None:
        """End the controller, as an administrator would."""
        assert self._ctld is not None
        self._ctld.terminate()
        self._ctld.wait()

    def ctld_cpu_s(self) -> float:
        """Seconds of a processor that the controller has used."""
        assert self._ctld is not None
        # After the name: fields 14 and 15 are those of the program and of Linux for it; proc(5).
        text = Path(f"/proc/{self._ctld.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(text[11]) + int(text[12])) / os.sysconf("SC_CLK_TCK")

    def start_node(self, node: str) -> None:
        """Start a node."""
        self._slurmds[node] = self._daemon("slurmd", "-D", "-N", node)

    def kill_node(self, node: str) -> None:
        """A node goes down with all that runs on it: nobody has time to say anything."""
        self._slurmds[node].kill()
        self._slurmds[node].wait()
        cluster_processes.end(self.root, node)

    def kill_daemon(self, node: str) -> None:
        """The daemon of a node dies; what runs there runs on, and nobody can end it."""
        self._slurmds[node].kill()
        self._slurmds[node].wait()

    def stop_node(self, node: str) -> None:
        """Its daemon does nothing until :meth:`continue_node`; what runs there runs on."""
        self._slurmds[node].send_signal(signal.SIGSTOP)

    def continue_node(self, node: str) -> None:
        """Go on after :meth:`stop_node`."""
        self._slurmds[node].send_signal(signal.SIGCONT)

    # -- what is asked of it

    def log(self) -> str:
        """What its controller has logged."""
        return (self.root / "log" / "slurmctld.log").read_text(errors="replace")

    @functools.cached_property
    def release(self) -> tuple[int, int]:
        """Of Slurm, as (24, 11)."""
        return slurm.parse_version(self.run(_program("slurmctld"), "-V").stdout)

    def run(
        self, *argv: str, timeout_s: float = WAIT_S, **environ: str
    ) -> subprocess.CompletedProcess[str]:
        """Run a command as root."""
        return subprocess.run(
            argv,
            env={**self.environ, **environ},
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )

    def as_user(
        self,
        *argv: str,
        cwd: Path | None = None,
        timeout_s: float = 2 * WAIT_S,
        **environ: str,
    ) -> subprocess.CompletedProcess[str]:
        """Run a command as the ordinary user."""
        return subprocess.run(
            argv,
            env=self.user_environ(**environ),
            cwd=cwd or self.home,
            user=self.user,
            group=self.user,
            extra_groups=[],
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )

    def user_environ(self, **environ: str) -> dict[str, str]:
        """What the ordinary user has in the environment at login."""
        return {
            "HOME": str(self.home),
            "USER": self.user,
            "LOGNAME": self.user,
            "LANG": "C.UTF-8",
            "PATH": f"{self.root}/bin:/usr/bin:/bin",
            "LD_LIBRARY_PATH": f"{self.root}/lib",
            "PYTHONPATH": f"{REPOSITORY}:{sysconfig.get_path('purelib')}",
            "SLURM_CONF": str(self._conf),
            **environ,
        }

    @property
    def python(self) -> Path:
        """This Python, where the user may run it."""
        return self.root / "bin" / "python3"

    @property
    def home(self) -> Path:
        """The user's own directory, on every node."""
        return self.root / "home"

    def job(self, job_id: int | str) -> dict[str, str]:
        """What ``scontrol`` says of a job, by key."""
        said = self.run("scontrol", "--oneliner", "show", "job", str(job_id)).stdout
        return dict(word.partition("=")[::2] for word in said.split() if "=" in word)

    def accounting(self, job_id: int | str, columns: str) -> list[str]:
        """What ``sacct`` says of a job and its steps, a line each; some seconds late at times."""
        words = ("-n", "-P", "-D", "-j", str(job_id), f"--format={columns}")
        return self.run("sacct", *words).stdout.splitlines()

    def wait_for(self, condition: Callable[[], object], what: str, timeout_s: float = 120) -> None:
        """Wait until a condition holds; raises AssertionError if it does not."""
        deadline = time.monotonic() + timeout_s
        while not condition():
            if time.monotonic() > deadline:
                queue = self.run("squeue", "--all", "--states=all").stdout
                nodes = self.run("sinfo", "-N", "-l").stdout
                raise AssertionError(f"waited {timeout_s:g} s for {what}\n{queue}\n{nodes}")
            time.sleep(0.1)

    # -- parts

    def _claim_cgroups(self) -> None:
        """Slurm calls them by their nodes, so two clusters cannot have any at the same time."""
        missing = [name for name in CONTROLLERS if not (CGROUPS / name / "release_agent").exists()]
        if missing:
            raise ClusterError(f"no cgroups of version 1 here: {', '.join(missing)}")
        self._cgroup_lock = open("/run/lock/hpcext-test-cgroups", "w")  # noqa: SIM115
        fcntl.flock(self._cgroup_lock, fcntl.LOCK_EX)

    def _release_cgroups(self) -> None:
        if self._cgroup_lock is None:
            return
        for controller, node in itertools.product(CONTROLLERS, self.nodes):
            for path, _, _ in os.walk(CGROUPS / controller / f"slurm_{node}", topdown=False):
                # What has just been killed may be there for a moment.
                with contextlib.suppress(OSError):
                    os.rmdir(path)
        self._cgroup_lock.close()

    def _write(self, name: str, text: str, mode: int = 0o644) -> None:
        path = self.root / "etc" / name
        path.write_text(text.format(**self._facts) if text.startswith("\n") else text)
        path.chmod(mode)

    def _make_python(self) -> None:
        """A copy of this Python, and our commands beside it."""
        copied_python.copy(self.root)
        for name, module in {"hpcext": "hpcext", "torchrun": "torch.distributed.run"}.items():
            command = self.python.with_name(name)
            command.write_text(f'#!/bin/sh\nexec {self.python} -m {module} "$@"\n')
            command.chmod(0o755)

    def _make_gpus(self) -> None:
        for index in range(GPUS):
            device = self.root / "dev" / f"gpu{index}"
            os.mknod(device, 0o666 | stat.S_IFCHR, os.makedev(195, index))
            device.chmod(0o666)
        files = f"{self.root}/dev/gpu[0-{GPUS - 1}]"
        self._write("gres.conf", f"NodeName={','.join(self.nodes)} Name=gpu File={files}\n")

    def _start_munge(self) -> None:
        key = self.root / "etc" / "munge.key"
        key.write_bytes(secrets.token_bytes(128))
        key.chmod(0o400)
        run = self.root / "run"
        munged = self._daemon(
            "munged",
            "--foreground",
            "--force",
            f"--key-file={key}",
            f"--socket={run}/munge.socket",
            f"--pid-file={run}/munged.pid",
            f"--log-file={self.root}/log/munged.log",
            f"--seed-file={run}/munged.seed",
        )
        self._wait((run / "munge.socket").exists, "munged", munged)

    def _start_database(self) -> None:
        data = self.root / "db"
        port, password = self._facts["db_port"], self._facts["password"]
        script = self.root / "etc" / "db.sql"
        script.write_text(
            f"ALTER USER 'root'@'localhost' IDENTIFIED BY '{password}';\n"
            "CREATE DATABASE IF NOT EXISTS slurm;\n"
        )
        script.chmod(0o600)
        # Servers that begin remove temporary tables of others from a directory that they share.
        own = (f"--datadir={data}", f"--tmpdir={self.root}/run")
        server = ("--no-defaults", "--user=root", *own, *_SMALL_DATABASE)
        self._install_database(server)
        mariadbd = self._daemon(
            "mariadbd",
            *server,
            f"--socket={self.root}/run/db.socket",
            f"--pid-file={self.root}/run/db.pid",
            f"--port={port}",
            "--bind-address=127.0.0.1",
            f"--init-file={script}",
        )
        self._wait(lambda: listens(int(str(port))), "mariadbd", mariadbd)

    @staticmethod
    def _install_database(server: tuple[str, ...]) -> None:
        words = ("--auth-root-authentication-method=normal", "--skip-test-db")
        done = subprocess.run(
            ["mariadb-install-db", *server, *words], capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise ClusterError(f"mariadb-install-db: {done.stdout}{done.stderr}")

    def _add_account(self) -> None:
        """The user may charge an account, as sites have it."""
        manager = ("sacctmgr", "--immediate", "add")
        for words in (
            ("cluster", "hpcext"),
            ("account", "science", "cluster=hpcext"),
            ("user", self.user, "account=science"),
        ):
            said = self.run(*manager, *words)
            if said.returncode:
                raise ClusterError(f"sacctmgr add {' '.join(words)}: {said.stdout}{said.stderr}")

    def _daemon(self, name: str, *options: str) -> subprocess.Popen[bytes]:
        program = _program(name)
        with open(self.root / "log" / f"{name}.out", "ab") as log:
            daemon = subprocess.Popen(
                [program, *options],
                env=self.environ,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self._daemons.append(daemon)
        return daemon

    def _wait(
        self,
        condition: Callable[[], bool],
        what: str,
        daemon: subprocess.Popen[bytes] | None = None,
        logs: str = "",
    ) -> None:
        deadline = time.monotonic() + WAIT_S
        while not condition():
            ended = daemon is not None and daemon.poll() is not None
            if ended or time.monotonic() > deadline:
                last = ""
                for path in sorted(self.root.glob(f"log/{logs or f'{what}*'}")):
                    lines = path.read_text(errors="replace").splitlines()
                    last += "\n".join([f"{path.name}:", *lines[-20:], ""])
                how = "ended at once" if ended else f"is not there after {WAIT_S:g} s"
                raise ClusterError(f"{what} {how}\n{last}")
            time.sleep(0.05)

    def _states(self) -> set[str]:
        return set(self.run("sinfo", "-N", "-h", "-o", "%T").stdout.split())


def _program(name: str) -> str:
    """Where a daemon's program is."""
    program = shutil.which(name, path=f"{os.environ['PATH']}:/usr/sbin:/sbin")
    if program is None:
        raise ClusterError(f"{name} is not installed")
    return program


def make_user(name: str, home: Path) -> None:
    """Add an ordinary user, whose home is a directory that is there."""
    subprocess.run(
        ["useradd", "--no-create-home", "--home-dir", str(home), "--shell", "/bin/bash", name],
        capture_output=True,
        check=True,
    )
    facts = pwd.getpwnam(name)
    os.chown(home, facts.pw_uid, facts.pw_gid)
    home.chmod(0o700)


@contextlib.contextmanager
def cluster(
    more: str = "", *, cgroups: bool = False, cpus: int = CPUS, nodes: Sequence[str] = NODES
) -> Iterator[Cluster]:
    """A cluster for a while."""
    root = Path(tempfile.mkdtemp(prefix="hpcext-slurm-"))
    root.chmod(0o755)
    one = Cluster(root, more, cgroups=cgroups, cpus=cpus, nodes=nodes)
    try:
        one.start()
        yield one
    finally:
        one.stop()


def main(words: Sequence[str]) -> int:
    """A cluster to try things on."""
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
    with cluster(" ".join(words)) as one:
        sys.stdout.write(f"export SLURM_CONF={one.environ['SLURM_CONF']}\n")
        sys.stdout.flush()
        signal.sigwait({signal.SIGINT, signal.SIGTERM})
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
