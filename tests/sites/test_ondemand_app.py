"""The app for Open OnDemand: real ERB, YAML and shell, a pilot, and a proxy as its own.

Open OnDemand itself cannot be had here. What is done in its place follows its documentation:
``ondemand.rb`` fills in the files, :data:`SESSION` is the order of its ``basic`` batch script, and
:class:`Proxy` is ``/rnode/HOST/PORT/``, which removes the beginning of the path.
"""

from __future__ import annotations

import html
import http.client
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import urljoin, urlsplit

import pytest
from site_of_test import Site, wait_for
from written import whole_lines

from hpcext.config import POLICIES

ROOT = Path(__file__).parents[2]
APP = ROOT / "site_configs" / "ondemand" / "hpcext"
RENDER = Path(__file__).with_name("ondemand.rb")
FORM = {"jobs": "", "nodes": "1", "gpus": "2", "hours": "4", "policy": "marble"}
PROXY = "127.0.0.2"

SESSION = """#!/bin/bash
cd "$1" || exit 9
export host port
clean_up() { [[ -z $SCRIPT_PID ]] || kill "$SCRIPT_PID" 2>/dev/null; exit "${1:-0}"; }
trap 'clean_up 0' TERM
host=127.0.0.1
[[ -e before.sh ]] && source before.sh
./script.sh &
SCRIPT_PID=$!
[[ -e after.sh ]] && source after.sh
umask 077
printf 'token: %s\\nhost: %s\\nport: %s\\npassword: x\\n' "$token" "$host" "$port" >connection.yml
wait $SCRIPT_PID || clean_up 1
clean_up
"""

STUB = """#!/bin/bash
# In the place of hpcext: notes its arguments.
printf '%s\\0' "$@" >>"$ARGUMENTS"; printf '\\n' >>"$ARGUMENTS"
umask >>"$ARGUMENTS.umask"
[[ $1 != dashboard ]] || echo "http://node:4321/a_token-of/"
[[ $1 != "$FAILING" ]]
"""

HOSTILE = [
    "/home/u/'; touch HACKED; '.toml",
    '/home/u/"; touch HACKED; ".toml',
    "/home/u/$(touch HACKED)`touch HACKED`.toml",
    "/home/u/a\ntouch HACKED\n.toml",
    "/home/u/<%= system('touch HACKED') %>.toml",
    "/home/u/a b*?[x]~ ${HOME} \\.toml",
    "/home/u/é 日本.toml",
]


def render(out: Path, administrator: bool = True, **form: Any) -> dict[str, Any]:
    """What Open OnDemand makes of the app; the values of an administrator are those of the file."""
    out.mkdir(exist_ok=True)
    asked = {
        "app": str(APP),
        "form": {**FORM, **form},
        "out": str(out),
        "administrator": administrator,
        "connection": {"host": "n1.example.org", "port": "4321", "token": "a_token-of"},
    }
    done = subprocess.run(
        ["ruby", RENDER], input=json.dumps(asked), capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert isinstance(found, dict)
    return found


def test_its_form_is_whole(tmp_path: Path) -> None:
    form = render(tmp_path / "out")["form"]
    assert set(form["attributes"]) <= set(form["form"])
    fields = [each for each in form["attributes"].values() if isinstance(each, dict)]
    widgets = {each.get("widget", "text_field") for each in fields}
    assert widgets <= {"text_field", "number_field", "select", "path_selector"}
    policies = [value for _, value in form["attributes"]["policy"]["options"]]
    assert set(policies) <= set(POLICIES)
    manifest = (APP / "manifest.yml").read_text()
    assert "role: batch_connect" in manifest
    done = subprocess.run(
        [
            "ruby",
            "-ryaml",
            "-e",
            "YAML.safe_load(File.read(ARGV[0])).fetch('name')",
            APP / "manifest.yml",
        ],
        check=False,
    )
    assert done.returncode == 0


def test_nobody_types_what_is_fixed(tmp_path: Path) -> None:
    render(tmp_path / "out", administrator=False, setup="touch HACKED", batch="none")
    script = (tmp_path / "out" / "script.sh").read_text()
    assert "HACKED" not in script
    assert "batch=slurm" in script


@pytest.mark.parametrize(
    ("batch", "native"),
    [
        ("slurm", ["--ntasks=1", "--cpus-per-task=1", "--mem=1G"]),
        ("lsf", ["-n", "1"]),
        ("none", None),
    ],
)
def test_the_session_is_a_small_job(tmp_path: Path, batch: str, native: list[str] | None) -> None:
    submit = render(tmp_path / "out", batch=batch)["submit"]
    assert submit["batch_connect"] == {"template": "basic", "conn_params": ["token"]}
    assert (submit["script"] or {}).get("native") == native


def test_its_scripts_are_good_shell(tmp_path: Path) -> None:
    out = tmp_path / "out"
    render(out, jobs=HOSTILE[0], setup="module load hpcext")
    assert {each.name for each in out.iterdir()} == {"script.sh", "before.sh", "after.sh"}
    assert os.access(out / "script.sh", os.X_OK)
    done = subprocess.run(
        ["shellcheck", "--shell=bash", *sorted(out.iterdir())],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout


def test_its_view_leads_to_the_proxy(tmp_path: Path) -> None:
    view = render(tmp_path / "out")["view"]
    assert 'href="/rnode/n1.example.org/4321/a_token-of/"' in view


def start(path: Path, session: Path, environ: dict[str, str]) -> subprocess.Popen[bytes]:
    script = path / "session.sh"
    script.write_text(SESSION)
    with open(session / "output.log", "wb") as log:
        return subprocess.Popen(
            ["bash", script, session],
            env=environ,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            umask=0o022,
        )


def stubbed(path: Path, failing: str = "-") -> dict[str, str]:
    """An environment with what notes arguments, and a place without hpcext."""
    programs = path / "programs"
    programs.mkdir(exist_ok=True)
    (programs / "hpcext").write_text(STUB)
    (programs / "hpcext").chmod(0o755)
    return {
        "PATH": f"{programs}:/usr/bin:/bin",
        "ARGUMENTS": str(path / "arguments"),
        "FAILING": failing,
    }


def calls(path: Path) -> list[list[str]]:
    """The arguments of each call."""
    text = (path / "arguments").read_text() if (path / "arguments").exists() else ""
    return [call.split("\0") for call in text.split("\0\n")[:-1]]


@pytest.mark.cases(11)
@pytest.mark.parametrize("batch", ["slurm", "lsf", "none"])
@pytest.mark.parametrize("hostile", HOSTILE)
def test_what_is_typed_is_a_word(tmp_path: Path, hostile: str, batch: str) -> None:
    out = tmp_path / "out"
    typed = {"queue": hostile, "account": hostile, "nodes": "2; touch HACKED", "gpus": hostile}
    render(out, jobs=hostile, batch=batch, proxies="10.0.0.7", **typed)
    assert start(tmp_path, out, stubbed(tmp_path)).wait(timeout=100) == 0
    assert not [*tmp_path.rglob("HACKED")]
    submitted, shown = calls(tmp_path)
    if batch == "none":
        assert submitted == ["run", hostile, "--gpus=1", "--policy=marble", "--detach"]
    else:
        words = ["pilot", "submit", hostile, "--nodes=2", "--gpus-per-node=1"]
        time = "--time=4:00:00" if batch == "slurm" else "--time=4:00"
        ours = {
            "slurm": [f"--partition={hostile}", f"--account={hostile}"],
            "lsf": ["-q", hostile, "-P", hostile],
        }
        assert submitted == [*words, time, "--requeue", "--policy=marble", "--", *ours[batch]]
    assert shown == ["dashboard", "--host=0.0.0.0", "--from=10.0.0.7"]
    connection = (out / "connection.yml").read_text()
    assert connection == "token: a_token-of\nhost: 127.0.0.1\nport: 4321\npassword: x\n"
    assert (out / "connection.yml").stat().st_mode & 0o077 == 0
    assert (out / "address").stat().st_mode & 0o077 == 0
    # Slurm hands that of who submits on to the trainings.
    assert set((tmp_path / "arguments.umask").read_text().split()) == {"0022"}


def test_a_session_that_is_requeued_does_not_submit_again(tmp_path: Path) -> None:
    render(tmp_path / "out", jobs="/jobs.toml", batch="slurm", proxies="10.0.0.7")
    for _ in range(2):
        assert start(tmp_path, tmp_path / "out", stubbed(tmp_path)).wait(timeout=100) == 0
    assert [call[0] for call in calls(tmp_path)] == ["pilot", "dashboard", "dashboard"]


def test_without_a_job_file_it_only_shows(tmp_path: Path) -> None:
    render(tmp_path / "out", queue="gpu")
    assert start(tmp_path, tmp_path / "out", stubbed(tmp_path)).wait(timeout=100) == 0
    ((first, *_),) = calls(tmp_path)
    assert first == "dashboard"


def test_the_addresses_of_the_web_server_are_its_own(tmp_path: Path) -> None:
    render(tmp_path / "out")
    script = (tmp_path / "out" / "script.sh").read_text()
    found = re.search(r"^proxies=(.*)$", script, re.M)
    assert found
    assert "127.0.0.1" not in found[1].split(",")
    assert "fe80" not in found[1]


@pytest.mark.parametrize(
    ("form", "failing", "said"),
    [
        ({"jobs": "--help"}, "-", "the job file is no absolute path: --help"),
        ({"jobs": "/a.toml"}, "pilot", "the trainings were not submitted"),
        ({}, "no hpcext", "there is no command hpcext here"),
        ({}, "dashboard", ""),
    ],
)
def test_what_fails_ends_the_session(
    tmp_path: Path, form: dict[str, str], failing: str, said: str
) -> None:
    environ = stubbed(tmp_path, failing)
    if failing == "no hpcext":
        shutil.rmtree(tmp_path / "programs")
    render(tmp_path / "out", **form)
    # Left by an earlier run.
    (tmp_path / "out" / "connection.yml").write_text("port: 1")
    assert start(tmp_path, tmp_path / "out", environ).wait(timeout=100) == 1
    assert said in (tmp_path / "out" / "output.log").read_text()
    if failing != "dashboard":
        assert not (tmp_path / "out" / "connection.yml").exists()


class Proxy(ThreadingHTTPServer):
    """``/rnode/HOST/PORT/PATH`` → ``http://HOST:PORT/PATH``, from an address of its own."""

    daemon_threads = True


class Handler(BaseHTTPRequestHandler):
    """As mod_proxy: the header ``Host`` is that of the node."""

    def do_GET(self) -> None:
        found = re.fullmatch(r"/rnode/([^/]+)/(\d+)(/.*|)", self.path)
        assert found
        node = http.client.HTTPConnection(
            found[1], int(found[2]), timeout=100, source_address=(PROXY, 0)
        )
        try:
            node.request("GET", found[3] or "/", headers={"X-Forwarded-Proto": "https"})
            answer = node.getresponse()
            body = answer.read()
        finally:
            node.close()
        self.send_response(answer.status)
        for name, value in answer.getheaders():
            if name.lower() not in {"connection", "transfer-encoding"}:
                self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        pass


@pytest.fixture
def proxy() -> Iterator[Proxy]:
    with Proxy(("127.0.0.1", 0), Handler) as made:
        thread = threading.Thread(target=made.serve_forever, args=(0.02,))
        thread.start()
        yield made
        made.shutdown()
        thread.join()


def fetch(address: str) -> tuple[int, str]:
    parts = urlsplit(address)
    browser = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=100)
    try:
        browser.request("GET", f"{parts.path}?{parts.query}" if parts.query else parts.path)
        answer = browser.getresponse()
        return answer.status, answer.read().decode()
    finally:
        browser.close()


def test_a_pilot_is_seen_through_the_proxy_and_by_nobody_else(
    site: Site, proxy: Proxy, tmp_path: Path
) -> None:
    """Every link of its pages leads on below the proxy's own address."""
    site.write_jobs(site.counter("only", gated=True))
    out = tmp_path / "out"
    render(out, jobs=str(site.jobs), batch="none", proxies=PROXY, gpus="2")
    environ = {**site.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    session = start(tmp_path, out, environ)
    try:
        log = out / "output.log"
        connection = out / "connection.yml"
        wait_for(
            lambda: len(whole_lines(connection)) == 4 or session.poll() is not None, "the session"
        )
        assert session.poll() is None, log.read_text()
        facts = dict(line.split(": ", 1) for line in whole_lines(connection))
        assert facts["token"] not in log.read_text()
        origin = f"http://127.0.0.1:{proxy.server_port}"
        node = f"{origin}/rnode/{facts['host']}/{facts['port']}/"
        first = f"{node}{facts['token']}/"
        status, page = fetch(first)
        assert status == 200
        seen, left = {first}, [(first, page)]
        while left:
            address, text = left.pop()
            for link in re.findall(r'(?:href|src)="([^"]*)"', text):
                to = urljoin(address, html.unescape(link)).partition("#")[0]
                assert to.startswith(first), (address, link)
                if to not in seen:
                    seen.add(to)
                    status, body = fetch(to)
                    assert status == 200, to
                    if urlsplit(to).path.endswith("/") and not urlsplit(to).query:
                        left.append((to, body))
        names = {urlsplit(each).path.removeprefix(urlsplit(first).path) for each in seen}
        assert {"style.css", "live.js", "icon.svg", "data.json"} <= names
        (pilot,) = {each.split("/")[1] for each in names if each.startswith("pilot/")}
        document = json.loads(fetch(f"{first}data.json")[1])
        assert [each["id"] for each in document["pilots"]] == [pilot]
        # Without the token, and from elsewhere.
        assert fetch(node)[0] == 403
        with pytest.raises((http.client.RemoteDisconnected, ConnectionError)):
            fetch(f"http://127.0.0.1:{facts['port']}/{facts['token']}/")
        site.open("only")
        wait_for(
            lambda: '"state": "completed"' in site.run("status", pilot, "--json").out, "its end"
        )
    finally:
        os.killpg(session.pid, signal.SIGTERM)
        session.wait(timeout=100)
    assert not site.left_behind()
