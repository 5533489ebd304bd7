"""The server of the dashboard: who gets something, and who does not."""

from __future__ import annotations

import http.client
import json
import signal
import socket
import threading
import urllib.request
from collections.abc import Iterator
from typing import NamedTuple

import pytest
from pilot_views import busy
from site_of_test import Site

from hpcext.cli import main as cli
from hpcext.core.errors import HpcextError, InputError
from hpcext.dashboard.pages import Pages
from hpcext.dashboard.server import HEADERS, Root, Server, check_host, read_peers, read_root
from hpcext.manager.views.reading import Reading

PROXY = "https://ondemand.example.org/node/h/1"


class Got(NamedTuple):
    """An answer."""

    status: int
    headers: http.client.HTTPMessage
    text: str


def reads() -> Iterator[Reading | HpcextError]:
    yield busy()


@pytest.fixture
def server() -> Iterator[Server]:
    with Server(Pages(reads), root=read_root(PROXY)) as made:
        thread = threading.Thread(target=made.serve_forever, args=(0.02,))
        thread.start()
        yield made
        made.shutdown()
        thread.join()


def ask(server: Server, path: str, method: str = "GET", host: str = "", **headers: str) -> Got:
    connection = http.client.HTTPConnection("127.0.0.1", server.server_port, timeout=500)
    try:
        headers["Host"] = host or f"127.0.0.1:{server.server_port}"
        connection.request(method, path, headers=headers)
        answer = connection.getresponse()
        return Got(answer.status, answer.headers, answer.read().decode())
    finally:
        connection.close()


def test_pages_documents_and_files(server: Server) -> None:
    root = f"/{server.token}/"
    overview = ask(server, root)
    assert (overview.status, 'href="pilot/night-1/"' in overview.text) == (200, True)
    page = ask(server, f"{root}pilot/night-1/?last=3600")
    assert (page.status, '<a href="?last=3600" aria-current' in page.text) == (200, True)
    for path in ("data.json", "pilot/night-1/data.json"):
        document = json.loads(ask(server, root + path).text)
        assert document["schema"] == "hpcext.dashboard/1"
        assert [pilot["id"] for pilot in document["pilots"]] == ["night-1"]
    kinds = {
        name: ask(server, root + name).headers["Content-Type"] for name in ("style.css", "live.js")
    }
    assert kinds == {
        "style.css": "text/css; charset=utf-8",
        "live.js": "text/javascript; charset=utf-8",
    }


@pytest.mark.parametrize("path", ["/", "/data.json", "//", "/wrong/", "/%00/"])
def test_without_the_token_there_is_nothing(server: Server, path: str) -> None:
    got = ask(server, path)
    assert got.status == 403
    assert server.token not in got.text
    assert "night" not in got.text


def test_a_part_of_the_token_is_not_the_token(server: Server) -> None:
    assert ask(server, f"/{server.token[:-1]}/").status == 403
    assert ask(server, f"/{server.token}x/").status == 403


def test_bytes_that_are_not_characters_are_not_a_token(server: Server) -> None:
    with socket.create_connection(("127.0.0.1", server.server_port), 60) as connection:
        connection.sendall(b"GET /\xf6\xff/ HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert connection.recv(12) == b"HTTP/1.1 403"


@pytest.mark.parametrize(
    "path",
    [
        "../server.py", "..%2fserver.py", "static/style.css", "style.css/", "pilot/",
        "pilot/other/", "pilot/night-1", "pilot/../night-1/", "%2e%2e/",
        "pilot/night-1/style.css", "/etc/passwd",
    ],
)  # fmt: skip
def test_nothing_but_what_is_there(server: Server, path: str) -> None:
    assert ask(server, f"/{server.token}/{path}").status == 404


@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE"])
def test_nothing_can_be_changed(server: Server, method: str) -> None:
    got = ask(server, f"/{server.token}/", method)
    assert (got.status, got.headers["Allow"]) == (405, "GET, HEAD")


def test_a_head_has_no_body(server: Server) -> None:
    got = ask(server, f"/{server.token}/", "HEAD")
    assert (got.status, got.text) == (200, "")
    assert int(got.headers["Content-Length"]) > 500


@pytest.mark.parametrize("path", ["/", "/{token}/", "/{token}/nothing"])
def test_every_answer_says_what_a_browser_may_do(server: Server, path: str) -> None:
    got = ask(server, path.format(token=server.token))
    assert {name: got.headers[name] for name in HEADERS} == HEADERS
    assert got.headers["Content-Security-Policy"].startswith("default-src 'none'")


@pytest.mark.parametrize(
    ("host", "status"),
    [
        ("localhost", 200),
        ("LOCALHOST:8765", 200),
        ("127.0.0.1", 200),
        ("ondemand.example.org", 200),
        ("rebound.example.net", 403),
        ("127.0.0.1.example.net", 403),
        ("[::1", 403),
        ("[::1]", 403),
    ],
)
def test_names_that_strangers_lead_here_are_refused(server: Server, host: str, status: int) -> None:
    assert ask(server, f"/{server.token}/", host=host).status == status


@pytest.mark.parametrize("prefix", ["", "/node/h/1"])
def test_a_proxy_may_leave_its_beginning_or_take_it_away(server: Server, prefix: str) -> None:
    assert ask(server, f"{prefix}/{server.token}/").status == 200
    assert server.address == f"{PROXY}/{server.token}/"


def test_a_header_that_is_too_large_is_refused_and_the_next_one_served(server: Server) -> None:
    assert ask(server, f"/{server.token}/", **{"X-Large": "x" * 100_000}).status == 431
    assert ask(server, f"/{server.token}/" + "x" * 100_000).status == 414
    assert ask(server, f"/{server.token}/").status == 200


def test_a_crowd_of_strangers_does_not_shut_the_owner_out(server: Server) -> None:
    held = [socket.create_connection(("127.0.0.1", server.server_port), 60) for _ in range(100)]
    try:
        assert ask(server, f"/{server.token}/").status == 200
    finally:
        for each in held:
            each.close()


def test_what_was_read_serves_many() -> None:
    """However many look, the pilots are read at most once in a while."""
    count = 0

    def counted() -> Iterator[Reading | HpcextError]:
        nonlocal count
        count += 1
        yield busy()

    pages = Pages(counted)
    for _ in range(5):
        pages.document()
    assert count == 1


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1", "example.org", ""])
def test_it_listens_on_loopback_alone(host: str) -> None:
    with pytest.raises(InputError, match="is not a loopback address"):
        check_host(host)
    assert check_host("localhost") == "127.0.0.1"


@pytest.mark.parametrize(
    "text",
    ["node/h/1", "ftp://h/", "https:///x", "https://[x/", "/a?b", "/a#b", "/a b", "/ü", "//h/x"],
)
def test_invalid_root_paths_are_refused(text: str) -> None:
    with pytest.raises(InputError, match=r"valid: a path such as /node/HOST/PORT"):
        read_root(text)


def test_root_paths() -> None:
    assert read_root("") == Root()
    assert read_root("/node/h/1/") == Root("/node/h/1")
    assert read_root(PROXY) == Root(
        "/node/h/1", "ondemand.example.org", "https://ondemand.example.org"
    )


def test_a_port_that_is_taken(server: Server) -> None:
    with pytest.raises(InputError, match=r"--port: 127.0.0.1 port \d+: Address already in use"):
        Server(Pages(reads), port=server.server_port)
    with pytest.raises(InputError, match="--port 0 takes one that is free"):
        Server(Pages(reads), port=99_999)


def test_a_bad_address_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["dashboard", "--host", "0.0.0.0"]) == 2
    assert capsys.readouterr().err.startswith("hpcext: --host: '0.0.0.0' is not a loopback address")


def test_an_unknown_pilot_is_not_found(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["dashboard", "no-such-pilot"]) == 3
    assert "no pilot 'no-such-pilot'" in capsys.readouterr().err


def test_the_document_of_a_real_pilot(site: Site) -> None:
    jobs = site.write_jobs(site.counter("one", steps=3), site.counter("two", steps=3))
    assert site.run("run", str(jobs), "--gpus", "1", "--name", "real").code == 0
    (pilot,) = site.document("dashboard")["pilots"]
    assert (pilot["name"], pilot["managed"], pilot["queue"]) == ("real", False, [])
    assert [(job["name"], job["state"]) for job in pilot["jobs"]] == [
        ("one", "completed"),
        ("two", "completed"),
    ]
    assert [(span["began"], span["ended"]) for span in pilot["spans"]] == [
        ("started", "completed"),
        ("started", "completed"),
    ]
    assert site.document("dashboard", "real")["pilots"][0]["id"] == pilot["id"]


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
def test_the_command_serves_until_interrupted(site: Site, signum: int) -> None:
    process = site.start("dashboard")
    assert process.stdout
    address = process.stdout.readline().strip()
    with urllib.request.urlopen(f"{address}data.json", timeout=500) as answer:
        assert json.load(answer)["pilots"] == []
    process.send_signal(signum)
    _, said = process.communicate(timeout=500)
    assert (process.returncode, said) == (
        0,
        "hpcext: anyone who has this address can see the pilots; Ctrl-C stops the server\n",
    )


@pytest.mark.parametrize("text", ["proxy", "10.0.0.0/0", "::/0", ",", "10.0.0.1,", "1,2,x"])
def test_who_may_connect_is_said_by_addresses(text: str) -> None:
    if text == "10.0.0.1,":
        assert [str(each) for each in read_peers(text)] == ["10.0.0.1/32"]
        return
    with pytest.raises(InputError, match="--from"):
        read_peers(text)


def test_not_more_than_can_be_looked_through() -> None:
    with pytest.raises(InputError, match="at most 64"):
        read_peers(",".join(f"10.0.{each}.1" for each in range(65)))
    assert read_peers("") == ()


def test_with_proxies_it_may_listen_elsewhere() -> None:
    peers = read_peers("10.0.0.7,10.0.1.0/24")
    assert check_host("0.0.0.0", peers) == "0.0.0.0"
    assert check_host("localhost", read_peers("10.0.0.7,127.0.0.0/30")) == "127.0.0.1"
    with pytest.raises(InputError, match="nobody whom --from names reaches"):
        check_host("localhost", peers)
    with pytest.raises(InputError, match="is not an address"):
        check_host("node.example.org", peers)
    with pytest.raises(InputError, match="is not a loopback address"):
        check_host("0.0.0.0")


def test_only_they_may_connect_by_whatever_name() -> None:
    peers = read_peers("127.0.0.2,127.1.0.0/16")
    with Server(Pages(reads), host="0.0.0.0", peers=peers) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        try:
            assert server.address.startswith(f"http://{socket.gethostname()}:{server.server_port}/")
            for source, answered in {
                "127.0.0.2": True,
                "127.1.2.3": True,
                "127.0.0.1": False,
                "127.2.0.1": False,
            }.items():
                browser = http.client.HTTPConnection(
                    "127.0.0.1", server.server_port, timeout=100, source_address=(source, 0)
                )
                try:
                    headers = {"Host": f"n1.example.org:{server.server_port}"}
                    browser.request("GET", f"/{server.token}/", headers=headers)
                    assert (browser.getresponse().status, answered) == (200, True), source
                except ConnectionError:
                    assert not answered, source
                finally:
                    browser.close()
        finally:
            server.shutdown()
            thread.join()


def test_a_proxy_is_known_by_either_form_of_its_address() -> None:
    with Server(Pages(reads), peers=read_peers("10.0.0.7,fe80::1")) as server:
        assert server.verify_request(None, ("10.0.0.7", 1))
        assert server.verify_request(None, ("::ffff:10.0.0.7", 1, 0, 0))
        assert server.verify_request(None, ("fe80::1%eth0", 1, 0, 2))
        assert not server.verify_request(None, ("::ffff:10.0.0.8", 1, 0, 0))
