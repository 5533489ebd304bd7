"""The virtual shell does what this machine's own /bin/sh does, and runs our scripts."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest
from virtual import calls, shell
from virtual.kernel import Kernel, Process

SCRIPTS = {
    "words": """
a='x y'; b=
echo $a "$a" "${b:-none}" "${b-unset}" "${c-unset}" $((128 - 3)) 'it'"'"s
echo "$1-$2" $# "\\$a" \\
    continued""",
    "conditions": """
[ -z "$a" ] && echo empty; [ -n "$a" ] || echo still
if [ 1 = 2 ]; then echo no
elif [ 3 -gt 2 ]; then echo three; else echo no; fi
! false && echo not
case 137 in 13[45]|x) echo no ;; 136 | 137) echo yes ;; *) echo other ;; esac
[ ! -e /nowhere ] && echo gone""",
    "loops": """
for try in 1 2 3 4; do [ $try = 2 ] && continue; [ $try = 4 ] && break; echo $try; done
while :; do break; done; echo $?; until true; do echo no; done
for a in 1 2; do for b in 1 2; do [ $b = 2 ] && continue 2; echo $a$b; done; done
for word; do case $word in b*) echo "b: $word" ;; [!-]*) echo "$word"; break ;; esac; done""",
    "functions": """
say() { echo "said $1" >&2; return 3; }
say hello 2>/dev/null; echo $?
f() { [ -z "$1" ] || echo "$1"; }; f; f two; echo $?""",
    "subshells": """
(exit 3); echo $?; (a=1; echo $a); echo "${a-unset}"; { b=2; }; echo $b
sh -c 'exit 5' & pid=$!; wait "$pid"; echo $?; kill -0 "$pid" 2>/dev/null || echo gone
wait "$pid"; echo $?""",
    "killed": """
sh -c 'kill -KILL $$' & wait $!; echo $?
(trap '' USR1; exec sh -c 'kill -USR1 $$; echo lives')
sh -c 'kill -USR1 $$'; echo $?""",
    "traps": """
trap 'echo heard' USR1; kill -USR1 $$; echo after
trap '' USR2; kill -USR2 $$; echo deaf; (kill -USR2 $$); trap - USR1
sleep 1 & pid=$!; trap 'echo woken; kill -TERM $pid' USR1
(sleep 0.2; kill -USR1 $$) & wait $pid; echo $?; wait $pid; echo $?""",
    "exec": "exec sh -c 'echo replaced $0' x; echo never",
    "redirected": """
{ echo one; echo two >&2; } 2>/dev/null
echo three 2>&1 >/dev/null; echo four""",
    "not redirected": """
{ echo one >/no/such/file || echo two; } 2>/dev/null
(echo three; : >/no/such/file; echo no) 2>/dev/null; echo $?""",
    "printed": """
a=$(echo one; echo "two  three"; echo); echo "$a" $a "<$(echo "($(echo deep))")>$(exit 3)" $?
b=$(exit 4); echo $? "$b"; trap 'echo heard' USR1; c=$(kill -USR1 $$; echo said); echo "$c" """,
    "files": """
cd /tmp && echo one > one.$$ && mv one.$$ two.$$ && [ -e /tmp/two.$$ ] && echo yes
[ ! -e one.$$ ] && echo gone; rm -f two.$$ none.$$; echo $?
mv one.$$ two.$$ 2>/dev/null; echo $?; cd /no/such 2>/dev/null; echo $?
now=$(date +%s); [ "$now" -gt 1700000000 ] && echo late""",
    "missing": "/no/such/program 2>/dev/null; echo $?",
}


def programs(argv: Sequence[str]) -> Callable[[Process], int | None] | None:
    return shell.PROGRAMS.get(argv[0])


@pytest.fixture
def kernel() -> Iterator[Kernel]:
    one = Kernel(1, programs)
    calls.use(one)
    yield one
    calls.use(None)


@pytest.mark.parametrize("name", SCRIPTS)
def test_it_does_what_the_real_one_does(kernel: Kernel, name: str) -> None:
    argv = ["sh", "-c", SCRIPTS[name], "sh", "first", "second word"]
    dash = shutil.which("dash") or "sh"
    real = subprocess.run([dash, *argv[1:]], capture_output=True, text=True, check=False)
    assert played(kernel, argv) == (real.returncode, real.stdout)


def played(kernel: Kernel, argv: Sequence[str]) -> tuple[int, str]:
    """The status of a script, and what it prints, in the room."""
    machine = kernel.machine("n1")

    machine.disk.make_directory("/tmp", 0o1777, 0)

    def program(process: Process) -> int:
        fd = calls.open("/out", 0o101, 0o644)
        calls.dup2(fd, 1)
        return shell.program(process)

    process = kernel.spawn(machine, argv, {"HOME": "/"}, program)
    kernel.run(lambda: process.dead, 100)
    assert not kernel.errors, kernel.errors
    file = machine.disk.find("/out")
    return process.code or 0, bytes(file.data).decode()  # type: ignore[attr-defined]


def test_what_it_does_not_know_is_an_error() -> None:
    for text in ("a | b", "cat <<X\nX", "echo `date`"):
        with pytest.raises(shell.Unknown):
            shell.Parser(text).script()


def test_scripts_of_ours_are_understood() -> None:
    from hpcext.backends import batch_job
    from hpcext.backends.lsf import requeue
    from hpcext.batch.lsf import leasing as lsf_leasing
    from hpcext.batch.slurm import leasing

    shell.Parser(leasing.SlurmLeasing().script("python agent.py", Path("/x"))).script()
    for lines in (
        requeue.Lines("", ""),
        *(requeue.pilot_lines(Path("/x"), by_value=each) for each in (True, False)),
    ):
        script = batch_job._SCRIPT.format(
            manage="hpcext run", begin=lines.begin, ends="INT TERM", finish=lines.finish
        )
        shell.Parser(script).script()
    shell.Parser(lsf_leasing._script("python agent.py", Path("/x"))).script()
