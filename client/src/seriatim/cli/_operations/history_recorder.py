"""What `consume --history` records: the client's own recorder, with the ids that `produce --history` gives."""

from __future__ import annotations

from seriatim_api.ids import format_offset

from seriatim import Message
from seriatim._recorder import Recorder
from seriatim._values.dead_letters import DeadLetter
from seriatim.cli._execution import connection
from seriatim.history import HistoryWriter


class HistoryRecorder(Recorder):
    """Writes a history in which a message has the id that `produce --history` put into its headers.

    The id of another message is its place.
    """

    def __init__(self, history: HistoryWriter) -> None:
        super().__init__(history, bytes.decode)

    def id_of(self, message: Message | DeadLetter) -> str:
        """The id of a message, or of the message of a dead letter."""
        known = message.headers.get(connection.MESSAGE_ID_HEADER)
        if known is not None:
            return known.decode(errors="replace")
        partition, offset = (
            (message.origin_partition, message.origin_offset)
            if isinstance(message, DeadLetter)
            else (message.partition, message.offset)
        )
        return f"{partition}/{format_offset(offset)}"
