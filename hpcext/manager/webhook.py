"""The sending of a document to a webhook."""

from __future__ import annotations

import time
import urllib.error
import urllib.request
from typing import Any

from hpcext import __version__
from hpcext.core.errors import HpcextError
from hpcext.text import clean

TRY_S, PAUSES_S = 8.0, (1.0, 3.0)
"""Seconds of each try, and the waits between them."""

SAID_CHARS = 120


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """A handler that follows no redirect: the message is for its target alone, not for a file."""

    def redirect_request(self, *_: Any) -> None:
        """Follow nothing."""


def post(target: str, data: bytes) -> None:
    """Post a document.

    Parameters
    ----------
    target : str
        A URL of HTTP or HTTPS.
    data : bytes
        JSON.

    Raises
    ------
    HpcextError
        It did not get through.
    """
    headers = {"Content-Type": "application/json", "User-Agent": f"hpcext/{__version__}"}
    request = urllib.request.Request(target, data, headers, method="POST")
    opener = urllib.request.OpenerDirector()
    # None of files, of FTP or of data: by default there are.
    for handler in (
        urllib.request.ProxyHandler(), urllib.request.HTTPHandler(), urllib.request.HTTPSHandler(),
        urllib.request.HTTPErrorProcessor(), urllib.request.HTTPDefaultErrorHandler(),
        _NoRedirect(),
    ):  # fmt: skip
        opener.add_handler(handler)
    for pause_s in (*PAUSES_S, None):
        why, again = _posted(opener, request)
        if not why:
            return
        if pause_s is None or not again:
            raise HpcextError(why)
        time.sleep(pause_s)


def _posted(
    opener: urllib.request.OpenerDirector, request: urllib.request.Request
) -> tuple[str, bool]:
    """Return why a notification was refused, empty if it was not; and whether to try it later."""
    try:
        with opener.open(request, timeout=TRY_S):
            return "", False
    except urllib.error.HTTPError as error:
        error.close()
        return f"it answered {error.code}", error.code >= 500 or error.code in {408, 429}
    except (OSError, ValueError) as error:
        reason = getattr(error, "reason", error)
        said = getattr(reason, "strerror", None) or type(reason).__name__
        return clean(str(said))[:SAID_CHARS], True
    except Exception as error:  # a server can cause any of http.client's errors
        return type(error).__name__, True
