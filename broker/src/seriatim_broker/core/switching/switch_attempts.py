"""Switch attempts: what this broker, as a switcher, asked members to prepare, and under which ids.

A member keeps everything that it prepared until the chain record names the chosen switch attempt. Without the two rules
below, a switcher whose transactions fail again and again would leave one more preparation on each member with each try:

- `attempt-anew`: the same content keeps its id.
- `replaces-undecided`: the switcher names its own switch attempts that can never be chosen, and members forget them.

A switch attempt can never be chosen if no transaction of it was sent, or if the record is newer than the revision that
its transaction compares. The answer *refused* proves nothing, because etcd refuses the write that fills its quota, and
keeps it.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from ..state.switching import Content, SwitchAttempt

if TYPE_CHECKING:  # the broker keeps them
    from ..state.broker import BrokerState
    from ..state.partition import Partition


def begin(broker: BrokerState, partition: Partition, content: Content) -> tuple[bytes, bool]:
    """The switch attempt id for that content; True if the id is new, False if the content had it before."""
    known = broker.switch_attempts.get(partition.id, ())
    # Rule `attempt-anew` (LIMIT): content that was prepared before keeps its id, so members answer without a write.
    # Without it:
    #   1. A switcher prepares segment 2, and the coordinator refuses its transaction.
    #   2. The switcher tries again, with the same members, table and tail, under a new id.
    #   3. Each member writes the whole preparation once more. Its disk fills as long as the coordinator refuses.
    for attempt in known:
        if attempt.content == content and not attempt.voided:
            return attempt.id, False
    attempt = SwitchAttempt(broker.new_id(), content)
    broker.switch_attempts[partition.id] = (*known, attempt)[-broker.config.switch_attempts_max :]
    return attempt.id, True


def replaced_by(broker: BrokerState, partition: Partition, attempt: bytes, segment_no: int) -> tuple[bytes, ...]:
    """The switch attempts of this broker for that segment that can never be chosen: members may forget them."""
    # Rule `replaces-undecided` (I1, I12): only attempts of which no transaction can still be carried out
    # (`compared is None`). Without it:
    #   1. The switcher prepares attempt A and sends its transaction. No answer comes in time.
    #   2. It prepares attempt B, with another content, and tells a member that B replaces A. The member forgets A.
    #   3. The coordinator carries out the transaction of A after all. The record names A.
    #   4. The member has neither A's producer table nor A's copy of the uncertain tail.
    replaced = tuple(
        other.id
        for other in broker.switch_attempts.get(partition.id, ())
        if other.id != attempt and other.content.segment_no == segment_no and other.compared is None
    )
    # An attempt that was named here is never used again, even if its content is asked for again. Without it:
    #   1. Attempt B is prepared. Attempt A replaces B. A member lacks idle blocks for A, and waits for them.
    #   2. The switcher asks for the content of B again, under the id B. The member prepares it; the record names B.
    #   3. The blocks arrive, and the member carries out the request for A: it drops B, with its table and tail copy.
    for other in replaced:
        void(broker, partition, other)
    return replaced


def void(broker: BrokerState, partition: Partition, attempt: bytes) -> None:
    """Never use that id again, because a member will not open under it: the content gets another id."""
    _change(broker, partition, attempt, voided=True)


def sent(broker: BrokerState, partition: Partition, attempt: bytes) -> None:
    """Note that a transaction of this switch attempt is on its way.

    The coordinator may carry it out until the record is newer than the revision that the transaction compares.
    """
    _change(broker, partition, attempt, compared=partition.revision)


def on_learned(broker: BrokerState, partition: Partition) -> None:
    """A newer record is known: forget the attempts for segments that it has.

    For the others, note which transactions can no longer be carried out.
    """
    known = broker.switch_attempts.pop(partition.id, ())
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
        broker.switch_attempts[partition.id] = left


def _change(broker: BrokerState, partition: Partition, attempt: bytes, **changes: object) -> None:
    broker.switch_attempts[partition.id] = tuple(
        replace(known, **changes) if known.id == attempt else known  # type: ignore[arg-type]
        for known in broker.switch_attempts.get(partition.id, ())
    )
