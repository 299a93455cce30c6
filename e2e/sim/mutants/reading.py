# ruff: noqa: SLF001 - a mutant replaces steps that nobody else may touch
"""Rules of the core about reading: what is served, by whom, to which group, and which copies there are."""

from __future__ import annotations

from typing import Any

from seriatim_api.ids import MemberId
from seriatim_broker.core import copying, replica, right, tables
from seriatim_broker.core.effects import Send
from seriatim_broker.core.groups import crossing, cursors, delivery
from seriatim_broker.core.messages import CopyAnswer, CursorSync

from .. import world
from .mutation import LOSS, Mutation, Patch, with_handler


def _above_commit() -> list[Patch]:
    return [(replica.SegmentLog, "readable_below", property(lambda self: self.tail))]


def _readers_skip() -> list[Patch]:
    return [(tables, "want_before", lambda outbox, of, no: ())]


def _all_acknowledged() -> list[Patch]:
    real = crossing.cross_if_done

    def cross(outbox: Any, of: Any, head: Any) -> None:
        """Delivered is as good as acknowledged."""
        head.safe_acked = max(head.safe_acked, head.delivered)
        real(outbox, of, head)

    return [(crossing, "cross_if_done", cross)]


def _acks_on_every_eligible_member() -> list[Patch]:
    real = cursors.sync

    def sync(outbox: Any, of: Any, head: Any) -> None:
        """Only this member's disk counts; the others hear nothing."""
        effects = len(outbox.effects)
        real(outbox, of, head)
        outbox.effects = [*outbox.effects[:effects], *(e for e in outbox.effects[effects:] if not _is_sync(e))]
        for waiting in head.syncs.values():
            for member in [member for member in waiting.waiting if member != outbox.member]:
                del waiting.waiting[member]

    return [(cursors, "sync", sync)]


def _is_sync(effect: Any) -> bool:
    return isinstance(effect, Send) and isinstance(effect.message, CursorSync)


def _reservations() -> list[Patch]:
    real = delivery.deliver_held_back

    def deliver(outbox: Any, of: Any, head: Any) -> None:
        """Delivers without having said so durably."""
        head.safe_reserved = 1 << 40
        real(outbox, of, head)

    return [(delivery, "deliver_held_back", deliver)]


def _no_lease() -> list[Patch]:
    return [(right, "silent_members", lambda *arguments: [])]


def _copy_in_memory() -> list[Patch]:
    real = copying.on_copy_answer

    def on_copy_answer(outbox: Any, of: Any, sender: Any, message: Any) -> None:
        """What is in memory counts as copied."""
        real(outbox, of, sender, message)
        log = of.logs.get(message.segment_no)
        if log is not None and message.segment_no in of.copies:
            log.durable = log.tail
            copying._go_on(outbox, of, message.segment_no)

    return [with_handler(CopyAnswer, on_copy_answer)]


def _incarnation() -> list[Patch]:
    def replace_disk(self: world.World, slot: Any) -> None:
        """An emptied disk comes back under the old identity."""
        self._lost_disks += 1
        self.judge.graveyard.append((MemberId(slot.name, "wiped"), slot.disk.durable.twin()))
        slot.disk.wipe()

    return [(world.World, "replace_disk", replace_disk)]


MUTATIONS: dict[str, Mutation] = {
    "above-commit": Mutation("consumers are served below commit only", _above_commit, ("I6", "I12")),
    "readers-skip": Mutation("readers skip what stands earlier already", _readers_skip, ("I9",), "groups-die"),
    "all-acknowledged": Mutation("a group crosses when it acknowledged all", _all_acknowledged, ("I3", "I8", "CORE")),
    "ack-copies": Mutation(
        "an ack counts on every eligible member", _acks_on_every_eligible_member, ("I9", "I11"), "restarts"
    ),
    "reservations": Mutation("a delivery is reserved durably first", _reservations, ("I9",), "restarts"),
    "serve-lease": Mutation("a server delivers only under its lease", _no_lease, ("SERVER",), "two-servers"),
    "copy-durable": Mutation("a copy counts once it is on the disk", _copy_in_memory, ("COPY",), "lost-disks"),
    "incarnation": Mutation("an emptied disk is another member", _incarnation, ("I14", *LOSS), "lost-disks"),
}
"""By name."""
