"""Attempts: what a switcher asked members to prepare, so that it asks for the same again and not for more and more.

A member keeps whatever it prepared until the chain record says which attempt was chosen. A switcher whose transaction
does not go through would leave one preparation more on each member with every try. Two rules bound that.

The same content keeps its id. A preparation is what it says and nothing else, so a second try with the same members,
table and tail asks for the attempt that is there already; the members answer without writing.

A switcher names the attempts of its own that can never be chosen, and members forget those (*replaces*). Which ones:

    1  Switcher S prepares attempt A and sends its transaction. No answer comes in time.
    2  S prepares attempt B, of another content, and tells a member that B replaces A. The member forgets A.
    3  The transaction of A is carried out after all. The record names A, and the member has neither the table nor the
       copy of the uncertain tail that go with it: an acknowledged message may be lost.

So an attempt may be named only if no transaction of it can still be carried out: none was ever sent, or what was sent
compared a revision that the record has passed since. An answer *refused* is no proof: etcd refuses the write that fills
its quota, and keeps it.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from ..state.switching import Attempt, Content

if TYPE_CHECKING:  # the broker keeps them
    from ..state.broker import BrokerState
    from ..state.partition import Partition


def begin(broker: BrokerState, partition: Partition, content: Content) -> tuple[bytes, bool]:
    """The id for that content, and whether it is new: else it is the one that the content had before."""
    known = broker.attempts.get(partition.id, ())
    for attempt in known:
        if attempt.content == content and not attempt.voided:
            return attempt.id, False
    attempt = Attempt(broker.new_id(), content)
    broker.attempts[partition.id] = (*known, attempt)[-broker.config.attempts_max :]
    return attempt.id, True


def replaced_by(broker: BrokerState, partition: Partition, attempt: bytes, segment_no: int) -> tuple[bytes, ...]:
    """The attempts of this broker for that segment that can never be chosen, and that members may forget.

    An attempt that was named here is never used again, also if its content is asked for again:

    1  Attempt B is prepared. Attempt A replaces B; a member lacks blocks for it, and waits for them.
    2  The content of B is asked for again, under the id B. The member prepares it and answers; the record names B.
    3  The blocks come, and the member carries out what it was asked for A: it drops B, with its table and tail copy.
    """
    replaced = tuple(
        other.id
        for other in broker.attempts.get(partition.id, ())
        if other.id != attempt and other.content.segment_no == segment_no and other.compared is None
    )
    for other in replaced:
        void(broker, partition, other)
    return replaced


def void(broker: BrokerState, partition: Partition, attempt: bytes) -> None:
    """A member refuses to open under that id for ever: the content needs another one."""
    _change(broker, partition, attempt, voided=True)


def sent(broker: BrokerState, partition: Partition, attempt: bytes) -> None:
    """A transaction of it is on its way, and may be carried out until the record passes the revision it compares."""
    _change(broker, partition, attempt, compared=partition.revision)


def on_learned(broker: BrokerState, partition: Partition) -> None:
    """The record is newer: forget what it decided, and note which transactions it left behind."""
    known = broker.attempts.pop(partition.id, ())
    if not known:
        return
    assert partition.chain is not None
    opened = partition.chain.open_segment.no
    left = tuple(
        replace(attempt, compared=None)
        if attempt.compared is not None and attempt.compared < partition.revision
        else attempt
        for attempt in known
        if attempt.content.segment_no > opened
    )
    if left:
        broker.attempts[partition.id] = left


def _change(broker: BrokerState, partition: Partition, attempt: bytes, **changes: object) -> None:
    broker.attempts[partition.id] = tuple(
        replace(known, **changes) if known.id == attempt else known  # type: ignore[arg-type]
        for known in broker.attempts.get(partition.id, ())
    )
