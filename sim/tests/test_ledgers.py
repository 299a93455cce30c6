"""What counts as known on the disks of eligible members, to the judge."""

from __future__ import annotations

from typing import Any, NoReturn

import pytest
from seriatim_api.ids import MemberId, PartitionId, make_offset
from seriatim_api.key_names import name_of_offset
from seriatim_broker.core.values import chain as chains
from seriatim_broker.core.values.events import CursorRecord
from seriatim_broker.core.values.keyed import SETTINGS_DEFAULT, ConsumerMode, KeyGrant, KeyPhase
from seriatim_broker.core.values.ledger_rows import KeyRecord, key_name, write_key
from seriatim_broker.core.values.log import Batch, CursorState, LedgerChange, LocalSegment, PutLedger, PutSegment
from seriatim_broker.testing.memory_disk import MemoryDisk
from seriatim_broker.testing.simulated_bodies import key_of

from sim.basics.batches import header_of, placed
from sim.basics.schedule import Schedule, Violation
from sim.judge.keyed import Keyed
from sim.judge.ledgers import Ledgers
from sim.judge.seen import Seen

ONE = PartitionId(1)
MEMBERS = A, B = MemberId("a-0", "a" * 32), MemberId("b-0", "b" * 32)
OFFSET = make_offset(1, 0)
MESSAGE = next(message for message in range(100) if key_of(message) is None)  # the offset is its key
RECORD = CursorRecord(1, 1, 0, "t", mode=ConsumerMode.KEY_ORDERED)
FAILED_ONCE = KeyRecord(KeyPhase.RETRY, 0, 1, 0, 0, OFFSET, 0, "")


class Slot:
    """As much of a broker as the judge looks at."""

    def __init__(self, member: MemberId) -> None:
        self.member = member
        self.real_disk = MemoryDisk()


class Group:
    """A key-ordered consumer group on two members that may both serve it, and the judge of its rows."""

    def __init__(self) -> None:
        self.slots: Any = {member.broker: Slot(member) for member in MEMBERS}
        self.seen = Seen(Schedule(0), self.slots, _fail, flush=True)
        self.keyed = Keyed(self.seen)
        self.ledgers = Ledgers(self.seen, self.keyed)
        self.tokens = 0
        opening = chains.Opening(b"x", "g", MEMBERS, 1, False)
        self.chain = chains.create(ONE, "t", 0, True, ("g", "h"), opening, 0)
        self.seen.history[ONE] = [self.chain]
        for slot in self.slots.values():
            slot.real_disk.flush(slot.real_disk.submit((PutSegment(ONE, LocalSegment(1, b"x", MEMBERS, True, False)),)))

    def write(self, member: MemberId, server_epoch: int, *failed: KeyRecord, acked: int = 0) -> None:
        """A member flushes all rows of a server."""
        rows = tuple((key_name(name_of_offset(OFFSET)), write_key(record)) for record in failed)
        cursor = CursorState(1, "keyed", 1, acked, 1, server_epoch, settings=SETTINGS_DEFAULT)
        disk = self.slots[member.broker].real_disk
        disk.flush(disk.submit((PutLedger(ONE, cursor, LedgerChange(rows, is_full=True)),)))

    def serve(self, server: MemberId, *silent: MemberId) -> None:
        """A member takes the right from the members that are silent."""
        self.chain = chains.change_server(self.chain, 1, server, silent)
        self.seen.history[ONE].append(self.chain)

    def look(self) -> None:
        self.ledgers.look(ONE, "keyed", RECORD)

    def grant(self, attempt: int, term: int = 0) -> int:
        """B gives the message out, under this token."""
        epoch = self.chain.segments[0].server_epoch
        self.tokens += 1
        run = KeyGrant((term or epoch) << 40 | self.tokens, attempt, True, (OFFSET,))
        self.keyed.begun("keyed", ONE, OFFSET, run.token)
        self.keyed.granted("b-0", "keyed", ONE, 1, epoch, run, [MESSAGE])
        return run.token


def _fail(rule: str, text: str) -> NoReturn:
    raise Violation(rule, text)


def test_attempts_that_only_an_earlier_server_counted_are_unknown() -> None:
    """A lost the attempt with its process, and B has replaced its rows with those of A, which no disk shows yet."""
    group = Group()
    group.write(A, 1)
    group.write(B, 1, FAILED_ONCE)
    group.look()
    group.serve(A)
    group.look()
    group.serve(B, A)
    group.look()
    group.grant(1)


@pytest.mark.parametrize("is_alone", [False, True])
def test_attempts_on_all_disks_of_a_server_epoch_stay_counted(is_alone: bool) -> None:
    group = Group()
    group.serve(B, *([A] if is_alone else []))
    group.write(A, 1)
    group.write(B, 2, FAILED_ONCE)
    group.look()
    if not is_alone:
        group.write(A, 2, FAILED_ONCE)
        group.look()
    group.grant(2)
    with pytest.raises(Violation, match=r"J2: .* as attempt 1, and 1 attempts on it had failed"):
        group.grant(1)


def test_message_given_again_by_an_older_cursor_is_done() -> None:
    """It was finished in a later segment, of which its server does not know."""
    group = Group()
    body = MESSAGE.to_bytes(8, "big")
    group.seen.placed[ONE, 1, 0] = Batch(placed(header_of(1, b"p" * 16, body, count=1, sequence=0), 0, 0), body)
    group.grant(1)
    group.keyed.acknowledged("keyed", ONE, 1, OFFSET, MESSAGE, group.grant(2, term=9))
    group.seen.waits_for_rebuild = True
    token = group.grant(2)
    group.write(B, 1, acked=1)
    with pytest.raises(Violation, match="J1"):
        group.look()
    group.keyed.acknowledged("keyed", ONE, 1, OFFSET, MESSAGE, token)
    group.look()
