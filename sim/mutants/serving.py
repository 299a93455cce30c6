# ruff: noqa: SLF001 - a mutant replaces steps that no other code may touch
"""Rules of serving: which member may deliver at a moment or become the server, and what a new server may rely on.

Most of these show with three members, with a link that is slow in one direction, or with a connection that breaks while
a disk is slow.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from seriatim_broker.core import broker
from seriatim_broker.core.consumers import cursors, delivery, eligibility, serving
from seriatim_broker.core.dispatch import learning, links
from seriatim_broker.core.peers import right
from seriatim_broker.core.switching import lengths
from seriatim_broker.core.values.chain import add_eligible, change_server
from seriatim_broker.core.values.log import CursorState
from seriatim_broker.core.values.messages import EligibleRequest, TailAnswer
from seriatim_broker.core.values.segment import SegmentState
from seriatim_broker.core.writing import replication
from seriatim_broker.runtime import archive

from .mutation import LOSS, Mutation, Patch, with_handler


def _resumed_tail_is_durable() -> list[Patch]:
    def on_tail(broker: Any, of: Any, sender: Any, message: TailAnswer) -> None:
        """What a follower has in memory when its connection is back, it has on its disk."""
        replication.on_tail_answer(broker, of, sender, replace(message, durable=message.tail))

    return [with_handler(TailAnswer, on_tail)]


def _own_disk_is_common() -> list[Patch]:
    real = serving._begin

    def begin(broker: Any, of: Any, consumer_group: Any, segment: Any, record: Any) -> None:
        """What a new server finds on its own disk, every eligible member has."""
        real(broker, of, consumer_group, segment, record)
        consumer_group.ledger.safe_acked, consumer_group.ledger.safe_reserved = (
            consumer_group.ledger.acked,
            consumer_group.ledger.reserved,
        )

    return [(serving, "_begin", begin)]


def _older_server_counts() -> list[Patch]:
    def replaces(known: CursorState | None, new: CursorState) -> bool:
        """A member takes the control records of each server that it has not refused since its start."""
        return known is None or new.group_epoch >= known.group_epoch

    return [(cursors, "replaces", replaces), *_refused_by_chain_alone()]


def _refused_by_chain_alone() -> list[Patch]:
    """A member that has not read the chain record since it started knows of no other server."""

    def is_older(of: Any, no: int, server_epoch: int, _groups: Any) -> bool:
        segment = of.chain.segment(no) if of.chain is not None else None
        return segment is not None and server_epoch < segment.server_epoch

    return [(cursors, "_is_of_older_server", is_older)]


def _refusals_end_at_restart() -> list[Patch]:
    def nothing(*_: Any) -> None:
        """A member that starts again answers each server until it has read the record."""

    # A member that refuses a control record tells its sender the newer chain record, which hides this bug mostly.
    return [(right, "refuse_at_start", nothing), *_refused_by_chain_alone()]


def _seal_keeps_eligible() -> list[Patch]:
    real = lengths.seal

    def seal(switch: Any, old: Any) -> Any:
        found = real(switch, old)
        return replace(found, eligible=tuple(dict.fromkeys((*found.eligible, *old.eligible))))

    return [(lengths, "seal", seal)]


def _lease_from_receipt() -> list[Patch]:
    real = links.on_heartbeat_answer

    def on_answer(broker: Any, partitions: Any, sender: Any, message: Any) -> None:
        """The lease counts from when the answer came."""
        real(broker, partitions, sender, message)
        broker.links.by_broker[sender.broker].answered_us = broker.now.mono_us

    return [(links, "on_heartbeat_answer", on_answer)]


def _no_second_look() -> list[Patch]:
    real = delivery.deliver_held_back

    def deliver(broker: Any, of: Any, consumer_group: Any) -> None:
        """The right was asked for before the read; what was read is delivered."""
        ask = right.may_deliver

        def once(*_: Any) -> bool:
            right.may_deliver = ask
            return True

        right.may_deliver = once  # type: ignore[assignment]
        try:
            real(broker, of, consumer_group)
        finally:
            right.may_deliver = ask

    return [(delivery, "deliver_held_back", deliver)]


def _listed_at_once() -> list[Patch]:
    real = eligibility.on_eligible_request

    def on_request(broker: Any, of: Any, sender: Any, message: EligibleRequest) -> None:
        """A member that has the segment is listed; the control records will come."""
        no = message.segment_no
        held = of.rights.get(no)
        segment: Any = of.chain.segment(no) if of.chain is not None else None
        is_sealed = segment is not None and segment.state is SegmentState.SEALED
        if held is None or not held.confirmed or not is_sealed or sender in segment.eligible:
            real(broker, of, sender, message)
        elif not of.is_writing("right", no):
            of.write_chain(broker, "right", add_eligible(of.chain, no, sender), no)

    return [with_handler(EligibleRequest, on_request)]


def _slave_keeps_its_run() -> list[Patch]:
    real = learning._open

    def open_(broker: Any, of: Any, chain: Any, segment: Any) -> None:
        """A slave opens what an earlier run of it prepared."""
        run, chosen = broker.member_run, of.chosen_preparation(segment)
        if chosen is not None and segment.master != broker.member:
            broker.member_run = chosen.member_run
        real(broker, of, chain, segment)
        broker.member_run = run

    return [(learning, "_open", open_)]


def _unreachable_is_gone() -> list[Patch]:
    return [(right, "_has_ended", lambda broker, member: not broker.is_linked(member))]


def _messages_of_any_session() -> list[Patch]:
    def on_received(self: Any, event: Any) -> None:
        link = self.state.links.by_broker.get(event.broker)
        if link is None or link.member is None:
            return
        link.heard_us = self.state.now.mono_us
        self._on_message(link.member, event.message)

    return [(broker.BrokerCore, "_on_received", on_received)]


def _half_server() -> list[Patch]:
    real = right.take_over

    def take_over(broker: Any, of: Any, no: int, server_epoch: int) -> None:
        """Who has a part of a segment serves that."""
        log = of.logs.get(no)
        if log is None or log.is_whole:
            real(broker, of, no, server_epoch)
            return
        segment = of.chain.segment(no)
        is_news = segment is not None and segment.server_epoch <= server_epoch and segment.server != broker.member
        if not is_news or segment.state is not SegmentState.SEALED or of.is_writing("right", no):
            return
        if right._is_silent(broker, segment.server) and right._nobody_eligible_lives(broker, segment):
            right.refuse(broker, of, no, segment.server)
            of.write_chain(broker, "right", change_server(of.chain, no, broker.member, (segment.server,)), no)

    return [(right, "take_over", take_over)]


def _pages_that_grow() -> list[Patch]:
    real = archive.ChainArchive.lay_out

    def lay_out(self: archive.ChainArchive, chain: Any) -> archive.Layout:
        """A page is written when a segment is added to it."""
        known = self._kept.get(chain.partition)
        before = archive._by_page(known.paged) if known is not None else {}
        laid = real(self, chain)
        after = archive._by_page(laid.paged)
        pages = tuple(
            (number, value)
            for number, value in laid.pages
            if value is None or len(after[number]) > len(before.get(number, ()))
        )
        return replace(laid, pages=pages)

    return [(archive.ChainArchive, "lay_out", lay_out)]


MUTATIONS: dict[str, Mutation] = {
    "resume-durable": Mutation(
        "after a reconnect, what a slave has in memory does not count as flushed",
        _resumed_tail_is_durable,
        ("I12", *LOSS),
        "broken-links",
    ),
    "reserved-by-one": Mutation(
        "a reservation counts only when every eligible member has confirmed it to this server",
        _own_disk_is_common,
        ("I9", "I11"),
        "servers-fall",
    ),
    "older-server": Mutation(
        "a control record of an older server is refused, also after a restart",
        _older_server_counts,
        ("I9", "I11"),
        "late-words",
    ),
    "refusals-stay": Mutation(
        "a member that restarts refuses the servers before",
        _refusals_end_at_restart,
        ("SERVER", "I9", "K2", "K3"),
        "keyed-words",
    ),
    "eligible-stay": Mutation(
        "only members that hold a segment whole are eligible at its seal", _seal_keeps_eligible, ("I14",), "restarts"
    ),
    "lease-from-receipt": Mutation(
        "the lease counts from the sending of the heartbeat", _lease_from_receipt, ("SERVER",), "slow-links"
    ),
    "no-second-look": Mutation(
        "the server checks its right again after the read", _no_second_look, ("SERVER",), "slow-reads"
    ),
    "eligible-at-once": Mutation(
        "a member is listed as eligible only when it has the control records",
        _listed_at_once,
        ("I9", "I11"),
        "servers-fall",
    ),
    "unreachable-is-gone": Mutation(
        "an unreachable server does not count as ended", _unreachable_is_gone, ("SERVER",), "cut-short"
    ),
    "half-server": Mutation("a server holds the whole segment", _half_server, ("I14", *LOSS), "half-copies"),
    "old-pages-stay": Mutation(
        "a changed page is written together with the record",
        _pages_that_grow,
        ("I5", "I7", *LOSS),
        "long-chains",
        world="brokers",
        layer="runtime",
        batch_count=150,
    ),
}
"""By name."""

OVERLAPPING: dict[str, Mutation] = {
    "slave-keeps-run": Mutation("a slave opens only what this run prepared", _slave_keeps_its_run, LOSS, "prepared"),
    "any-session": Mutation(
        "messages of an older connection do not count", _messages_of_any_session, LOSS, "broken-links"
    ),
    "refused-unanswered": Mutation(
        "a control record that is refused is not answered",
        _refused_by_chain_alone,
        ("K1", "K2", "J1", "J2"),
        "keyed-words",
    ),
}
"""Rules whose absence shows nowhere, because another covers for each.

Why, and why their code stays, is told in docs/internals/planted-bugs.md.
"""
