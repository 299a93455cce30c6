"""The serving right: the one member that delivers a segment to consumers.

The right is in the chain record. A server delivers only while every other eligible member has answered a heartbeat
that the server sent less than a lease ago; whoever wants the right stops answering first, and waits until the last
answer has run out. Order and durability do not rest on this: it keeps two servers from delivering at once.
"""

from __future__ import annotations

from collections.abc import Iterable

from seriatim_api.ids import MemberId, PartitionId

from ..state.broker import BrokerState
from ..state.consumers import Right
from ..state.partition import Partition
from ..values.chain import Chain, Segment, SegmentState, change_server, remove_eligible
from ..values.kinds import TimerKind, WriteOwner
from ..values.messages import TakeOver
from ..values.segments import Changes
from ..values.states import drop, put
from . import disks, updates


def confirmed(partition: Partition, no: int) -> bool:
    """Whether the right to serve the segment was given in this run."""
    held = partition.rights.get(no)
    return held is not None and held.confirmed


def joining(partition: Partition, no: int) -> tuple[MemberId, ...]:
    """The members that are being given the control records of the segment."""
    held = partition.rights.get(no)
    return tuple(held.joining) if held is not None else ()


def stop_joining(partition: Partition, no: int, member: MemberId) -> None:
    """The member must ask again for the control records of the segment."""
    held = partition.rights[no]
    held.joining = drop(held.joining, member)


def may_deliver(broker: BrokerState, partition: Partition, no: int) -> bool:
    """Whether this member may deliver from the segment at this moment."""
    right = partition.rights.get(no)
    if right is None or not right.confirmed or broker.now.mono_us < right.from_us:
        return False
    return not silent_members(broker, partition, no, broker.config.serve_lease_us)


def silent_members(broker: BrokerState, partition: Partition, no: int, for_us: int) -> list[MemberId]:
    """The other eligible members that did not answer a heartbeat sent within the last `for_us`, or refuse to.

    Whom this member's own transaction may have listed counts as eligible. Without it (SERVER): (1) the server lists a
    member, and the answer to its transaction does not come; (2) it knows an older record, in which it is the only
    eligible one, and delivers alone; (3) the listed member finds it silent, takes over, and delivers as well.
    """
    assert partition.chain is not None
    segment = partition.chain.segment(no)
    assert segment is not None
    silent = []
    held = partition.rights.get(no)
    listing = held.listing if held is not None else ()
    for member in dict.fromkeys((*segment.eligible, *listing)):
        if member == broker.member:
            continue
        link = broker.links.by_broker.get(member.broker)
        answered = link is not None and link.member == member and link.answered_us > broker.now.mono_us - for_us
        if link is None or not answered or (partition.id, no) in link.refused_by:
            silent.append(member)
    return silent


def unfit_members(broker: BrokerState, partition: Partition, no: int) -> list[MemberId]:
    """The other eligible members that control records must not wait for: silent for too long, or their disk hangs."""
    unfit = silent_members(broker, partition, no, broker.config.silence_us)
    segment = partition.chain.segment(no) if partition.chain is not None else None
    assert segment is not None
    others = [member for member in segment.eligible if member != broker.member]
    return unfit + [member for member in others if member not in unfit and disks.is_hung(broker, member)]


def seek(broker: BrokerState, partition: Partition, no: int) -> None:
    """Somebody wants deliveries and they may not happen: do what is missing, and look again soon."""
    right = partition.rights.get(no)
    chain = partition.chain
    if right is None or chain is None:
        return
    now = broker.now.mono_us
    if not right.confirmed:
        if not partition.is_writing(WriteOwner.RIGHT, no) and not partition.write_wait_us(broker):
            partition.write_chain(broker, WriteOwner.RIGHT, change_server(chain, no, broker.member, ()), no)
        return
    if now < right.from_us:
        broker.poll(right.from_us - now, TimerKind.PUMP, partition.id, no)
        return
    segment = chain.segment(no)
    assert segment is not None
    silent = unfit_members(broker, partition, no)
    may_write = not partition.is_writing(WriteOwner.RIGHT, no) and not partition.write_wait_us(broker)
    if silent and segment.state is SegmentState.SEALED and may_write:
        partition.write_chain(broker, WriteOwner.RIGHT, remove_eligible(chain, no, silent), no)
    broker.poll(broker.config.heartbeat_us // 10, TimerKind.PUMP, partition.id, no)


def take_over(broker: BrokerState, partition: Partition, no: int, server_epoch: int) -> None:
    """The server is said to be silent: look, and take the right if this member may and the server is."""
    chain = partition.chain
    segment = chain.segment(no) if chain is not None else None
    if chain is None or segment is None or segment.server_epoch > server_epoch or segment.server == broker.member:
        return
    log = partition.logs.get(no)
    if log is None or segment.state is not SegmentState.SEALED or partition.is_writing(WriteOwner.RIGHT, no):
        return  # an unsettled segment keeps its server: whoever settles it decides
    if partition.write_wait_us(broker):
        return  # the old server must not be refused for nothing: who complained asks again
    if not log.is_whole or disks.is_hung(broker, broker.member):
        return
    if not _is_silent(broker, segment.server):
        return
    if broker.member not in segment.eligible and not _nobody_eligible_lives(broker, segment):
        return
    refuse(broker, partition, no, segment.server)
    silent = [member for member in segment.eligible if member != broker.member and _is_silent(broker, member)]
    if segment.server not in silent:
        silent.append(segment.server)
    partition.write_chain(broker, WriteOwner.RIGHT, change_server(chain, no, broker.member, silent), no)


def want_another(broker: BrokerState, partition: Partition, segment: Segment) -> None:
    """The server of a sealed segment does not answer: take the right, and ask all that have the segment to take it.

    Each looks by itself whether the server is silent, so a question too many moves nothing.
    """
    take_over(broker, partition, segment.no, segment.server_epoch)
    for member in dict.fromkeys((*segment.eligible, *segment.members)):
        if member not in (broker.member, segment.server):
            broker.send(member, TakeOver(partition.id, segment.no, segment.server_epoch))


def _is_silent(broker: BrokerState, member: MemberId) -> bool:
    link = broker.links.by_broker.get(member.broker)
    if link is None or link.member != member:
        broker.connect(member.broker)
        return broker.is_gone(member)
    is_unheard = not link.up or link.answered_us < broker.now.mono_us - broker.config.silence_us
    return is_unheard or disks.is_hung(broker, member)


def offer(broker: BrokerState, partition: Partition, no: int) -> None:
    """This member's disk hangs, so it cannot serve: ask the other eligible members to take the right."""
    segment = partition.chain.segment(no) if partition.chain is not None else None
    if segment is not None and segment.state is SegmentState.SEALED and segment.server == broker.member:
        for member in segment.eligible:
            if member != broker.member:
                broker.send(member, TakeOver(partition.id, no, segment.server_epoch))


def _nobody_eligible_lives(broker: BrokerState, segment: Segment) -> bool:
    """A member that is not eligible serves only after the certified end of every eligible one's last run."""
    return all(_has_ended(broker, member) for member in segment.eligible)


def _has_ended(broker: BrokerState, member: MemberId) -> bool:
    if broker.directory.is_replaced(member):
        return member in broker.directory.ended  # whoever gave its slot away certified its last run
    link = broker.links.by_broker.get(member.broker)
    linked_run = link.run if link is not None and link.member == member else 0
    run = max(linked_run, broker.directory.runs.get(member, 0))
    return run > 0 and broker.directory.ended.get(member, 0) >= run


def _has_certainly_ended(broker: BrokerState, member: MemberId) -> bool:
    """Whether the member's last run has ended, and did not answer this broker when its certificate came.

    A run that was connected at that moment may live, and deliver until its last answered heartbeats have run out.
    """
    link = broker.links.by_broker.get(member.broker)
    wait_us = broker.config.serve_lease_us + broker.config.serve_margin_us
    was_cut = link is not None and broker.now.mono_us < link.cut_us + wait_us
    return _has_ended(broker, member) and not was_cut


# ---- refusing the old server ----------------------------------------------------------------------------


def refuse_server(broker: BrokerState, partition: Partition, no: int) -> None:
    """This member was fenced, so another server may be named: the present one gets no more answers for the segment."""
    segment = partition.chain.segment(no) if partition.chain is not None else None
    if segment is None:
        refuse_others(broker, partition, no, partition.logs[no].record.members)  # who serves is not known yet
    elif segment.server != broker.member:
        refuse(broker, partition, no, segment.server)


def refuse(broker: BrokerState, partition: Partition, no: int, server: MemberId) -> None:
    """From now on heartbeats of that server are answered without this segment."""
    broker.links.refusals.setdefault(server.broker, {}).setdefault(partition.id, {})[no] = (0, 0)


def refused_to(broker: BrokerState, name: str) -> tuple[tuple[PartitionId, int], ...]:
    """The segments for which a broker's heartbeats are not answered: until it surely knows the newer record."""
    refusals = broker.links.refusals.get(name)
    return tuple((partition, no) for partition, told in refusals.items() for no in told) if refusals else ()


def refuse_others(broker: BrokerState, partition: Partition, no: int, members: Iterable[MemberId]) -> None:
    """Whoever else of these may think that it serves the segment gets no more answers for it."""
    for member in members:
        if member != broker.member:
            refuse(broker, partition, no, member)


def _tell_refused(broker: BrokerState, partition: Partition, name: str) -> None:
    """Send a refused server the newer record, once a session; it is refused until it surely has it."""
    refusals = broker.links.refusals.get(name, {}).get(partition.id)
    chain = partition.chain
    link = broker.links.by_broker.get(name)
    if not refusals or chain is None or link is None or not link.up:
        return
    for no, (session, _) in list(refusals.items()):
        segment = chain.segment(no)
        decided = segment is None or segment.state is not SegmentState.OPEN
        if decided and session != link.session:
            updates.tell(broker, partition, name, no)
            refusals[no] = (link.session, broker.now.mono_us)


def forget_told(broker: BrokerState, name: str, session: int, sent_us: int) -> None:
    """A heartbeat of that session, sent after the newer record on the same ordered stream, was answered: it knows."""
    refusals = broker.links.refusals.get(name)
    for partition in list(refusals or ()):
        assert refusals is not None
        told = refusals[partition]
        for no in [no for no, (told_in, told_us) in told.items() if told_in == session and told_us < sent_us]:
            del told[no]
        if not told:
            del refusals[partition]


def on_link_up(broker: BrokerState, partition: Partition, member: MemberId) -> None:
    """A refused server can be told at last."""
    _tell_refused(broker, partition, member.broker)


# ---- the record changes ---------------------------------------------------------------------------------


def on_learned(broker: BrokerState, partition: Partition, known: Chain | None, chain: Chain, changes: Changes) -> None:
    """Take up rights that the record gives, let go of those that it took away."""
    for segment in changes.changed:
        no = segment.no
        if segment.server != broker.member:
            partition.rights = drop(partition.rights, no)
        elif no not in partition.rights:
            partition.rights = put(partition.rights, no, _new_right(broker, partition, known, chain, segment))
        elif not partition.rights[no].confirmed and known is not None:
            old = known.segment(no)
            renewed = old is not None and old.server_epoch < segment.server_epoch
            if old is not None and renewed and _was_given_in_this_run(broker, partition, segment):
                # taken anew: what this member promised in its last run is forgotten, so it refuses all others first
                held = partition.rights[no]
                held.confirmed = True
                held.from_us = broker.now.mono_us + broker.config.serve_lease_us + broker.config.serve_margin_us
                refuse_others(broker, partition, no, (*segment.members, *old.eligible))
        right = partition.rights.get(no)
        if right is not None:
            right.blind = segment.records_lost
        if right is not None and right.joining:
            for member in segment.eligible:
                right.joining = drop(right.joining, member)
    for right in partition.rights.values():  # what was sent compares an older record: it is done, or never will be
        for member in right.listing:
            if not broker.is_linked(member):
                right.joining = drop(right.joining, member)
        right.listing = ()
    for no in changes.gone:
        partition.rights = drop(partition.rights, no)
    for name in list(broker.links.refusals):
        _tell_refused(broker, partition, name)


def give_up(partition: Partition, told: Chain) -> None:
    """Serve no more what newer segments of a record say that another member serves.

    The record itself cannot be taken up, because older parts of it are not known here. Without this (I4): (1) the new
    server sends what changed to the old one, and waits for a heartbeat that the old one answers after it; (2) the old
    one answers, and has only asked the coordinator so far; (3) both deliver.
    """
    for segment in told.segments:
        known = partition.chain.segment(segment.no) if partition.chain is not None else None
        if known is not None and known.server_epoch < segment.server_epoch and known.server != segment.server:
            partition.rights = drop(partition.rights, segment.no)


def _new_right(broker: BrokerState, partition: Partition, known: Chain | None, chain: Chain, segment: Segment) -> Right:
    log = partition.logs.get(segment.no)
    if segment.state is SegmentState.OPEN and log is not None and log.unbroken:
        return Right(confirmed=True, from_us=0, old_server=None)
    blind = segment.records_lost
    if not _was_given_in_this_run(broker, partition, segment):
        return Right(confirmed=False, from_us=0, old_server=None, blind=blind)
    old_server = None  # whose right it was before, if no record between was missed: its certified end saves the wait
    if known is not None and chain.epoch == known.epoch + 1:
        old = known.segment(segment.no)
        old_server = old.server if old is not None else None
    refuse_others(broker, partition, segment.no, segment.members)
    from_us = broker.now.mono_us + broker.config.serve_lease_us + broker.config.serve_margin_us
    if old_server is not None and _has_certainly_ended(broker, old_server):
        from_us = 0
    return Right(confirmed=True, from_us=from_us, old_server=old_server, blind=blind)


def _was_given_in_this_run(broker: BrokerState, partition: Partition, segment: Segment) -> bool:
    """Whether the right is surely newer than this run; else it is taken anew, if anybody wants deliveries.

    Without it (I4): (1) this member served the segment in its last run, and gave tokens under `server_epoch`; (2) it
    starts again, and the first word of the chain is a peer's record from before that; (3) the newer record comes, and
    looks as if it gave the right just now; (4) the counter of tokens begins anew, so a token of the last run is valid
    again. Only a record that the coordinator itself gave to this run tells what is newer; or that this run prepared the
    segment, because then nobody served it before.
    """
    chosen = partition.chosen_preparation(segment)
    if chosen is not None and chosen.run == broker.run:
        return True
    return partition.read_epoch is not None and segment.server_epoch > partition.read_epoch


def on_certificate(broker: BrokerState, partition: Partition, member: MemberId) -> None:
    """A server that is certainly gone delivers nothing: its successor need not wait."""
    for no, right in partition.rights.items():
        if right.old_server == member and _has_certainly_ended(broker, member) and right.from_us > broker.now.mono_us:
            right.from_us = broker.now.mono_us
            broker.poll(0, TimerKind.PUMP, partition.id, no)
