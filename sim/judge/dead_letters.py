"""J4: dead letters are stored once by the forwarder, and what has a number ends in no other way.

The dead-letter topic itself is judged as each partition: I1 for what its master said to be stored, I9 for repeats.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from seriatim_api.ids import PartitionId, split_offset
from seriatim_broker.core.values.keyed import DeadLetter

from .excuses import Excuse
from .seen import Seen

_LETTER_BITS: Final = 40
_MESSAGE: Final = (1 << _LETTER_BITS) - 1


def letter_of(forwarder: int, message: int) -> int:
    """The number of the dead letter of a message; forwarders count from 1."""
    return forwarder << _LETTER_BITS | message


def message_of(letter: int) -> int:
    """The message of a dead letter."""
    return letter & _MESSAGE


Server = tuple[str, int, str, int, int]
"""A member run as the server of a consumer group: its broker, the run, the group, its group epoch, the server epoch."""

_Name = tuple[PartitionId, str, int, int]
"""A message that is forwarded: its partition, the consumer group, the group epoch, the message."""


class DeadLetters:
    """Remembers what has which number, and what masters said to be stored."""

    def __init__(self, seen: Seen) -> None:
        self._seen = seen
        self._messages: dict[tuple[bytes, int], int] = {}  # (producer, number) -> the dead letter
        self._numbers: dict[_Name, tuple[bytes, int]] = {}
        self._doubtful: set[_Name] = set()  # sent by a server that may have believed a cursor of an older copy
        self._accepted: set[tuple[bytes, int]] = set()
        self._stored: set[int] = set()
        self._passed: set[tuple[Server, int]] = set()

    def sent(
        self, server: Server, partition: PartitionId, group: str, producer: bytes, letters: Sequence[DeadLetter]
    ) -> None:
        """A server sends dead letters."""
        numbers = [letter.number for letter in letters]
        if numbers != sorted(numbers):
            self._seen.fail("J4", f"{group} in partition {partition} sends the numbers {numbers}, not in their order")
        for letter in letters:
            body = int.from_bytes(letter.row.body, "big")
            message = message_of(body)
            self._look_at_number(server, partition, message, (producer, letter.number), body)
            if len(self._numbers) > 1:
                self._seen.states.add("several dead letters")

    def _look_at_number(
        self, server: Server, partition: PartitionId, message: int, given: tuple[bytes, int], body: int
    ) -> None:
        """A message has one number in a group epoch, and a number one message.

        A server that believes a cursor of an older copy may give numbers again that it has forgotten.
        """
        who, _, group, group_epoch, server_epoch = server
        name = partition, group, group_epoch, message
        if self._seen.may_believe_older(who, group, partition, group_epoch, server_epoch):
            self._doubtful.add(name)
        what = f"{group} in partition {partition} sends {message} as {given}"
        known = self._messages.setdefault(given, body)
        if known != body:
            self._doubt(name, f"{what}, which was {known}")
        if (server, message) in self._passed:
            self._doubt(name, f"{what} again, which this server has passed: {server}")
        number = self._numbers.setdefault(name, given)
        if number != given:
            self._doubt(name, f"{what}, and it had number {number}")

    def _doubt(self, name: _Name, what: str) -> None:
        if name not in self._doubtful:
            self._seen.fail("J4", what)
        self._seen.excuse(Excuse.OLDER_CURSOR)
        self._seen.states.add("a number is given again after an older copy")

    def accepted(self, producer: bytes, number: int) -> None:
        """A master says that a dead letter is stored."""
        self._accepted.add((producer, number))
        self._stored.add(self._messages[producer, number])

    def passed(self, who: str, server: Server, partition: PartitionId, letter: int) -> bool:
        """A server passes a message, because its dead letter is stored.

        Returns:
            Whether it is. A server that believes a cursor of an older copy is notified of a number it has forgotten.
            What it passes does not count: after the rebuild the group continues where it was further.
        """
        _, _, group, group_epoch, _ = server
        self._passed.add((server, message_of(letter)))
        if letter in self._stored:
            return True
        what = f"{who} passes a message, and no master said that its dead letter {letter} is stored"
        self._doubt((partition, group, group_epoch, message_of(letter)), what)
        return False

    def final(self, order: Sequence[tuple[int, int]]) -> None:
        """What masters said to be stored is in the dead-letter topic; `order` has each (offset, message) of it."""
        standing = {message for _, message in order if message >> _LETTER_BITS}
        missing = sorted(letter for letter in self._stored - standing if not self._is_lost(letter))
        if missing:
            self._seen.fail("J4", f"dead letters of {missing[:5]} were said to be stored, and are not there")

    def _is_lost(self, letter: int) -> bool:
        """Whether a dead letter was in a segment that an administrator declared lost."""
        fate = self._seen.fates[letter]
        if fate.offset is None:
            return False
        no, index = split_offset(fate.offset)
        is_lost = self._seen.losses.covers((fate.partition, no), index)
        if is_lost:
            self._seen.excuse(Excuse.LOST_AFTERWARDS)
        return is_lost

    def granted(
        self,
        who: str,
        group: str,
        partition: PartitionId,
        group_epoch: int,
        server_epoch: int,
        messages: Sequence[int],
        *,
        flagged: bool,
    ) -> None:
        """A server puts a grant on a consumer's stream."""
        for message in messages:
            number = self._numbers.get((partition, group, group_epoch, message))
            if number is None:
                continue
            if not flagged or not self._seen.may_believe_older(who, group, partition, group_epoch, server_epoch):
                self._seen.fail("J4", f"{who} grants {message}, which was sent as dead letter {number}")
            self._seen.excuse(Excuse.OLDER_CURSOR)
