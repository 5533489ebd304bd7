"""The documents in the directory of an attempt, read with suspicion.

What a job wrote is hostile: none of it raises an error out of here, and what does not make sense is
left out with one warning per attempt.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hpcext import documents, protocol
from hpcext.core.values import Action
from hpcext.text import clean

log = logging.getLogger(__name__)


class OwnDocuments:
    """The JSON documents of one attempt, from all of its nodes.

    Parameters
    ----------
    directory : pathlib.Path
        The attempt's.
    action : Action
        Any action on the attempt.
    """

    def __init__(self, directory: Path, action: Action) -> None:
        self._directory = directory
        self._action = action
        self._warned = False

    def read(self, name: str, schema: str) -> dict[str, Any] | None:
        """Return the content of a file of the first node; None if there is none that is valid."""
        try:
            return documents.read_json(self._directory / name, schema)
        except FileNotFoundError:
            return None
        except OSError as error:
            self.warn(f"{name}: {error.strerror}")
        except ValueError as error:
            self.warn(str(error))
        return None

    def own(self, name: str, schema: str) -> dict[str, Any] | None:
        """Return the content of such a file, if it says that it belongs to this attempt."""
        document = self.read(name, schema)
        return document if document is not None and self._ours(document) else None

    def of_node(self, index: int, name: str, schema: str) -> dict[str, Any] | None:
        """Return the content of a file of one of the attempt's nodes, as :meth:`read` does.

        Parameters
        ----------
        index : int
            The place of the node among those of the attempt, from 0.
        name : str
            The name of the file.
        schema : str
            What the file has to say that it is.
        """
        directory = protocol.node_directory(self._directory, index)
        return self.read(str((directory / name).relative_to(self._directory)), schema)

    def _ours(self, document: Mapping[str, Any]) -> bool:
        """Return whether a document belongs to this attempt, and not to an earlier one."""
        own = (self._action.attempt, self._action.op)
        return (document.get("attempt"), document.get("op")) == own

    def warn(self, what: str) -> None:
        """Warn of what makes no sense, once."""
        if not self._warned:
            self._warned = True
            job = clean(self._action.job)
            log.warning("job %s, attempt %d: %s", job, self._action.attempt, clean(what))
