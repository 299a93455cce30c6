"""The status file: which run this process is, and why it ended, for whoever supervises it.

A kubelet shows the content of /dev/termination-log as the message of an ended container. The run's number is written
there before anything is answered to anybody, so a container that is reported ended names the run that has ended with
it: the evidence for a death certificate. The file is written in place, for that device cannot be replaced.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import structlog
from seriatim_api.errors import SeriatimError

from .runtime.membership import Identity

SIZE_BYTES_MAX = 4096
"""What a kubelet takes of a termination message."""

TEXT_CHARACTERS_MAX = 600
"""Of an error's text: at most 3,600 bytes, if each is written as an escape of six."""

_log = structlog.get_logger(__name__)


class StatusFile:
    """Written at join and at a failure. A file that cannot be written is told in the log and stops nothing.

    Args:
        path: Where; None writes nothing.
        broker: The broker's name.
    """

    def __init__(self, path: Path | None, broker: str) -> None:
        self._path = path
        self._broker = broker
        self._run: dict[str, object] = {}

    def joined(self, identity: Identity) -> None:
        """The run that this process is."""
        self._run = {"incarnation": identity.member.incarnation, "run": identity.run}
        self._write({})

    def failed(self, error: BaseException) -> None:
        """Why it ends, or does not start."""
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
