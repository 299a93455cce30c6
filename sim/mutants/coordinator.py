"""Rules about a coordinator that refuses to write, or goes back in time, removed one at a time."""

from __future__ import annotations

from seriatim_api.ids import MemberId, PartitionId
from seriatim_broker.core.dispatch import learning
from seriatim_broker.core.peers import behind
from seriatim_broker.core.state.broker import BrokerState
from seriatim_broker.core.state.partition import Partition
from seriatim_broker.core.state.switching import Content, Switch, SwitchAttempt
from seriatim_broker.core.switching import opening, switch_attempts
from seriatim_broker.runtime import coordination
from seriatim_broker.runtime.coordination import CoordinatorWork
from seriatim_broker.runtime.membership import Seen
from seriatim_broker.runtime.rebuilt_watches import RebuiltWatches

from .mutation import LOSS, Mutation, Patch, nothing

_TWICE = (*LOSS, "TWICE", "I7", "I8", "I9", "I11", "I14", "RT")


def _refused_is_lost() -> list[Patch]:
    def write_wait_us(_self: Partition, _broker: BrokerState) -> int:
        return 0

    return [(Partition, "write_wait_us", write_wait_us)]


def _always_a_new_attempt() -> list[Patch]:
    def begin(broker: BrokerState, partition: Partition, content: Content) -> tuple[bytes, bool]:
        attempt = SwitchAttempt(broker.new_id(), content)
        broker.switch_attempts[partition.id] = (*broker.switch_attempts.get(partition.id, ()), attempt)
        return attempt.id, True

    return [(switch_attempts, "begin", begin)]


def _undecided_are_replaced() -> list[Patch]:
    """A switcher takes an unknown end for a failure, and each of its tries has an id of its own."""

    def replaced_by(broker: BrokerState, partition: Partition, attempt: bytes, segment_no: int) -> tuple[bytes, ...]:
        known = broker.switch_attempts.get(PartitionId(partition.id), ())
        return tuple(other.id for other in known if other.id != attempt and other.content.segment_no == segment_no)

    return [(switch_attempts, "replaced_by", replaced_by), *_always_a_new_attempt()]


def _older_is_believed() -> list[Patch]:
    return [(behind, "problem", lambda *_: ""), (behind, "contradiction", lambda *_: ""), *_tries_another_group()]


def _tries_another_group() -> list[Patch]:
    """Who holds the next segment is passed over, as one that is merely away."""

    def contradict(broker: BrokerState, partition: Partition, switch: Switch, _sender: MemberId) -> None:
        opening.prepare_next(broker, partition, switch)

    return [(opening, "contradict", contradict)]


def _not_kept() -> list[Patch]:
    return [(learning, "_keep", nothing)]


def _read_is_not_told() -> list[Patch]:
    return [(Partition, "may_have_written", lambda *_: False)]


def _told_is_forgotten() -> list[Patch]:
    """A record that a member told, and that could not be taken up here, does not count before it is read."""
    return [(Partition, "is_told_of_later", lambda *_: False)]


def _sent_although_out_of_date() -> list[Patch]:
    return [(CoordinatorWork, "_is_out_of_date", lambda *_: False)]


def _epoch_is_not_compared() -> list[Patch]:
    return [(coordination, "is_of_epoch", lambda *_: ())]


def _registered_again() -> list[Patch]:
    return [(Seen, "is_ahead_of", lambda *_: False)]


def _watches_stay() -> list[Patch]:
    return [(RebuiltWatches, "end_watches", nothing)]


MUTATIONS: dict[str, Mutation] = {
    "refused-at-once": Mutation(
        "after a refused write a partition waits, longer each time", _refused_is_lost, ("LIMIT", "I13"), "refusing"
    ),
    "attempt-anew": Mutation(
        "a preparation with the same content keeps its attempt id", _always_a_new_attempt, ("LIMIT",), "refusing"
    ),
    "replaces-undecided": Mutation(
        "a switcher replaces only preparations that can never be chosen", _undecided_are_replaced, LOSS, "refusing"
    ),
    "older-believed": Mutation(
        "a record that is older than the known one decides nothing", _older_is_believed, _TWICE, "restored"
    ),
    "record-not-kept": Mutation("the disk remembers what was decided", _not_kept, (*_TWICE, "I13"), "restored"),
    "out-of-date": Mutation(
        "a write is not sent if its chain record is known to be out of date",
        _sent_although_out_of_date,
        ("TWICE",),
        "restored-alone",
        world="brokers",
        layer="runtime",
        batch_count=100,
    ),
    "told-gives-no-length": Mutation(
        "a member that was told of a later segment answers no switcher before it has read the record",
        _told_is_forgotten,
        ("TWICE",),
        "restored-alone",
        world="brokers",
        batch_count=100,
    ),
    "read-is-told": Mutation(
        "a transaction whose answer was lost is told to the members when a read shows it",
        _read_is_not_told,
        ("TWICE",),
        "restored-alone",
        world="brokers",
        batch_count=100,
    ),
    "epoch-compare": Mutation(
        "a write of a chain record compares the chain epoch of the record that it follows",
        _epoch_is_not_compared,
        ("I7",),
        "revisions-again",
        world="brokers",
        layer="runtime",
        batch_count=100,
    ),
    "not-registered-again": Mutation(
        "a member record that lost a run is not overwritten",
        _registered_again,
        ("ALARM",),
        "restored",
        world="brokers",
        layer="runtime",
        batch_count=150,
    ),
    "rebuilt-is-listed": Mutation(
        "copies of the coordinator's records are listed again after a rebuild",
        _watches_stay,
        ("I13",),
        "restored",
        world="brokers",
        layer="runtime",
        batch_count=100,
    ),
}
"""By name."""
