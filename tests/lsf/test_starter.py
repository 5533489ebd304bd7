"""hpcext-starter: whatever a user submits arrives at the job as it was, byte for byte."""

from __future__ import annotations

import os
import random
import subprocess
from pathlib import Path

import lsf_run
import lsf_submit
import pytest
from lsf_site import Queue
from lsf_tools import SOURCED, STARTER, MakeSite, command, output

from hpcext.admin import lsf

WAYS = {
    "script, executed": (str(STARTER), ()),
    "script, sourced": (SOURCED, ()),
    "text, sourced": (SOURCED, ("starter_gets_text",)),
}
"""JOB_STARTER, and what the engine makes of %USRCMD."""

LINES = (50, pytest.param(500, marks=pytest.mark.slow))
"""Of each shell."""
PIECES = (
    b"'", b'"', b"`", b"$(touch run)", b"`touch run`", b"$HOME", b"${x:?}", b"\n", b"\\",
    b"\\\n", b";", b"&", b"|", b">run", b"<<EOF", b"#", b"!", b"*", b"~", b"--", b"-rf", b"-",
    b"%USRCMD", b"%s", b"\xff\xfe", b"\xc3", b"\x81", b"\x88", b"\x01\x7f", b"\xe2\x82\xac",
    b"\t", b"\r", b" ", b"  ", b"", b"=", b"LSB_SUB_ADDITIONAL=",
    b'\nLSB_SUB_QUEUE="other"\n', b"hpcext(gpus=9)", b"#!/bin/bash", b"#BSUB -q x", b"a",
    b"b.c", b"(", b")", b"{", b"}", b"[", b"]]", b"fi", b"done",
)  # fmt: skip


def hostile(draw: random.Random) -> tuple[bytes, bytes]:
    """A command line of a shell, and what it prints."""
    says, lines = b"", []
    for _ in range(draw.randint(1, 3)):
        words = [word(draw) for _ in range(draw.randint(1, 4))]
        quoted = b" ".join(quote(draw, each) for each in words)
        says += b"".join(each + b"\0" for each in words)
        shape = draw.choice(
            (
                b"printf '%%s\\0' %b",
                b'printf "%%s\\0" %b',
                b"LC_ALL=C printf '%%s\\0' %b",
                b"{ printf '%%s\\0' %b; }",
                b"( printf '%%s\\0' %b )",
                b"if true; then printf '%%s\\0' %b; fi",
                b"for i in %b; do printf '%%s\\0' \"$i\"; done",
                b"cd / && printf '%%s\\0' %b",
                b"eval 'set -- \"$@\"'; printf '%%s\\0' %b",
                b"true \"a 'b' $(printf '\\n;')\" `true \"$x\"`; printf '%%s\\0' %b # it's \"",
                b"# it's \"a comment\nprintf '%%s\\0' %b",
                b"say() { printf '%%s\\0' \"$@\"; }; say %b",
            )
        )
        lines.append(shape % quoted)
    text = draw.choice((b"", b" ", b"\n", b"#!/bin/sh\n", b"# $(touch run)\n")) + lines[0]
    for line in lines[1:]:
        in_comment = b" # it's" in text.rpartition(b"\n")[2]
        text += (b"\n" if in_comment else draw.choice((b"\n", b"; ", b" && "))) + line
    return text, says


def word(draw: random.Random) -> bytes:
    if draw.random() < 0.005:
        return draw.randbytes(200_000).replace(b"\0", b"")
    return b"".join(draw.choices(PIECES, k=draw.randint(0, 6)))


def quote(draw: random.Random, text: bytes) -> bytes:
    way = draw.randrange(3)
    if way == 0:
        return b"'" + text.replace(b"'", b"'\\''") + b"'"
    if way == 1 or b"\n" in text or not text or len(text) > 1000:
        for each in b'\\"$`':
            text = text.replace(bytes([each]), b"\\" + bytes([each]))
        return b'"' + text + b'"'
    return b"".join(b"\\" + bytes([each]) if each < 0x80 else bytes([each]) for each in text)


@pytest.mark.parametrize("shell", [pytest.param("/bin/dash", marks=pytest.mark.slow), "/bin/bash"])
@pytest.mark.parametrize("lines", LINES)
def test_hostile_command_lines_arrive_byte_for_byte(
    make_site: MakeSite, shell: str, lines: int
) -> None:
    """Command lines and scripts, through esub and each way of a starter."""
    draw = random.Random(f"hpcext {shell}")
    queues = {way: Queue(starter) for way, (starter, _) in WAYS.items()}
    sites = {
        way: make_site("bare_quotes", *quirks, name=f"lsf{number}", queues=queues, shell=shell)
        for number, (way, (_, quirks)) in enumerate(WAYS.items())
    }
    environ = {"PATH": os.environ["PATH"]}
    for number in range(lines):
        way = draw.choice(list(WAYS))
        site = sites[way]
        text, says = hostile(draw)
        is_script = draw.random() < 0.2
        if is_script:
            text = f"#!{shell}\n".encode() + text
        (job,), said = lsf_submit.submit(
            site,
            ["-q", way, "-a", "hpcext(gpus=2)", "-o", "out"]
            + ([] if is_script else [os.fsdecode(text)]),
            stdin=text if is_script else b"",
            environ=environ,
            cwd=site.directory,
        )
        assert said == "", (number, text)
        assert job.environ == {**environ, "HPCEXT_GPUS": "2"}, (number, text)
        ended = lsf_run.run(site, job.id)
        out = site.directory / "out"
        assert (out.read_bytes(), ended.state) == (says, "DONE"), (number, way, text[:1000])
        out.unlink()
        assert not (site.directory / "run").exists(), (number, way, text[:1000])


STATE = """
unset -v LSB_JOBID LSB_JOBFILENAME LSB_QUEUE LSB_JOBNAME
echo "$?" "$#" "$-" "$(umask)" "$PWD" "$0" "$(ulimit -a)" "$(trap)" "$(alias)"
set | grep -v '^\\(_\\|PPID\\|BASHPID\\|OPTIND\\|RANDOM\\|SECONDS\\|EPOCH[A-Z]*\\|LINENO\\)='
ls /proc/self/fd | wc -l
env | sort
exit 3
"""


@pytest.mark.cases(3)
@pytest.mark.parametrize("shell", ["/bin/dash", "/bin/bash"])
@pytest.mark.parametrize("way", WAYS)
def test_without_our_variables_nothing_changes(make_site: MakeSite, way: str, shell: str) -> None:
    starter, quirks = WAYS[way]
    seen = []
    # A starter that does nothing: that there is one costs a shell, whatever it is.
    for each in (starter, "command . /dev/null; %USRCMD" if "%" in starter else "/usr/bin/env"):
        queues = {"q": Queue(each)}
        site = make_site(*quirks, name=f"lsf{len(seen)}", queues=queues, shell=shell)
        ended = command(site, "bsub", "-K", "-o", "out", "-e", "err", STATE, HPCEXT_LEAD_S="99")
        assert ended.returncode == 3
        assert (site.directory / "err").read_bytes() == b""
        names = (str(site.directory), "/spool/1.shell", "/spool/1.started")
        said = (site.directory / "out").read_text()
        for name in names:
            said = said.replace(name, "")
        seen.append(said.splitlines())
    assert set(seen[0]) ^ set(seen[1]) == set()
    assert seen[0] == seen[1]
    assert "HPCEXT_LEAD_S=99" in seen[0]


@pytest.mark.parametrize("way", WAYS)
def test_a_script_keeps_its_interpreter_and_end(make_site: MakeSite, way: str) -> None:
    starter, quirks = WAYS[way]
    site = make_site(*quirks, queues={"q": Queue(starter)})
    script = "#!/usr/bin/env python3\n#BSUB -q q\nimport sys\nprint('é')\nsys.exit(7)\n".encode()
    ended = command(site, "bsub", "-K", "-o", "out", stdin=script, PYTHONUTF8="1")
    assert ended.returncode == 7
    assert (site.directory / "out").read_text() == "é\n"
    # Without a first line it is one of the shell.
    ended = command(site, "bsub", "-K", "-o", "out2", stdin=b"echo \"$HPCEXT_GPUS 'a'\"\n")
    assert (site.directory / "out2").read_text() == " 'a'\n"


SAID = {
    "HPCEXT_SUSPENDABLE": "suspended: @HPCEXT@ is not there",
    "HPCEXT_TRAINER": "a trainer: @HPCEXT@ is not there",
}


@pytest.mark.parametrize("variable", SAID)
@pytest.mark.parametrize("way", WAYS)
def test_a_job_that_cannot_be_suspended_says_so_and_runs(
    make_site: MakeSite, way: str, variable: str
) -> None:
    """Of a starter in which hpcext-admin has put no command, and an esub that was not asked."""
    starter, quirks = WAYS[way]
    site = make_site(*quirks, queues={"q": Queue(starter)})
    command(site, "bsub", "-K", "-o", "out", "-e", "err", "echo ran", **{variable: "1"})
    assert (site.directory / "out").read_text() == "ran\n"
    said = f"hpcext: the job cannot be {SAID[variable]}; it runs as usual\n"
    assert (site.directory / "err").read_text() == said


@pytest.mark.parametrize("starter", [str(STARTER), f'{STARTER} "%USRCMD"', f"{STARTER} %USRCMD"])
def test_a_wrong_way_is_said_at_the_first_job(make_site: MakeSite, starter: str) -> None:
    """Where the engine puts in text, a starter that is a command cannot know what it was."""
    site = make_site("starter_gets_text", queues={"q": Queue(starter)})
    ended = command(site, "bsub", "-K", "-o", "out", "echo ran")
    assert ended.returncode == 127
    assert (site.directory / "out").read_text() == (
        "hpcext: hpcext-starter was not given the script of a job (valid in lsb.queues: "
        "JOB_STARTER = command . DIR/hpcext-starter; %USRCMD)\n"
    )


@pytest.mark.parametrize(
    ("starter", "text", "out"),
    [
        ('/bin/sh -c "%USRCMD"', 'echo "a  b"', b"a\n"),
        ("/usr/bin/env X=1 %USRCMD", "printenv X; echo \"x $X\"", b"1\nx \n"),
        (SOURCED, 'echo "a  b"; X=1; echo "x $X"', b"a  b\nx 1\n"),
    ],
    ids=["quoted", "bare", "ours"],
)  # fmt: skip
def test_why_it_is_sourced(make_site: MakeSite, starter: str, text: str, out: bytes) -> None:
    site = make_site("starter_gets_text", queues={"q": Queue(starter)})
    assert output(site, text) == out


def test_a_starter_that_is_gone_lets_jobs_pass(make_site: MakeSite, tmp_path: Path) -> None:
    gone = f"command . {tmp_path}/hpcext-starter; %USRCMD"
    site = make_site("starter_gets_text", queues={"q": Queue(gone)})
    command(site, "bsub", "-K", "-o", "out", "-e", "err", "echo ran")
    assert (site.directory / "out").read_bytes() == b"ran\n"


def test_scripts_are_clean() -> None:
    scripts = sorted(STARTER.parent.iterdir())
    assert len(scripts) == len(lsf.SCRIPTS)
    ended = subprocess.run(["shellcheck", *scripts], capture_output=True, text=True, check=False)
    assert ended.stdout == ""
    for script in scripts:
        assert os.access(script, os.X_OK)
