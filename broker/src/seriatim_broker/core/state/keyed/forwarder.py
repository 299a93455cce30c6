"""The forwarder: messages on their way to the dead-letter topic."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import islice
from typing import Final

from ...values.keyed import DeadLetterRow, first_number
from ...values.producers import WINDOW_BATCHES
from ...values.states import State

FORWARDS_MAX: Final = WINDOW_BATCHES
"""Maximum number of dead letters of a consumer group and partition that have a number or are read. Others wait for
them."""


@dataclass(slots=True, eq=False)
class Forward(State):
    """The first message of a key on its way to the dead-letter topic.

    Attributes:
        name: The key's name.
        number: The number that the forwarder gave it; 0: none yet.
        offset: Its offset; 0: not known before its key was read.
        row: The dead letter, once it is made.
        reading: The serial of the read of the message; 0: none is under way.
        written: The serial of the control record that has the number.
        from_us: Its read is tried again from then on.
        tries: How many reads have failed.
    """

    name: bytes
    number: int = 0
    offset: int = 0
    row: DeadLetterRow | None = None
    reading: int = 0
    written: int = 0
    from_us: int = 0
    tries: int = 0


@dataclass(slots=True, eq=False)
class Forwarder(State):
    """The messages that go to the dead-letter topic, and the request that is under way.

    Attributes:
        waiting: Keys whose first message goes there, in the order in which they came to it.
        next_number: The next number, if it is of this term; 1: none was given in this group epoch.
        is_number_new: No control record has `next_number` yet.
        sending: The serial of the dead letters that were sent and not answered; 0: none.
        sent: Their keys and numbers.
        send_from_us: More are sent from then on.
        send_pause_us: How long the last refusal made it wait.
        refusal: Why the dead-letter topic takes nothing; empty: it takes dead letters, as far as is known.
    """

    waiting: dict[bytes, Forward] = field(default_factory=dict)
    next_number: int = 1
    is_number_new: bool = False
    sending: int = 0
    sent: tuple[tuple[bytes, int], ...] = ()
    send_from_us: int = 0
    send_pause_us: int = 0
    refusal: str = ""

    @property
    def first(self) -> list[Forward]:
        """The keys whose turn it is: those with a number, and the next ones. The others wait, and cost nothing.

        Only these get a number, and each place in the order only comes nearer. So all that have one are among them.
        """
        return list(islice(self.waiting.values(), FORWARDS_MAX))

    def give_number(self, forward: Forward, term: int) -> int:
        """The message has the next number of the term. Returns it.

        Rule `numbers-have-a-term` (J4): each term counts from 1, and has a producer id of its own. Without it:
          1. A, the server of segment 1, has sent number 1. The group crosses to segment 2, where B continues with 2.
          2. The coordinator is restored as it was before. A believes that the group is in segment 1, and gives the
             numbers 2 to 5 to messages that come again. They are stored.
          3. The coordinator is rebuilt, and B continues. It gives number 2 to j:9. The master has that number, so j:9
             is passed without a dead letter.
        """
        forward.number = max(self.next_number, first_number(term))
        self.next_number = forward.number + 1
        self.is_number_new = True
        return forward.number
