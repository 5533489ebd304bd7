"""Methods to tell a user that something happened: mail, a webhook, a command."""

from __future__ import annotations

import re
import shlex
from typing import NamedTuple
from urllib.parse import urlsplit

from hpcext.core.errors import InputError
from hpcext.text import clean, shown

NONE = "none"
VALID = "none, mail, mail:ADDRESS, webhook:URL, command:COMMAND"

_ADDRESS = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._%+-]{0,63}(?:@[A-Za-z0-9][A-Za-z0-9.-]{0,253})?")
"""An address cannot begin with a dash, as an option does, or contain what would end a header."""


class NotificationMethod(NamedTuple):
    """A method to tell a user that something happened.

    Attributes
    ----------
    kind : {"mail", "webhook", "command"}
    target : str
        Address (empty: the user's own), URL, or command. The latter two may hold a secret.
    """

    kind: str
    target: str

    @property
    def argv(self) -> list[str]:
        """The words of a command."""
        return shlex.split(self.target)

    def __str__(self) -> str:
        """Return the method without what may be a secret."""
        if self.kind == "webhook":
            return f"webhook:{_place(self.target)}/..."
        if self.kind == "command":
            first, *rest = self.argv
            return clean(f"command:{first}{' ...' if rest else ''}")
        return f"mail:{self.target}" if self.target else "mail"


def read_method(text: str) -> NotificationMethod | None:
    """Read a method; None for ``none`` and for an empty text.

    Raises
    ------
    InputError
        The text is not a method. The message does not reveal a URL or a command.
    """
    kind, _, target = text.partition(":")
    if text in {"", NONE}:
        return None
    if kind == "mail" and (text == "mail" or _ADDRESS.fullmatch(target)):
        return NotificationMethod(kind, target)
    if kind == "webhook":
        _check_url(target)
        return NotificationMethod(kind, target)
    if kind == "command":
        _check_command(target)
        return NotificationMethod(kind, target)
    raise InputError(shown(kind if kind != "mail" else text), valid=VALID)


def shown_method(text: str) -> str:
    """Return a method as a setting, without its secrets."""
    return str(read_method(text) or NONE)


def _place(url: str) -> str:
    parts = urlsplit(url)
    return clean(f"{parts.scheme}://{parts.netloc}")


def _check_url(url: str) -> None:
    valid = "webhook:https://HOST/PATH or webhook:http://HOST/PATH"
    try:
        parts = urlsplit(url)
        good = parts.scheme in {"http", "https"} and parts.hostname and parts.port != 0
    except ValueError:
        good = False
    if not good or not url.isascii() or not url.isprintable() or " " in url:
        raise InputError("this is not the URL of a webhook", valid=valid)
    if "@" in parts.netloc:
        raise InputError("the URL of a webhook must not name a user", valid=valid)


def _check_command(command: str) -> None:
    try:
        argv = shlex.split(command)
    except ValueError as error:
        raise InputError(f"command: {str(error).lower()}", valid=VALID) from None
    if not argv or not argv[0] or "\0" in command:
        raise InputError("command: is empty", valid=VALID)
