"""``hpcext metrics`` and its dashboard, with a real Prometheus and a real node_exporter."""

from __future__ import annotations

import contextlib
import json
import re
import subprocess
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from made_pilots import make
from prometheus_client.parser import text_string_to_metric_families
from site_of_test import Site, wait_for

from hpcext.harvest.leases import Terms

DASHBOARD = Path(__file__).parents[2] / "site_configs" / "grafana" / "hpcext.json"

SCRAPE = """
global: {{scrape_interval: 200ms}}
scrape_configs:
  - job_name: hpcext
    authorization: {{credentials_file: '{token}'}}
    static_configs: [targets: ['{address}']]
"""

GOODPUT = {
    "noise_scale": 900.0, "initial_batch": 128, "most_batch": None, "least_per_gpu": 1,
    "most_per_gpu": 64, "accumulates": True, "batch": 256,
    "throughput": [0.02, 0.001, 0.0, 0.0, 0.0, 0.0, 1.0],
}  # fmt: skip


@contextlib.contextmanager
def serving(where: Path, *words: str, ready: str = "") -> Iterator[str]:
    """The address of a program, on a port that is free, once it has said that it is ready."""
    log = where / f"{words[0]}.log"
    with (
        log.open("w") as stderr,
        subprocess.Popen(
            [*words, "--web.listen-address=127.0.0.1:0"], cwd=where, stderr=stderr
        ) as process,
    ):
        try:

            def listening() -> re.Match[str] | None:
                assert process.poll() is None, log.read_text()
                said = log.read_text()
                found = re.search(r'"Listening on" .*?\baddress=(\S+)', said)
                return found if ready in said else None

            yield f"http://{wait_for(listening, words[0])[1]}"
        finally:
            process.kill()


def fetch(address: str, **asked: str) -> str:
    """What is answered; an error says why a query is not accepted."""
    try:
        with urllib.request.urlopen(
            f"{address}?{urllib.parse.urlencode(asked)}", timeout=500
        ) as it:
            return str(it.read().decode())
    except urllib.error.HTTPError as error:
        raise AssertionError((asked, error.read().decode())) from None


def ask(prometheus: str, query: str) -> list[tuple[dict[str, str], float]]:
    """Labels and value of each series that a query gives now."""
    result = json.loads(fetch(f"{prometheus}/api/v1/query", query=query))["data"]["result"]
    return [(series["metric"], float(series["value"][1])) for series in result]


def start_metrics(site: Site) -> str:
    """Beside a pilot: a job of it reports its goodput, one waits, one failed."""
    first = site.counter("first", gated=True, gpus={"min": 1, "max": 1})
    first["env"]["COUNTER_GOODPUT"] = json.dumps(GOODPUT)
    second = site.counter("second", after=["first"])
    failing = {"name": "third", "command": ["false"], "retries": 0}
    site.write_jobs(first, second, failing)
    site.start("run", str(site.jobs), "--gpus", "2", "--dir", str(site.pilot), "--name", "tried")
    server = site.start("metrics", "--listen", "127.0.0.1:0")
    assert server.stdout
    return server.stdout.readline().strip().removeprefix("http://").removesuffix("/metrics")


@pytest.fixture
def harvester(site: Site, monkeypatch: pytest.MonkeyPatch) -> str:
    """One that is over, beside the pilots of the site."""
    monkeypatch.setenv("XDG_STATE_HOME", site.environ["XDG_STATE_HOME"])
    return make("trainers", terms=Terms(partition="idle", gpus=2))


def test_every_panel_of_the_dashboard_has_something_to_show(
    site: Site, harvester: str, tmp_path: Path
) -> None:
    address = start_metrics(site)
    token = site.path / "state/hpcext/metrics-token"
    (tmp_path / "prometheus.yml").write_text(SCRAPE.format(address=address, token=token))
    # Debian's own default is the directory of its service.
    files = ("--config.file=prometheus.yml", "--storage.tsdb.path=samples")
    with serving(tmp_path, "prometheus", *files, ready="Server is ready") as prometheus:

        def said(query: str) -> Any:
            return sorted(value for _, value in ask(prometheus, query))

        # Of two samples there is a rate.
        settled = 'count_over_time(hpcext_jobs{state="failed"}[1h]) > 2 and hpcext_jobs == 1'
        wait_for(lambda: ask(prometheus, settled), "samples of a job that failed")
        trained = 'hpcext_gpu_use_seconds{use="training", pilot=~"tried.*"} > 0'
        wait_for(lambda: ask(prometheus, f"{trained} and on () hpcext_utility_ratio"), "a goodput")
        assert said("up") == [1]
        values = f"{prometheus}/api/v1/label/pilot/values"
        pilots = json.loads(fetch(values, **{"match[]": "hpcext_pilot_up"}))["data"]
        assert harvester in pilots
        assert len(pilots) == 2

        document = json.loads(DASHBOARD.read_text())
        pilot = document["templating"]["list"][1]
        assert pilot["query"] == "label_values(hpcext_pilot_up, pilot)"  # what was asked above
        targets = [
            (panel["title"], target["legendFormat"], target["expr"])
            for panel in document["panels"]
            for target in panel["targets"]
        ]
        # All, and as Grafana writes several that were chosen.
        for chosen in (pilot["allValue"], f"({'|'.join(pilots)})"):
            found = {
                (title, legend): ask(prometheus, query.replace("$pilot", chosen))
                for title, legend, query in targets
            }
            assert [key for key, series in found.items() if not series] == []
        shown = {title: series[0][1] for (title, _), series in found.items() if len(series) == 1}
        assert shown["Pilots with a manager"] == 1
        assert shown["GPUs"] == 2
        assert shown["Jobs that run"] == 1
        assert shown["Jobs that wait"] == 2  # that of the harvester too
        assert shown["Jobs that failed"] == 1
        assert shown["Pilots that cannot be read"] == 0
        for metric, share in found["Share of the held GPU time that was training", "{{pilot}}"]:
            assert metric["pilot"] in pilots
            assert 0 < share < 1
        # What one series is called is made of its labels.
        for (_, legend), series in found.items():
            for label in re.findall(r"{{(\w+)}}", legend):
                assert all(metric[label] for metric, _ in series)


def test_a_file_is_read_by_node_exporter_and_promtool_finds_no_fault(
    site: Site, harvester: str, tmp_path: Path
) -> None:
    written = tmp_path / "written"
    written.mkdir()
    file = written / "hpcext.prom"
    assert site.run("metrics", "--textfile", str(file)).code == 0
    with file.open() as text:
        checked = subprocess.run(
            ["promtool", "check", "metrics"],
            stdin=text, capture_output=True, text=True, timeout=500, check=False,
        )  # fmt: skip
    assert (checked.returncode, checked.stdout + checked.stderr) == (0, "")
    collector = ("--collector.disable-defaults", "--collector.textfile")
    with serving(
        tmp_path,
        "prometheus-node-exporter",
        *collector,
        f"--collector.textfile.directory={written}",
    ) as exporter:
        said = values(fetch(f"{exporter}/metrics"))
    assert said["node_textfile_scrape_error", ()] == 0
    ours = values(file.read_text())
    assert ("hpcext_leases_total", (("pilot", harvester),)) in ours
    assert {key: value for key, value in said.items() if key[0].startswith("hpcext_")} == ours


def values(text: str) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    """Name and labels of each sample → its value."""
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }
