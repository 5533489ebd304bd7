"""A user is told that jobs failed or that a pilot ended: once, and whatever the way costs."""

from __future__ import annotations

import http.server
import json
import stat
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from site_of_test import Site, wait_for

from hpcext.core.errors import HpcextError, InputError
from hpcext.core.notification_methods import NotificationMethod, read_method, shown_method
from hpcext.manager import senders, webhook
from hpcext.manager.senders import Notification, send

TOKEN = "T0KEN-secret"


class Hook:
    """A webhook that keeps what it is sent, and answers as it is told to."""

    def __init__(self) -> None:
        self.got: list[dict[str, Any]] = []
        self.answers: list[tuple[int, str]] = []
        hook = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                data = self.rfile.read(int(self.headers["Content-Length"]))
                hook.got.append(json.loads(data))
                code, location = hook.answers.pop(0) if hook.answers else (200, "")
                self.send_response(code)
                if location:
                    self.send_header("Location", location)
                self.end_headers()

            def do_GET(self) -> None:
                hook.got.append({"path": self.path})
                self.send_response(200)
                self.end_headers()

            def log_message(self, *_: Any) -> None:
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.place = f"http://127.0.0.1:{self.server.server_address[1]}"
        self.url = f"{self.place}/services/{TOKEN}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()


@pytest.fixture
def hook(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hook]:
    for name in ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"):
        monkeypatch.delenv(name, raising=False)
    place = Hook()
    yield place
    place.server.shutdown()
    place.server.server_close()


SUBJECT = "hpcext: pilot jobs ended"
NOTIFICATION = Notification(SUBJECT, f"{SUBJECT}\n~! touch gone\n.\nbye", {
    "event": "ended",
    "pilot": {"id": "jobs-1", "name": "jobs", "directory": "/p"},
    "jobs": {"failed": 2, "left": 0},
})  # fmt: skip


# Whole pilots.


def test_failed_jobs_are_one_notification_and_the_end_is_sent_once(site: Site, hook: Hook) -> None:
    bad = {"command": ["sh", "-c", "echo no data; exit 3"], "retries": 0}
    site.write_jobs({"name": "a", **bad}, {"name": "b", **bad}, {"name": "c", "command": ["true"]})
    way = f"webhook:{hook.url}"
    done = site.run("run", "jobs.toml", "--gpus=3", "--dir", str(site.pilot), "--notify", way)
    assert done.code == 1
    (told,) = hook.got
    assert (told["schema"], told["event"]) == ("hpcext.notification/1", "ended")
    assert told["jobs"] == {"total": 3, "completed": 1, "failed": 2, "cancelled": 0, "left": 0}
    assert [job["name"] for job in told["failed"]] == ["a", "b"]
    assert told["failed"][0]["why"] == "exit code 3; last line of its log: no data"
    assert Path(told["failed"][0]["log"]).read_text().endswith("no data\n")
    assert "2 of its 3 jobs failed" in told["text"]
    # Once more, with nothing new.
    assert site.run("run", "--resume", str(site.pilot)).code == 1
    assert len(hook.got) == 1
    # Others of the machine see none of it, and no command shows the secret.
    for name in ("pilot.json", "notified.json"):
        assert stat.S_IMODE((site.pilot / name).stat().st_mode) == 0o600
    said = [done, site.run("status", str(site.pilot)), site.run("why", str(site.pilot), "a")]
    assert TOKEN not in "".join(each.out + each.err for each in said)


def test_a_failure_is_notified_once_across_managers(site: Site, hook: Hook) -> None:
    """The gate of the last job opens when the first message is there."""
    bad = {"name": "bad", "command": ["false"], "retries": 0}
    site.write_jobs(bad, site.counter("long", gated=True))
    way = f"webhook:{hook.url}"
    manager = site.start("run", "jobs.toml", "--gpus=2", "--dir", str(site.pilot), "--notify", way)
    wait_for(lambda: hook.got, "the message")
    assert (hook.got[0]["event"], len(hook.got[0]["failed"])) == ("failed", 1)
    manager.kill()
    manager.wait()
    site.open("long")
    assert site.run("run", "--resume", str(site.pilot)).code == 1
    ended = hook.got[1]
    assert (len(hook.got), ended["event"], ended["failed"]) == (2, "ended", [])


def test_a_pilot_that_is_told_to_stop_says_what_is_left(site: Site, hook: Hook) -> None:
    site.write_jobs(site.counter("long", gated=True))
    way = f"webhook:{hook.url}"
    manager = site.start("run", "jobs.toml", "--gpus=1", "--dir", str(site.pilot), "--notify", way)
    wait_for(lambda: site.steps("long"), "a step")
    manager.terminate()
    assert manager.wait(60) == 128 + 15
    (told,) = hook.got
    assert (told["event"], told["jobs"]["left"]) == ("stopped", 1)
    assert "1 job left" in told["text"]


def test_what_is_not_taken_is_said_and_fails_no_pilot(site: Site, hook: Hook) -> None:
    hook.answers = [(403, "")]
    site.write_jobs({"name": "a", "command": ["true"]})
    way = f"webhook:{hook.url}"
    done = site.run("run", "jobs.toml", "--gpus=1", "--dir", str(site.pilot), "--notify", way)
    assert done.code == 0
    why = f"webhook:{hook.place}/... failed: it answered 403"
    assert why in done.err
    assert why in site.run("status", str(site.pilot)).out


def test_a_setting_is_shown_without_its_secret(site: Site, hook: Hook) -> None:
    site.environ["HPCEXT_PILOT_NOTIFY"] = f"webhook:{hook.url}"
    shown = site.run("config", "show", "--origin")
    assert f'notify = "webhook:{hook.place}/..."  # HPCEXT_PILOT_NOTIFY' in shown.out
    assert TOKEN not in site.run("config", "show", "--json").out
    site.environ["HPCEXT_PILOT_NOTIFY"] = f"webhook:file:///{TOKEN}"
    refused = site.run("config", "show")
    assert (refused.code, TOKEN in refused.err) == (2, False)


# Ways.


def test_what_may_pass_is_tried_again_and_a_refusal_is_not(
    hook: Hook, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(webhook, "PAUSES_S", (0.0, 0.0))
    way = NotificationMethod("webhook", hook.url)
    hook.answers = [(503, ""), (429, "")]
    send(way, NOTIFICATION)
    assert len(hook.got) == 3
    hook.answers = [(500, "")] * 3
    with pytest.raises(HpcextError, match=r"^it answered 500$"):
        send(way, NOTIFICATION)
    hook.answers = [(404, "")]
    with pytest.raises(HpcextError, match=r"^it answered 404$"):
        send(way, NOTIFICATION)
    assert len(hook.got) == 7


@pytest.mark.parametrize("target", ["file:///etc/passwd", "/elsewhere", "ftp://127.0.0.1/x"])
def test_an_answer_leads_nowhere(hook: Hook, target: str) -> None:
    for code in (301, 302, 307, 308):
        hook.answers = [(code, target)]
        with pytest.raises(HpcextError, match=rf"^it answered {code}$"):
            send(NotificationMethod("webhook", hook.url), NOTIFICATION)
    assert len(hook.got) == 4


def test_a_webhook_without_a_server_is_an_error(
    monkeypatch: pytest.MonkeyPatch, hook: Hook
) -> None:
    monkeypatch.setattr(webhook, "PAUSES_S", (0.0,))
    hook.server.server_close()
    with pytest.raises(HpcextError) as raised:
        send(NotificationMethod("webhook", hook.url), NOTIFICATION)
    assert "refused" in str(raised.value)
    assert TOKEN not in str(raised.value)


@pytest.fixture
def tools(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Programs that send mail keep what they were given."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
    return folder


def program(path: Path, text: str) -> Path:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


def keeping(path: Path) -> Path:
    return program(path, f'printf "%s\\n" "$@" > {path}.argv\ncat > {path}.in')


def test_mail_is_sent_with_sendmail(tools: Path) -> None:
    keeping(tools / "sendmail")
    send(NotificationMethod("mail", "me@example.org"), NOTIFICATION)
    assert (tools / "sendmail.argv").read_text().splitlines() == ["-i", "me@example.org"]
    head, _, body = (tools / "sendmail.in").read_text().partition("\n\n")
    assert "To: me@example.org\n" in head
    assert "Subject: hpcext: pilot jobs ended\n" in head
    assert "\n ~! touch gone\n .\nbye\n" in body


def test_mail_goes_by_the_program_of_slurm_first_and_by_another_if_that_fails(tools: Path) -> None:
    mail = keeping(tools / "slurm-mail")
    program(tools / "scontrol", f"echo 'MailDomain  = (null)'; echo 'MailProg   = {mail}'")
    keeping(tools / "sendmail")
    send(NotificationMethod("mail", ""), NOTIFICATION)
    argv = (tools / "slurm-mail.argv").read_text().splitlines()
    assert argv[:2] == ["-s", "hpcext: pilot jobs ended"]
    assert len(argv) == 3
    assert argv[2] not in {"", NOTIFICATION.subject}
    # A line that begins with ~ is an order to GNU's mail.
    assert "\n~" not in (tools / "slurm-mail.in").read_text()
    assert not (tools / "sendmail.argv").exists()
    program(mail, "exit 1")
    send(NotificationMethod("mail", ""), NOTIFICATION)
    assert (tools / "sendmail.argv").exists()
    program(tools / "sendmail", "echo no relay >&2; exit 75")
    program(tools / "mail", "exit 1")
    with pytest.raises(HpcextError, match="sendmail: exit code 75: no relay"):
        send(NotificationMethod("mail", ""), NOTIFICATION)


def test_a_command_gets_the_document_and_some_variables(tools: Path) -> None:
    tell = program(
        tools / "tell", f'env > {tools}/env; echo "$@" > {tools}/words; cat > {tools}/in'
    )
    send(NotificationMethod("command", f"{tell} 'a b' $HOME"), NOTIFICATION)
    assert json.loads((tools / "in").read_text()) == NOTIFICATION.document
    assert (tools / "words").read_text() == "a b $HOME\n"
    found = (tools / "env").read_text().splitlines()
    assert {"HPCEXT_NOTIFICATION=ended", "HPCEXT_NOTIFICATION_PILOT=jobs-1"} <= set(found)
    assert "HPCEXT_NOTIFICATION_FAILED=2" in found


def test_a_command_that_hangs_is_ended_with_all_that_it_started(
    tools: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(senders, "PROGRAM_S", 0.5)
    tell = program(tools / "tell", f"sleep 1000 & echo $! > {tools}/pid; wait")
    with pytest.raises(HpcextError, match=r"tell: took longer than 0.5 s"):
        send(NotificationMethod("command", str(tell)), NOTIFICATION)
    if (tools / "pid").exists() and (text := (tools / "pid").read_text()):
        wait_for(lambda: not _runs(int(text)), "the end of what it started")


def _runs(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_a_command_that_is_not_there(tools: Path) -> None:
    method = NotificationMethod("command", f"{tools / 'nothing'} --token {TOKEN}")
    with pytest.raises(HpcextError, match="nothing: No such file"):
        send(method, NOTIFICATION)


@pytest.mark.parametrize(
    ("said", "shown"),
    [
        ("none", "none"),
        ("", "none"),
        ("mail", "mail"),
        ("mail:a.b+c@x.org", "mail:a.b+c@x.org"),
        (f"webhook:https://hooks.example.org/{TOKEN}?{TOKEN}", "webhook:https://hooks.example.org/..."),
        (f"command:tell --token {TOKEN}", "command:tell ..."),
    ],
)  # fmt: skip
def test_a_way_is_shown_without_its_secrets(said: str, shown: str) -> None:
    assert shown_method(said) == shown
    assert TOKEN not in str(read_method(said))


@pytest.mark.parametrize(
    "said",
    [
        "letter", "mail:", "mail:-oQ/tmp", "mail:a b", "mail:a@x\nBcc: b@x", "webhook:",
        f"webhook:file:///{TOKEN}", f"webhook:https:///{TOKEN}", f"webhook:https://u:{TOKEN}@x/",
        f"webhook:https://x/{TOKEN} y", f"webhook:https://x:99999/{TOKEN}", "command:", "command: ",
        f"command:'{TOKEN}", f"webhook:http://[{TOKEN}",
    ],
)  # fmt: skip
def test_an_invalid_method_is_refused_without_showing_secrets(said: str) -> None:
    with pytest.raises(InputError) as raised:
        read_method(said)
    assert TOKEN not in str(raised.value)
