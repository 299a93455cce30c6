# ruff: noqa: SLF001 - a mutant replaces steps that no other code may touch
"""Rules of the core about reading: what is served, by which member, to which consumer group, and which copies exist."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from seriatim_api.ids import MemberId
from seriatim_broker.core.consumers import crossing, cursors, delivery
from seriatim_broker.core.control import leaving
from seriatim_broker.core.copies import copying, producer_tables
from seriatim_broker.core.dispatch import learning, record
from seriatim_broker.core.peers import disks, lanes, right
from seriatim_broker.core.state import segment_log
from seriatim_broker.core.values import producers
from seriatim_broker.core.values.effects import Send
from seriatim_broker.core.values.messages import ChainChanges, CopyAnswer, ReplicateCursors
from seriatim_broker.core.values.segments import Changes

from ..cores.brokers import Broker
from .mutation import LOSS, Mutation, Patch, nothing, with_handler


def _above_commit() -> list[Patch]:
    return [(segment_log.SegmentLog, "readable_below", property(lambda self: self.tail))]


def _readers_skip() -> list[Patch]:
    return [(producer_tables, "want_before", lambda broker, of, no: producers.ProducerTable())]


def _tables_go_early() -> list[Patch]:
    return [(producer_tables, "is_kept", lambda chain, no: not chain.following(no, 1))]


def _all_acknowledged() -> list[Patch]:
    real = crossing.cross_if_done

    def cross(broker: Any, of: Any, consumer_group: Any) -> None:
        """Delivered is as good as acknowledged."""
        consumer_group.ledger.safe_acked = max(consumer_group.ledger.safe_acked, consumer_group.dispatcher.delivered)
        real(broker, of, consumer_group)

    return [(crossing, "cross_if_done", cross)]


def _acks_on_every_eligible_member() -> list[Patch]:
    real = cursors.replicate

    def replicate(broker: Any, of: Any, consumer_group: Any) -> None:
        """Only this member's disk counts; the others hear nothing."""
        effects = len(broker.out.effects)
        real(broker, of, consumer_group)
        broker.out.effects = [
            *broker.out.effects[:effects],
            *(e for e in broker.out.effects[effects:] if not _replicates_cursors(e)),
        ]
        for waiting in consumer_group.ledger.replications.values():
            for member in [member for member in waiting.waiting if member != broker.member]:
                del waiting.waiting[member]

    return [(cursors, "replicate", replicate)]


def _replicates_cursors(effect: Any) -> bool:
    return isinstance(effect, Send) and isinstance(effect.message, ReplicateCursors)


def _reservations() -> list[Patch]:
    real = delivery.deliver_held_back

    def deliver(broker: Any, of: Any, consumer_group: Any) -> None:
        """Delivers without having said so durably."""
        consumer_group.ledger.safe_reserved = 1 << 40
        real(broker, of, consumer_group)

    return [(delivery, "deliver_held_back", deliver)]


def _no_lease() -> list[Patch]:
    return [(right, "silent_members", lambda *arguments: [])]


def _changes_of_any_record() -> list[Patch]:
    def on_changes(broker: Any, of: Any, sender: Any, message: ChainChanges) -> None:
        """What changed is put over whatever record is known here."""
        known, told = of.chain, message.chain
        if known is None:
            of.read_chain(broker)
        elif known.epoch < told.epoch:
            segments = known.parts.with_changes(Changes(tuple(told.segments), message.gone))
            learning.learn(broker, of, replace(told, segments=segments), message.revision)

    return [(record, "on_changes", on_changes)]


def _keeps_serving_what_it_cannot_read() -> list[Patch]:
    return [(right, "give_up", nothing)]


def _copy_in_memory() -> list[Patch]:
    real = copying.on_copy_answer

    def on_copy_answer(broker: Any, of: Any, sender: Any, message: Any) -> None:
        """What is in memory counts as copied."""
        real(broker, of, sender, message)
        log = of.logs.get(message.segment_no)
        if log is not None and message.segment_no in of.copies:
            log.durable = log.tail
            of.copies[message.segment_no].token = 0
            copying._go_on(broker, of, message.segment_no)

    return [with_handler(CopyAnswer, on_copy_answer)]


def _incarnation() -> list[Patch]:
    def replace_disk(self: Broker) -> None:
        """An emptied disk comes back under the old identity."""
        world = self._cluster.world
        world.lost_a_disk()
        world.judge.seen.graveyard.append((MemberId(self.name, "wiped"), self.disk.durable.twin()))
        self.disk.wipe()

    return [(Broker, "replace_disk", replace_disk)]


def _hang_unnoticed() -> list[Patch]:
    return [(disks, "is_hung", lambda broker, member: False), (disks, "on_answer", nothing)]


def _lanes_unwatched() -> list[Patch]:
    return [(lanes, "look", lambda broker, link, watched: False)]


def _only_own_fullness() -> list[Patch]:
    real = disks.full_for_us
    return [
        (disks, "full_for_us", lambda broker, member: real(broker, member) if member == broker.member else None),
    ]


def _stays_on_full_disks() -> list[Patch]:
    return [(leaving, "leave_full_disk", nothing)]


MUTATIONS: dict[str, Mutation] = {
    "above-commit": Mutation("consumers are served only below the commit", _above_commit, ("I6", "I12")),
    "readers-skip": Mutation(
        "readers skip a batch that is earlier in the order already", _readers_skip, ("I9",), "groups-die"
    ),
    "tables-go-early": Mutation(
        "a segment before an incomplete one keeps its table", _tables_go_early, ("I9", "TABLE"), "groups-die"
    ),
    "all-acknowledged": Mutation(
        "a consumer group crosses only when it has acknowledged everything", _all_acknowledged, ("I3", "I8", "CORE")
    ),
    "ack-copies": Mutation(
        "an ack counts only once every eligible member has it",
        _acks_on_every_eligible_member,
        ("I9", "I11"),
        "restarts",
    ),
    "reservations": Mutation("a range is reserved durably before it is delivered", _reservations, ("I9",), "restarts"),
    "serve-lease": Mutation("a server delivers only under its lease", _no_lease, ("SERVER",), "two-servers"),
    "changes-of-any-record": Mutation(
        "changes are applied only to the chain record that they continue",
        _changes_of_any_record,
        ("I14", "LEAVE", "SERVER", *LOSS),
        "islands",
    ),
    "changes-end-a-right": Mutation(
        "a server that cannot apply changes of the chain record gives up its right",
        _keeps_serving_what_it_cannot_read,
        ("SERVER",),
        "told-first",
    ),
    "copy-durable": Mutation("a copy counts only once it is on the disk", _copy_in_memory, ("COPY",), "lost-disks"),
    "hang-unnoticed": Mutation("a member whose disk hangs counts as silent", _hang_unnoticed, ("I13",), "hung-disks"),
    "lane-unwatched": Mutation("a link with a stalled lane is ended", _lanes_unwatched, ("I13",), "stalled-lanes"),
    "full-slave": Mutation(
        "if the slave's disk is full, the master refuses batches or moves the segment",
        _only_own_fullness,
        ("FULL",),
        "full-disks",
    ),
    "full-stays": Mutation("an open segment leaves a full disk", _stays_on_full_disks, ("I13",), "full-disks"),
    "incarnation": Mutation("an emptied disk is another member", _incarnation, ("I14", *LOSS), "lost-disks"),
}
"""By name."""
