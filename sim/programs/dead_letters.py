"""Dead letters in the simulation: the way from the server of a consumer group to the master of another partition.

Messages of all partitions but the last one may go to the last one, which is the dead-letter topic here. The number of a
dead letter is that of its message, and above it which consumer group gave the message up, in which group epoch and
term.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from seriatim_api.batch import parse_header
from seriatim_api.dead_letters import dead_letter_producer
from seriatim_api.errors import SeriatimError
from seriatim_api.ids import PartitionId, parse_offset, split_offset
from seriatim_broker.core.state.consumers import KeyedServed
from seriatim_broker.core.state.numbered_sending import producer_epoch_of, term_of_number
from seriatim_broker.core.values import effects as fx
from seriatim_broker.core.values.events import DeadLetterRead, ForwardsDone
from seriatim_broker.core.values.keyed import DeadLetter, DeadLetterRow
from seriatim_broker.testing.simulated_bodies import SimulatedBodies

from ..basics.interfaces import CoreProcess, checksum
from ..judge.dead_letters import Server, letter_of, message_of

if TYPE_CHECKING:
    from ..basics.setting import Setting
    from ..judge import Judge
    from .carrier import Carrier


class Forwards:
    """Makes dead letters, and has them carried."""

    def __init__(self, setting: Setting, judge: Judge, carrier: Carrier) -> None:
        self._setting = setting
        self._judge = judge
        self._carrier = carrier
        self.is_away = setting.options.letters_away
        self._servers: dict[tuple[str, PartitionId, str], Server] = {}
        self._messages: dict[tuple[PartitionId, int], int] = {}  # (partition, offset) -> the message there
        self._letters: dict[tuple[str, str, PartitionId, int], int] = {}  # by broker, group, partition and offset
        self._sent: dict[tuple[bytes, int, int], int] = {}  # by producer, number and message
        self._forwarders: dict[tuple[str, PartitionId, int, int], int] = {}  # by group, partition, group epoch, term

    @property
    def dead(self) -> PartitionId:
        """The partition of the dead letters."""
        return self._setting.partitions[-1]

    def read(self, process: CoreProcess, effect: fx.ReadDeadLetter) -> None:
        """Answer a read of one message."""
        row = None
        no, index = split_offset(effect.offset)
        found = [batch for batch in effect.batches if batch.header.segment == no]
        found += process.broker.disk.read(effect.partition, no, index, index + 1, 1)
        one = next((one for one in found if one.header.base_index <= index < one.header.end_index), None)
        if one is not None:
            message = SimulatedBodies().open(one).rows[index - one.header.base_index]
            self._messages[effect.partition, effect.offset] = message
            letter = self._letter(process, effect, message)
            self._letters[process.name, effect.origin.group, effect.partition, effect.offset] = letter
            row = DeadLetterRow(letter.to_bytes(8, "big"), 0, is_keyed=True)
        process.deliver(DeadLetterRead(effect.serial, row))

    def _letter(self, process: CoreProcess, effect: fx.ReadDeadLetter, message: int) -> int:
        """The number of the dead letter of a message, as the server of a consumer group makes it now."""
        partition, group = effect.partition, effect.origin.group
        known = process.core.partitions[partition].consumer_groups[group]
        forwards = known.keyed.forwarder.waiting.values() if known.keyed is not None else ()
        number = next((forward.number for forward in forwards if forward.offset == effect.offset), 0)
        producer = dead_letter_producer(partition, group, known.group_epoch, term_of_number(number))
        sent = self._sent.get((producer, producer_epoch_of(number), message))
        if sent is not None:
            return sent  # again, under the same number
        name = group, partition, known.group_epoch, known.served.term if isinstance(known.served, KeyedServed) else 0
        forwarder = self._forwarders.setdefault(name, len(self._forwarders) + 1)
        return letter_of(forwarder, message)

    def send(self, process: CoreProcess, effect: fx.ForwardBatches) -> None:
        """A server sends dead letters."""
        rule = self._judge.rules.dead_letters
        known = process.core.partitions[effect.partition].consumer_groups[effect.consumer_group]
        server_epoch = known.served.server_epoch if known.served is not None else 0
        server = (process.name, process.run, effect.consumer_group, known.group_epoch, server_epoch)
        self._servers[process.name, effect.partition, effect.consumer_group] = server
        rule.sent(server, effect.partition, effect.consumer_group, effect.producer, effect.letters)
        for letter in effect.letters:
            number = int.from_bytes(letter.row.body, "big")
            self._sent.setdefault((effect.producer, letter.number, message_of(number)), number)
            if number not in self._judge.seen.fates:
                self._judge.sent(number, self.dead, number.to_bytes(16, "big"))  # no order among them
        batches = [
            (parse_header(one.header(self.dead, effect.producer, checksum)), one.row.body) for one in effect.letters
        ]

        def accepted(name: str, at: int, offset: int) -> None:
            self._accepted(name, effect, effect.letters[at], offset)

        def done(count: int, error: SeriatimError | None) -> ForwardsDone:
            return ForwardsDone(effect.partition, effect.consumer_group, effect.serial, count, error)

        self._carrier.carry(process, self.dead, batches, accepted, done, is_away=self.is_away)

    def _accepted(self, name: str, effect: fx.ForwardBatches, letter: DeadLetter, offset: int) -> None:
        """A master says that a dead letter is stored. It names no place if it does not know it any more."""
        judge = self._judge
        number = int.from_bytes(letter.row.body, "big")
        judge.rules.dead_letters.accepted(effect.producer, letter.number)
        if not offset:
            return
        judge.accepted(name, self.dead, [number], offset)
        if not judge.seen.fates[number].outcome:
            judge.settled([number], "ok", offset)

    def noted(self, process: CoreProcess, note: fx.Note) -> None:
        """A server passes a message, because its dead letter is stored."""
        if note.name != "dead_lettered":
            return
        fields: dict[str, Any] = dict(note.fields)
        message = self._messages[note.partition, parse_offset(fields["offset"])]
        judge = self._judge
        judge.seen.states.add("a dead letter is stored")
        offset = parse_offset(fields["offset"])
        server = self._servers[process.name, note.partition, fields["group"]]  # that sent it
        letter = self._letters[process.name, fields["group"], note.partition, offset]
        if judge.rules.dead_letters.passed(process.name, server, note.partition, letter):
            judge.rules.keyed.passed(fields["group"], note.partition, offset, message)
