"""The ledger of a consumer group: what it has done with the messages of its cursor segment, and who has that on disk.

The server keeps the ledger. Its durable part is the control record, which every eligible or joining member keeps too.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from seriatim_api.ids import INDEX_MAX, MemberId

from ..values.events import CursorRecord
from ..values.log import CursorState
from ..values.states import State


@dataclass(slots=True, eq=False)
class CursorReplication(State):
    """A control record on its way to the other eligible members."""

    acked: int
    reserved: int
    oldest: int  # the oldest offset in lists; 0: none
    waiting: dict[MemberId, None]  # members that have not confirmed, among them this one
    confirms: tuple[tuple[int, int, int], ...] = ()  # (stream, subscription, number) of requests that it has


@dataclass(slots=True, eq=False)
class Ledger(State):
    """What a consumer group has acknowledged and may have been given, here and on every eligible member.

    All are indexes in the cursor segment, if nothing else is said. Those below `acked` are acknowledged. Those below
    `reserved` may have been delivered.
    """

    acked: int = 0  # acknowledged here
    safe_acked: int = 0  # acknowledged, and durable on every eligible member
    found_acked: int = 0  # acknowledged on this member's disk when it began to serve; others may lack a part
    reserved: int = 0
    safe_reserved: int = 0
    repeated_below: int = 0  # another server may have delivered messages below
    dropped_from: int = 0  # an offset, as in the cursor's record, until a message after it is acknowledged
    dropped_position: int = 0
    untold_token: int = 0  # not in exclusive mode: the drop is told when a later token than this acknowledges
    dirty: bool = False  # a change is not in any control record yet
    eligible: tuple[MemberId, ...] = ()  # the members to which the newest control record was sent
    replications: dict[int, CursorReplication] = field(default_factory=dict)  # by serial
    version: int = 0  # of the rows, counted by this server; 0: it has sent none
    told: dict[MemberId, None] = field(default_factory=dict)  # members that were sent all rows

    def begin(self, known: CursorState | None, record: CursorRecord) -> None:
        """Begin at the control record of this disk, or without one where the cursor's record says.

        Rule `reserved-by-one` (I9): a reservation counts only when every eligible member has confirmed it to this
        server. At first only the coordinator's cursor counts. Without it:
          1. The server before wrote a reservation. It reached this member but not a third one. The server died.
          2. This member counts the reservation, delivers below it without a flag, and dies before its own control
             record reaches the third one.
          3. The third one delivers the same messages without a flag.
        """
        self.acked, self.reserved = (record.start_index,) * 2 if known is None else (known.acked, known.reserved)
        self.safe_acked = self.safe_reserved = record.start_index
        self.found_acked = self.acked
        self.repeated_below = 0 if known is None else known.reserved
        self.take_up_dropped(record)

    def take_up_dropped(self, record: CursorRecord) -> None:
        """Take up what the cursor record says was dropped, unless a consumer has acknowledged a later message since.

        Rule `untold-not-taken-up` (I1, I13): a new server tells consumers what the cursor says was dropped. Without it:
          1. Retention drops all of segment 1. The consumer group crosses, and its cursor says what was dropped.
          2. The server of segment 2 delivers the first message there without notifying the consumer of the drop.
          3. The consumer finds a hole of which it was not notified. It treats that as a violation of the order, and
             stops.
        """
        is_open = bool(record.dropped_from) and self.acked <= record.start_index
        self.dropped_from, self.dropped_position = (record.dropped_from, record.dropped_position) if is_open else (0, 0)

    def note_dropped(self, offset: int, position: int, token: int) -> None:
        """Messages from an offset on were dropped or lost, when `token` was the newest one: the consumers were
        notified.

        Rule `drop-is-no-ack` (J6): it stays noted, also on disks, until a message counts that was given later. So a
        consumer that came later, or the next server's consumers, are notified again. Without it:
          1. Retention drops the messages from 1:0 to 1:99. The only consumer is notified, and its connection is broken.
          2. The next consumer is given 1:100, and no consumer ever hears of the drop.
        """
        if not self.dropped_from or offset < self.dropped_from:
            self.dropped_from, self.dropped_position = offset, position
        self.untold_token = max(token, 1)

    def told_dropped(self, token: int) -> bool:
        """A message counts that was given under this token. Returns whether a drop is not noted any more."""
        if not self.untold_token or token <= self.untold_token:
            return False
        self.untold_token = self.dropped_from = self.dropped_position = 0
        return True

    def distrust(self, tail: int) -> None:
        """The control record may lack what another server delivered: each message up to `tail` may be a repeat."""
        self.repeated_below = INDEX_MAX
        self.reserved = max(self.reserved, tail)

    def acknowledge(self, end_index: int) -> bool:
        """Acknowledge all below `end_index`. Return whether that is new."""
        if end_index <= self.acked:
            return False
        self.acked = end_index
        if not self.untold_token:
            self.dropped_from = 0  # the consumer was notified of the drop before it got this message
        return True

    def confirm(self, serial: int, member: MemberId) -> None:
        """A member has a control record on its disk, and with it all older ones."""
        if serial in self.replications:
            for older, replication in self.replications.items():
                if older <= serial:
                    replication.waiting.pop(member, None)

    @property
    def waited_for(self) -> set[MemberId]:
        """The members that have not confirmed a control record."""
        return {member for replication in self.replications.values() for member in replication.waiting}
