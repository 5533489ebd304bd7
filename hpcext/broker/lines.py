"""Lines on connections: whole and soon, or not at all."""

from __future__ import annotations

import asyncio

LINE_S = 5.0
"""Seconds within which a whole line must have come, and the answer be taken."""


class NoLineError(Exception):
    """The error that no line came; its text says why."""


async def heard(reader: asyncio.StreamReader, most: int) -> bytes:
    """Return the line that the other end says.

    Parameters
    ----------
    reader : asyncio.StreamReader
        Whose limit is `most`.
    most : int
        The longest line in bytes.

    Raises
    ------
    NoLineError
        None came.
    """
    try:
        return await asyncio.wait_for(reader.readuntil(b"\n"), LINE_S)
    except asyncio.LimitOverrunError:
        raise NoLineError(f"more than {most} bytes") from None
    except asyncio.IncompleteReadError:
        raise NoLineError("no whole line") from None
    except asyncio.TimeoutError:
        raise NoLineError("no whole line in time") from None


async def say(writer: asyncio.StreamWriter, line: bytes) -> None:
    """Send a line; raise TimeoutError of asyncio if the other end does not take it."""
    writer.write(line)
    await asyncio.wait_for(writer.drain(), LINE_S)


def hang_up(writer: asyncio.StreamWriter) -> None:
    """End a connection, without waiting for whoever does not read."""
    writer.transport.abort() if writer.transport.get_write_buffer_size() else writer.close()
