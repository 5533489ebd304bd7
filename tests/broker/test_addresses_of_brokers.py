"""Where a broker is asked, as people write it in settings."""

from __future__ import annotations

from pathlib import Path

import pytest

from hpcext.addresses import Address, DropAddress, MungeAddress, SocketAddress, read_address
from hpcext.config import load_settings
from hpcext.core.errors import InputError
from hpcext.harvest import ways


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("/run/hpcext-broker/socket", SocketAddress(Path("/run/hpcext-broker/socket"))),
        ("drop:///shared/broker", DropAddress(Path("/shared/broker"))),
        ("munge://login1:7420", MungeAddress("login1", 7420)),
        ("munge://0.0.0.0:1", MungeAddress("0.0.0.0", 1)),
        ("munge://ann@login1.site:65535", MungeAddress("login1.site", 65535, "ann")),
        ("munge://987@[2001:db8::1]:7420", MungeAddress("2001:db8::1", 7420, "987")),
        (
            "munge://login1:7420/run/munge/socket",
            MungeAddress("login1", 7420, "", "/run/munge/socket"),
        ),
    ],
)
def test_it_is_read_and_written_as_it_is(text: str, address: Address) -> None:
    assert read_address(text) == address
    assert str(read_address(text)) == text
    assert str(ways.find(text)) == text


@pytest.mark.parametrize(
    "text",
    [
        "", "socket", "/run/../tmp/socket", "drop://", "drop://shared", "drop:///a/../b", "/a\0b",
        "munge://", "munge://login1", "munge://login1:", "munge://login1:0", "munge://login1:65536",
        "munge://login1:999999", "munge://login1:\u0663", "munge://:7420", "munge://a b:7420",
        "munge://@login1:7420", "munge://ann:secret@login1:7420", "munge://-x@login1:7420",
        "munge://login1:7420x", "munge://login1:7420/a/../b", "munge://login1:7420/a\0",
        "munge://login1:7420\n", "munge://2001:db8::1:7420", "http://login1:7420", "login1:7420",
        f"munge://{'a' * 64}:7420", "munge://a..b:7420", f"munge://{'a.' * 127}b:7420",
    ],
)  # fmt: skip
def test_what_is_no_address_is_one_line(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InputError) as caught:
        read_address(text)
    assert "\n" not in str(caught.value)
    if "\0" not in text and text:
        monkeypatch.setenv("HPCEXT_BROKER", text)
        with pytest.raises(InputError, match=r"HPCEXT_BROKER: .*valid: auto, none"):
            load_settings()
