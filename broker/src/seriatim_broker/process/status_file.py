"""The status file: it tells a supervisor which member run this process is, and why it ended.

A kubelet shows the content of /dev/termination-log as the message of an ended container. The broker writes the number
of its member run there before it answers any request. So the report of an ended container names the member run that has
ended with it. That is the evidence for a death certificate. The broker writes the file in place, because that device
cannot be replaced.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import structlog
from seriatim_api.errors import SeriatimError

from ..runtime.membership.registration import Identity

SIZE_BYTES_MAX = 4096
"""A kubelet takes no more of a termination message."""

TEXT_CHARACTERS_MAX = 600
"""Limit for an error's text. JSON may write each character as an escape of 6 bytes: at most 3,600 bytes."""

_log = structlog.get_logger(__name__)


class StatusFile:
    """Writes the file when the broker joins and when it fails. If it cannot write, it logs a warning and continues.

    Args:
        path: The file; None: write nothing.
        broker: The broker's name.
    """

    def __init__(self, path: Path | None, broker: str) -> None:
        self._path = path
        self._broker = broker
        self._run: dict[str, object] = {}

    def joined(self, identity: Identity) -> None:
        """Write which member run this process is."""
        self._run = {"incarnation": identity.member.incarnation, "run": identity.run}
        self._write({})

    def failed(self, error: BaseException) -> None:
        """Write why the broker ends, or does not start."""
        number = error.number if isinstance(error, SeriatimError) else 0
        text = error.message if isinstance(error, SeriatimError) else str(error)
        self._write({"error": type(error).__name__, "number": number, "text": text[:TEXT_CHARACTERS_MAX]})

    def _write(self, more: dict[str, object]) -> None:
        if self._path is None:
            return
        content = json.dumps({"broker": self._broker, **self._run, **more}).encode()
        assert len(content) <= SIZE_BYTES_MAX
        try:
            file = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
            try:
                os.write(file, content)
            finally:
                os.close(file)
        except OSError as exc:
            _log.warning("status_file_not_written", file=str(self._path), error=exc.strerror)
