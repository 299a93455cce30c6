"""Numbered sending: a server appends bodies to another partition, each one once, although servers and answers are lost.

    waiting ─▶ body read ─▶ numbered ──number durable everywhere──▶ sent ──stored──▶ done
                                                                    ▲  │
                                                                    └──┘ refused, or no answer: again, after a pause

The sender is a producer of the other partition, and the ordinary producer table there makes it exactly-once. A *number*
is the term of the server that gave it, and a count in this term. The producer id belongs to the term. The count is the
producer epoch of the batch, whose sequence is 0. So the table takes a number above the last one, and finds that a lower
one is stored, whatever it has forgotten in between.

The owner reads bodies, writes numbers into its control record, emits requests, and does what is to be done when one is
stored. A successor takes up the items with their numbers from that record, and sends the same ones again.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import islice
from typing import Final, Generic, NamedTuple, Protocol, TypeVar

from ..values.states import State

REQUEST_BYTES_MAX: Final = 2 << 20
"""A request with more than one body has at most this many bytes of bodies."""

ANSWER_US: Final = 30_000_000
"""A request without an answer is sent again after this long. The runtime answers each one sooner than that."""

_COUNT_BITS: Final = 32


def first_number(term: int) -> int:
    """The first number that is given in a term: the high bits are the term, the low 32 bits a count from 1."""
    return term << _COUNT_BITS | 1


def term_of_number(number: int) -> int:
    """The term in which the number was given."""
    return number >> _COUNT_BITS


def producer_epoch_of(number: int) -> int:
    """The producer epoch of the batch: the count of its number in its term."""
    return number & ((1 << _COUNT_BITS) - 1)


class Limits(NamedTuple):
    """How much is under way, and how long it waits.

    Attributes:
        items_max: Maximum number of items that have a number or are read. Others wait for them.
        pause_us: The pause after a refusal or a failed read. It doubles each time, up to `pause_us_max`.
        pause_us_max: The longest pause.
        held_up_us: From a pause of this length on, the other partition counts as refusing.
    """

    items_max: int
    pause_us: int
    pause_us_max: int
    held_up_us: int


class HasBody(Protocol):
    """What is sent."""

    @property
    def body(self) -> bytes: ...


@dataclass(slots=True, eq=False)
class Item(State):
    """What is sent under one number.

    Attributes:
        name: Its name among the waiting ones.
        number: Its number; 0: none yet.
        row: Its body, once it is read.
        reading: The serial of the read of the body; 0: none is under way.
        written: The serial of the control record that has the number.
        from_us: Its read is tried again from then on.
        tries: How many reads have failed.
    """

    name: bytes
    number: int = 0
    row: HasBody | None = None
    reading: int = 0
    written: int = 0
    from_us: int = 0
    tries: int = 0


_Item = TypeVar("_Item", bound=Item)


@dataclass(slots=True, eq=False)
class NumberedSending(State, Generic[_Item]):
    """The items that are sent to one partition, and the request that is under way.

    Attributes:
        limits: How much is under way, and how long it waits.
        waiting: The items, in the order in which they came.
        next_number: The next number, if it is of this term; 1: none was given yet.
        is_number_new: No control record has `next_number` yet.
        sending: The serial of the request that was sent and not answered; 0: none.
        sent: Names and numbers in it.
        send_from_us: More is sent from then on.
        send_pause_us: How long the last refusal made it wait.
        refusal: Why the other partition takes nothing; empty: it takes batches, as far as is known.
    """

    limits: Limits
    waiting: dict[bytes, _Item] = field(default_factory=dict)
    next_number: int = 1
    is_number_new: bool = False
    sending: int = 0
    sent: tuple[tuple[bytes, int], ...] = ()
    send_from_us: int = 0
    send_pause_us: int = 0
    refusal: str = ""

    @property
    def first(self) -> list[_Item]:
        """The items whose turn it is: those with a number, and the next ones. The others wait, and cost nothing.

        Only these get a number, and each place in the order only comes nearer. So all that have one are among them.
        """
        return list(islice(self.waiting.values(), self.limits.items_max))

    def taken_up(self) -> None:
        """All items of the last server are in `waiting`: their turn is by their numbers."""
        items = sorted(self.waiting.values(), key=lambda item: (not item.number, item.number))
        self.waiting = {item.name: item for item in items}

    # ---- reading and numbering ----

    def to_read(self, now_us: int) -> list[_Item]:
        """The items whose bodies are read next.

        While the other partition refuses, one body is read for each try, and none is kept between two tries. So senders
        to partitions that are full or deleted leave the memory to the others.
        """
        wanted = self.first
        if self.refusal:
            if now_us < self.send_from_us:
                return []
            numbered = [item for item in wanted if item.number]
            wanted = [min(numbered, key=lambda item: item.number)] if numbered else wanted[:1]
        return [item for item in wanted if item.row is None and not item.reading]

    def end_read(self, serial: int) -> _Item | None:
        """A read is over. Returns its item; None if it is not waited for any more."""
        item = next((item for item in self.first if item.reading == serial), None)
        if item is not None:
            item.reading = 0
        return item

    def read_failed(self, item: _Item, now_us: int) -> int:
        """The body cannot be read now. Returns the pause until the next try."""
        pause_us = min(self.limits.pause_us << min(item.tries, 10), self.limits.pause_us_max)
        item.tries += 1
        if not item.number:  # it goes after the others, so that it holds up none of them
            self.waiting[item.name] = self.waiting.pop(item.name)
        item.from_us = now_us + pause_us
        return pause_us

    def give_number(self, item: _Item, term: int) -> int:
        """The item, whose body was read, has the next number of the term. Returns it.

        Only what can be sent gets a number. Without it: a body that cannot be read would hold up all later numbers.

        Rule `numbers-have-a-term` (J4): each term counts from 1, and has a producer id of its own. Without it:
          1. A, the server of segment 1, has sent number 1. The group crosses to segment 2, where B continues with 2.
          2. The coordinator is restored as it was before. A believes that the group is in segment 1, and gives the
             numbers 2 to 5 to messages that come again. They are stored.
          3. The coordinator is rebuilt, and B continues. It gives number 2 to j:9. The master has that number, so j:9
             is passed without a dead letter.
        """
        item.number = max(self.next_number, first_number(term))
        self.next_number = item.number + 1
        self.is_number_new = True
        return item.number

    # ---- sending ----

    def ready(self, is_durable: Callable[[int], bool]) -> list[_Item]:
        """The items with the lowest numbers, as far as they can be sent. All are of one term.

        Args:
            is_durable: Whether the control record with that serial is durable on every eligible and joining member.

        Rule `numbered-is-durable` (J4): what has a number is sent only when the number is durable there. Without it:
          1. A gives k:5 the number 1, which is on A's disk only. The dead letter is stored.
          2. A dies. A2 knows nothing of it, and gives number 1 to j:7.
          3. The master finds that number 1 is stored, and j:7 is passed without a dead letter.

        Rule `in-order-of-numbers` (J4): a request begins with the lowest number that is not known to be stored, and
        leaves none out. Without it:
          1. k:5 has number 1, and cannot be read now. j:7 has number 2, and is sent and stored.
          2. k:5 is read, and sent under number 1.
          3. The master finds number 2 of this producer, so it answers that number 1 is stored. k:5 is lost.
        """
        ready: list[_Item] = []
        size_bytes = 0
        for item in sorted((item for item in self.first if item.number), key=lambda item: item.number):
            if item.row is None or not is_durable(item.written):
                break
            is_other_term = bool(ready) and term_of_number(item.number) != term_of_number(ready[0].number)
            size_bytes += len(item.row.body)
            if is_other_term or (ready and size_bytes > REQUEST_BYTES_MAX):
                break
            ready.append(item)
        return ready

    def begin(self, serial: int, items: list[_Item], now_us: int) -> None:
        """These items are sent. Without an answer they are sent again, under the same numbers."""
        self.sending = serial
        self.sent = tuple((item.name, item.number) for item in items)
        self.send_from_us = now_us + ANSWER_US

    def answered(self, serial: int, stored_count: int) -> list[_Item] | None:
        """The request is answered: the first ones of it are stored. Returns these; None if it is not the last request.

        Rule `passed-is-stored` (J4): an item is done only when it is stored on every member of the other segment.
        Without it:
          1. The dead letter of k:5 is sent. The master dies before it has stored it.
          2. k:5 is passed, and in no topic.

        An answer counts for the number that was sent, and not for the name. Without it:
          1. The dead letter of k:5 is sent under number 7. Retention drops k:5, so that ends.
          2. A consumer fails on k:9, and it is to be forwarded too.
          3. The answer says that number 7 is stored. k:9 is passed, and in no topic.
        """
        if not self.sending or self.sending != serial:
            return None
        sent, self.sending, self.sent, self.send_from_us = self.sent, 0, (), 0
        found = ((self.waiting.get(name), number) for name, number in sent[:stored_count])
        return [item for item, number in found if item is not None and item.number == number]

    def refused(self, message: str, now_us: int) -> bool:
        """Nothing more is taken now: wait. Returns whether that is news, which it is once until something is taken."""
        self.send_pause_us = min(2 * self.send_pause_us or self.limits.pause_us, self.limits.pause_us_max)
        self.send_from_us = now_us + self.send_pause_us
        if not self.refusal and self.send_pause_us < self.limits.held_up_us:
            return False  # a master that has just changed is no news
        for item in self.first:
            item.row = None  # it is read again for the next try
        is_news = not self.refusal
        self.refusal = self.refusal or message
        return is_news

    def taken(self) -> bool:
        """All of the request is stored. Returns whether that is news after a refusal."""
        was_refused, self.refusal, self.send_pause_us = bool(self.refusal), "", 0
        return was_refused
