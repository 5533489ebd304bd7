"""Sends a notification by mail, to a webhook or to a command; errors do not contain its secrets."""

from __future__ import annotations

import contextlib
import os
import pwd
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from hpcext import protocol
from hpcext.batch import runner
from hpcext.batch.slurm.site import config_command, parse_config
from hpcext.core.errors import BatchError, HpcextError
from hpcext.core.notification_methods import NotificationMethod
from hpcext.text import clean

PROGRAM_S = 20.0
"""Seconds that a program that sends gets."""

_SENDMAIL = ("sendmail", "/usr/sbin/sendmail", "/usr/lib/sendmail")
_SAID_CHARS = 120


class Notification(msgspec.Struct, frozen=True):
    """A message to a user.

    Attributes
    ----------
    subject : str
        One line.
    text : str
    document : Mapping
        The same for programs, schema ``hpcext.notification/1``.
    """

    subject: str
    text: str
    document: Mapping[str, Any]

    def encoded(self) -> bytes:
        """Return the document as JSON."""
        return msgspec.json.encode(self.document)


def send(method: NotificationMethod, notification: Notification) -> None:
    """Send a notification.

    Raises
    ------
    HpcextError
        It did not get through.
    """
    _SENDERS[method.kind](method, notification)


def _mail(method: NotificationMethod, notification: Notification) -> None:
    """Send by the first program that accepts the message."""
    address = method.target or pwd.getpwuid(os.getuid()).pw_name
    failures = []
    for argv, data in _mailers(address, notification):
        try:
            return _run(argv, data)
        except HpcextError as error:
            failures.append(str(error))
    raise HpcextError("; ".join(failures) or "neither sendmail nor mail was found")


def _mailers(address: str, notification: Notification) -> Iterator[tuple[list[str], bytes]]:
    # Some programs called mail take a line that begins with ~ for an order (GNU's), wherever
    # it comes from.
    text = "".join(
        f" {line}\n" if line[:1] in "~." else f"{line}\n" for line in _lines(notification)
    )
    subject = clean(notification.subject)
    plain = ["-s", subject, address], text.encode(errors="backslashreplace")
    if (slurms := _slurms()) and os.access(slurms, os.X_OK):
        # As slurmctld calls it: slurm.conf(5), MailProg.
        yield [slurms, *plain[0]], plain[1]
    if program := next(filter(None, map(shutil.which, _SENDMAIL)), None):
        from email.message import EmailMessage  # noqa: PLC0415  (slow)

        message = EmailMessage()
        message["To"], message["Subject"] = address, subject
        message["Auto-Submitted"] = "auto-generated"  # RFC 3834: no answer by a machine.
        message.set_content(text)
        yield [program, "-i", address], message.as_bytes()
    if program := shutil.which("mail") or shutil.which("mailx"):
        yield [program, *plain[0]], plain[1]


def _lines(notification: Notification) -> Sequence[str]:
    return [clean(line) for line in notification.text.split("\n")]


def _slurms() -> str:
    """Return the program by which the Slurm of this site sends its mail."""
    if shutil.which("scontrol") is None:
        return ""
    try:
        return parse_config(runner.run(config_command(), timeout_s=PROGRAM_S)).get("MailProg", "")
    except BatchError:
        return ""


def _webhook(method: NotificationMethod, notification: Notification) -> None:
    from hpcext.manager import webhook  # noqa: PLC0415  (slow: HTTP, which few users need)

    webhook.post(method.target, notification.encoded())


def _command(method: NotificationMethod, notification: Notification) -> None:
    document = notification.document
    pilot, counts = document["pilot"], document["jobs"]
    told = {
        "HPCEXT_NOTIFICATION": document["event"],
        "HPCEXT_NOTIFICATION_PILOT": pilot["id"],
        "HPCEXT_NOTIFICATION_DIRECTORY": pilot["directory"],
        "HPCEXT_NOTIFICATION_FAILED": str(counts["failed"]),
        "HPCEXT_NOTIFICATION_LEFT": str(counts["left"]),
    }
    _run(method.argv, notification.encoded(), {**protocol.environ(), **told})


def _run(argv: Sequence[str], data: bytes, environ: Mapping[str, str] | None = None) -> None:
    """Run a program, and all that it starts, for so long at most."""
    name = clean(os.path.basename(argv[0]))
    try:
        process = subprocess.Popen(
            argv,
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            env=environ,
            cwd="/",
            start_new_session=True,
        )
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else "no such command"
        raise HpcextError(f"{name}: {reason}") from None
    try:
        _, said = process.communicate(data, timeout=PROGRAM_S)
    except subprocess.TimeoutExpired:
        raise HpcextError(f"{name}: took longer than {PROGRAM_S:g} s") from None
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    if process.returncode:
        last = said.decode(errors="replace").strip().rpartition("\n")[2]
        more = f": {clean(last)[:_SAID_CHARS]}" if last else ""
        raise HpcextError(f"{name}: exit code {process.returncode}{more}")


_SENDERS: Mapping[str, Callable[[NotificationMethod, Notification], None]] = {
    "mail": _mail,
    "webhook": _webhook,
    "command": _command,
}
