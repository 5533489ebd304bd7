"""``hpcext metrics``: names and labels that monitoring can rely on, and their dashboard."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import re
import signal
import threading
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from made_pilots import HOUR_S, make
from prometheus_client.parser import text_string_to_metric_families
from site_of_test import Site, wait_for

from hpcext.cli.main import main
from hpcext.cli.metrics import Pilots, Server, make_registry, read_address, read_token
from hpcext.core.errors import InputError
from hpcext.harvest.leases import Terms
from hpcext.manager.views.metrics import METRICS, UNREADABLE

DASHBOARD = Path(__file__).parents[2] / "site_configs" / "grafana" / "hpcext.json"

Told = dict[str, dict[tuple[str, ...], float]]


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("HPCEXT_STATE_DIR", str(tmp_path / "state"))
    return tmp_path


def told(text: str) -> Told:
    """Name of the sample → labels' values → value; in the form that Prometheus reads."""
    found: Told = {}
    for family in text_string_to_metric_families(text):
        for each in family.samples:
            found.setdefault(each.name, {})[tuple(each.labels.values())] = each.value
    return found


def textfile(home: Path) -> Told:
    path = home / "hpcext.prom"
    assert main(["metrics", "--textfile", str(path)]) == 0
    return told(path.read_text())


def test_the_metrics_of_a_pilot(home: Path) -> None:
    name = make("one")
    found = textfile(home)
    key = (name,)
    assert found["hpcext_pilot_up"] == {key: 0.0}
    assert found["hpcext_jobs"][name, "pending"] == 1
    assert found["hpcext_gpu_held_seconds_total"][key] == 3 * HOUR_S * 2
    uses = found["hpcext_gpu_use_seconds"]
    assert sum(uses.values()) == pytest.approx(3 * HOUR_S * 2)
    assert uses[name, "training"] == pytest.approx(1.03 * 2 * HOUR_S)
    assert found["hpcext_starts_total"][key] == 2
    assert found["hpcext_suspensions_total"][key] == 1
    assert found["hpcext_lost_steps_total"][key] == 50
    # What it had it has no more.
    assert found["hpcext_gpus"] == {key: 0.0}


def test_names_follow_the_conventions(home: Path) -> None:
    make("trainers", terms=Terms(partition="idle", gpus=2))
    textfile(home)
    text = (home / "hpcext.prom").read_text()
    families = {each.name: each for each in text_string_to_metric_families(text)}
    for name, metric in METRICS.items():
        assert re.fullmatch(r"hpcext_[a-z]+(_[a-z]+)*", name)
        assert name.endswith("_total") == (metric.kind == "counter")
        family = families[name.removesuffix("_total") if metric.kind == "counter" else name]
        assert (family.type, family.documentation) == (metric.kind, metric.text)
        assert metric.text.endswith(".")
        labels = {key for each in family.samples for key in each.labels}
        # A pilot whose jobs report no goodput has no utility.
        if family.samples:
            assert labels == {"pilot", *([metric.label] if metric.label else [])}
        else:
            assert name == "hpcext_utility_ratio"


def test_old_pilots_are_left_out_and_broken_ones_counted(home: Path) -> None:
    """One that was submitted and has not begun is neither."""
    old, recent, broken, waiting = (make(name) for name in ("old", "recent", "broken", "waiting"))
    journal = {name: home / "state" / "pilots" / name / "journal.jsonl" for name in (old, broken)}
    days_ago = time.time() - 30 * HOUR_S
    os.utime(journal[old], (days_ago, days_ago))
    journal[broken].write_text("no journal\n")
    (home / "state" / "pilots" / waiting / "journal.jsonl").unlink()
    found = textfile(home)
    assert list(found["hpcext_pilot_up"]) == [(recent,)]
    assert found[UNREADABLE] == {(): 1.0}


def test_the_file_is_replaced_as_a_whole_and_readable_by_others(home: Path) -> None:
    textfile(home)
    path = home / "hpcext.prom"
    before = path.stat()
    assert before.st_mode & 0o777 == 0o644
    textfile(home)
    assert path.stat().st_ino != before.st_ino
    assert [each.name for each in home.glob("*prom*")] == ["hpcext.prom"]


def test_it_answers_on_this_machine_alone(site: Site) -> None:
    site.write_jobs(site.counter("one", gated=True, gpus={"min": 1, "max": 2}))
    site.start("run", str(site.jobs), "--gpus", "2", "--dir", str(site.pilot))
    server = site.start("metrics", "--listen", "127.0.0.1:0")
    assert server.stdout
    address = server.stdout.readline().strip()
    assert re.fullmatch(r"http://127\.0\.0\.1:\d+/metrics", address)

    token = (site.path / "state/hpcext/metrics-token").read_text().strip()
    shown = urllib.request.Request(address, headers={"Authorization": f"Bearer {token}"})

    def running() -> bool:
        with urllib.request.urlopen(shown, timeout=500) as answer:
            found = told(answer.read().decode())
        return 1.0 in [
            value for key, value in found.get("hpcext_jobs", {}).items() if key[1] == "running"
        ]

    # Each question is answered by what is there by then.
    wait_for(running, "a job that runs")
    site.open("one")
    wait_for(lambda: not running(), "the end of the job")
    server.send_signal(signal.SIGTERM)
    assert server.wait(60) == 0


@pytest.fixture
def server(home: Path) -> Iterator[Server]:
    registry = make_registry(Pilots(home / "state"))
    with Server(registry, "127.0.0.1", 0, read_token(home / "token")) as made:
        thread = threading.Thread(target=made.serve_forever, args=(0.02,))
        thread.start()
        yield made
        made.shutdown()
        thread.join()


@pytest.mark.parametrize(
    ("method", "path", "headers", "status"),
    [
        ("GET", "/metrics", {"Authorization": "Bearer {token}"}, 200),
        ("GET", "/metrics?x", {"Authorization": "bearer {token}"}, 200),
        ("HEAD", "/metrics", {"Authorization": "Bearer {token}"}, 200),
        ("GET", "/", {"Authorization": "Bearer {token}"}, 404),
        ("GET", "/metrics", {}, 401),
        ("GET", "/metrics", {"Authorization": "Bearer {token}x"}, 401),
        ("GET", "/metrics", {"Authorization": "Basic {token}"}, 401),
        ("GET", "/metrics", {"Authorization": "Bearer \xf6"}, 401),
        ("GET", "/{token}", {}, 401),
        # A stranger's name that leads here, asked by a browser of the user.
        ("GET", "/metrics", {"Authorization": "Bearer {token}", "Host": "rebound.example"}, 403),
        ("POST", "/metrics", {"Authorization": "Bearer {token}"}, 405),
    ],
)
def test_who_is_answered(
    server: Server, method: str, path: str, headers: dict[str, str], status: int
) -> None:
    make("one")
    connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=500)
    said = {name: text.format(token=server.token) for name, text in headers.items()}
    with contextlib.closing(connection):
        connection.request(method, path.format(token=server.token), headers=said)
        answer = connection.getresponse()
        text = answer.read().decode()
    assert answer.status == status
    assert ("hpcext_jobs{" in text) == (status == 200 and method == "GET")
    if status == 401:
        assert answer.headers["WWW-Authenticate"] == "Bearer"


def test_the_token_is_made_once_and_is_the_users_alone(home: Path) -> None:
    before = os.umask(0)
    try:
        token = read_token(home / "state" / "token")
    finally:
        os.umask(before)
    assert (home / "state" / "token").stat().st_mode & 0o777 == 0o600
    assert read_token(home / "state" / "token") == token
    # Prometheus may be in the group.
    (home / "state" / "token").chmod(0o640)
    assert read_token(home / "state" / "token") == token


@pytest.mark.parametrize(
    ("text", "mode", "said"),
    [
        ("x" * 32, 0o644, "mode 0644"),
        ("x" * 32, 0o620, "mode 0620"),
        ("short", 0o600, "holds no token"),
        ("x" * 20 + "\n" + "y" * 20, 0o600, "holds no token"),
        ("", 0o600, "holds no token"),
    ],
)
def test_invalid_token_files_are_refused(home: Path, text: str, mode: int, said: str) -> None:
    (home / "token").write_text(text)
    (home / "token").chmod(mode)
    with pytest.raises(InputError, match=said):
        read_token(home / "token")


@pytest.mark.parametrize(
    ("words", "wrong"),
    [
        (["--textfile", "x.prom", "--token-file", "t"], "--token-file: a file needs no token"),
        (["--listen", "example.org:80"], "--listen: 'example.org:80' is not an address"),
        (["--listen", "127.0.0.1:99999"], "'127.0.0.1:99999' is not an address"),
        (["--textfile", "hpcext.txt"], "--textfile: hpcext.txt would not be read"),
        (["--textfile", "/nowhere/x.prom"], "No such file or directory"),
    ],
)
def test_impossible_requests_are_refused(
    home: Path, capsys: pytest.CaptureFixture[str], words: list[str], wrong: str
) -> None:
    assert main(["metrics", *words]) in {1, 2}
    assert wrong in capsys.readouterr().err


def test_addresses() -> None:
    assert read_address("[::1]:0") == ("::1", 0)
    with pytest.raises(InputError):
        read_address("9738")


def queries() -> list[str]:
    document = json.loads(DASHBOARD.read_text())
    asked = [target["expr"] for panel in document["panels"] for target in panel["targets"]]
    return asked + [each["query"] for each in document["templating"]["list"][1:]]


@pytest.mark.parametrize("query", queries())
def test_the_dashboard_asks_for_what_there_is(query: str) -> None:
    names = re.findall(r"\bhpcext_\w+", query)
    assert names
    known = {*METRICS, UNREADABLE}
    assert set(names) <= known
    allowed = {"pilot", *(METRICS[name].label for name in names if name in METRICS)} - {""}
    matched = [re.findall(r"(\w+)\s*[=!]~?", part) for part in re.findall(r"{([^}]*)}", query)]
    grouped = [part.split(",") for part in re.findall(r"by \(([^)]*)\)", query)]
    used = {label.strip() for part in [*matched, *grouped] for label in part}
    assert used <= allowed
    # Only of what never falls a rate can be told.
    for name in re.findall(r"\brate\((hpcext_\w+)", query):
        assert METRICS[name].kind == "counter"


def test_every_panel_is_in_its_own_place() -> None:
    panels = json.loads(DASHBOARD.read_text())["panels"]
    cells = [
        (panel["gridPos"]["x"] + x, panel["gridPos"]["y"] + y)
        for panel in panels
        for x in range(panel["gridPos"]["w"])
        for y in range(panel["gridPos"]["h"])
    ]
    assert len(cells) == len(set(cells))
    assert len({panel["id"] for panel in panels}) == len(panels)
    for panel in panels:
        told_apart = re.findall(r"{{(\w+)}}", json.dumps(panel["targets"]))
        assert all(label in {"pilot", "state", "use"} for label in told_apart)
