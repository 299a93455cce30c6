"""The serving right: the one member that delivers a segment to consumers.

The right is in the chain record. A server delivers only while every other eligible member has answered a heartbeat
that the server sent less than a lease ago; whoever wants the right stops answering first, and waits until the last
answer has run out. Order and durability do not rest on this: it keeps two servers from delivering at once.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from seriatim_api.ids import MemberId, PartitionId

from .chain import Chain, Segment, SegmentState, change_server, remove_eligible
from .messages import ChainUpdate
from .outbox import Outbox
from .partition import Partition
from .state import NOTHING, State, drop, put


class Right(State):
    """The right of this member to serve one segment.

    `confirmed`: it was given in this run (an earlier run's tokens must not be used again). Nothing is delivered before
    `from_us`. `blind`: nobody who had the control records was left at some time, so whatever stands above this
    member's own cursor may be a repeat; `renewed` says which epoch each group must reach for it. `joining`: members
    that hold the whole segment and are being given the control records.
    """

    __slots__ = ("blind", "confirmed", "from_us", "joining", "old_server", "renewed")

    def __init__(self, confirmed: bool, from_us: int, old_server: MemberId | None, blind: bool = False) -> None:
        self.blind = blind
        self.renewed: Mapping[str, int] = NOTHING
        self.confirmed = confirmed
        self.from_us = from_us
        self.old_server = old_server
        self.joining: Mapping[MemberId, int] = NOTHING  # -> serial of the cursor sync that it must confirm


def confirmed(partition: Partition, no: int) -> bool:
    """Whether the right to serve the segment was given in this run."""
    held = partition.rights.get(no)
    return held is not None and held.confirmed


def may_deliver(outbox: Outbox, partition: Partition, no: int) -> bool:
    """Whether this member may deliver from the segment at this moment."""
    right = partition.rights.get(no)
    if right is None or not right.confirmed or outbox.now.mono_us < right.from_us:
        return False
    return not silent_members(outbox, partition, no, outbox.config.serve_lease_us)


def silent_members(outbox: Outbox, partition: Partition, no: int, for_us: int) -> list[MemberId]:
    """The other eligible members that did not answer a heartbeat sent within the last `for_us`, or refuse to."""
    assert partition.chain is not None
    segment = partition.chain.segment(no)
    assert segment is not None
    silent = []
    for member in segment.eligible:
        if member == outbox.member:
            continue
        link = outbox.links.get(member.broker)
        answered = link is not None and link.member == member and link.answered_us > outbox.now.mono_us - for_us
        if link is None or not answered or (partition.id, no) in link.refused_by:
            silent.append(member)
    return silent


def seek(outbox: Outbox, partition: Partition, no: int) -> None:
    """Somebody wants deliveries and they may not happen: do what is missing, and look again soon."""
    right = partition.rights.get(no)
    chain = partition.chain
    if right is None or chain is None:
        return
    now = outbox.now.mono_us
    if not right.confirmed:
        if not partition.is_writing("right", no):
            partition.write_chain(outbox, "right", change_server(chain, no, outbox.member, ()), no)
        return
    if now < right.from_us:
        outbox.poll(right.from_us - now, "pump", partition.id, no)
        return
    segment = chain.segment(no)
    assert segment is not None
    silent = silent_members(outbox, partition, no, outbox.config.silence_us)
    if silent and segment.state is SegmentState.SEALED and not partition.is_writing("right", no):
        partition.write_chain(outbox, "right", remove_eligible(chain, no, silent), no)
    outbox.poll(outbox.config.heartbeat_us // 10, "pump", partition.id, no)


def take_over(outbox: Outbox, partition: Partition, no: int, server_epoch: int) -> None:
    """The server is said to be silent: look, and take the right if this member may and the server is."""
    chain = partition.chain
    segment = chain.segment(no) if chain is not None else None
    if chain is None or segment is None or segment.server_epoch > server_epoch or segment.server == outbox.member:
        return
    log = partition.logs.get(no)
    if log is None or segment.state is not SegmentState.SEALED or partition.is_writing("right", no):
        return  # an unsettled segment keeps its server: whoever settles it decides
    if not log.is_whole:
        return
    if not _is_silent(outbox, segment.server):
        return
    if outbox.member not in segment.eligible and not _nobody_eligible_lives(outbox, segment):
        return
    refuse(outbox, partition, no, segment.server)
    silent = [member for member in segment.eligible if member != outbox.member and _is_silent(outbox, member)]
    if segment.server not in silent:
        silent.append(segment.server)
    partition.write_chain(outbox, "right", change_server(chain, no, outbox.member, silent), no)


def _is_silent(outbox: Outbox, member: MemberId) -> bool:
    link = outbox.links.get(member.broker)
    if link is None or link.member != member:
        outbox.connect(member.broker)
        return outbox.is_gone(member)
    return not link.up or link.answered_us < outbox.now.mono_us - outbox.config.silence_us


def _nobody_eligible_lives(outbox: Outbox, segment: Segment) -> bool:
    """A member that is not eligible serves only after the certified end of every eligible one's last run."""
    return all(_has_ended(outbox, member) for member in segment.eligible)


def _has_ended(outbox: Outbox, member: MemberId) -> bool:
    if outbox.is_replaced(member):
        return member in outbox.ended  # whoever gave its slot away certified its last run
    link = outbox.links.get(member.broker)
    linked_run = link.run if link is not None and link.member == member else 0
    run = max(linked_run, outbox.runs.get(member, 0))
    return run > 0 and outbox.ended.get(member, 0) >= run


# ---- refusing the old server ----------------------------------------------------------------------------


def refuse_server(outbox: Outbox, partition: Partition, no: int) -> None:
    """This member was fenced, so another server may be named: the present one gets no more answers for the segment."""
    segment = partition.chain.segment(no) if partition.chain is not None else None
    if segment is None:
        refuse_others(outbox, partition, no, partition.logs[no].record.members)  # who serves is not known yet
    elif segment.server != outbox.member:
        refuse(outbox, partition, no, segment.server)


def refuse(outbox: Outbox, partition: Partition, no: int, server: MemberId) -> None:
    """From now on heartbeats of that server are answered without this segment."""
    outbox.refusals.setdefault(server.broker, {}).setdefault(partition.id, {})[no] = (0, 0)


def refused_to(outbox: Outbox, broker: str) -> tuple[tuple[PartitionId, int], ...]:
    """The segments for which a broker's heartbeats are not answered: until it surely knows the newer record."""
    refusals = outbox.refusals.get(broker)
    return tuple((partition, no) for partition, told in refusals.items() for no in told) if refusals else ()


def refuse_others(outbox: Outbox, partition: Partition, no: int, members: Iterable[MemberId]) -> None:
    """Whoever else of these may think that it serves the segment gets no more answers for it."""
    for member in members:
        if member != outbox.member:
            refuse(outbox, partition, no, member)


def _tell_refused(outbox: Outbox, partition: Partition, broker: str) -> None:
    """Send a refused server the newer record, once a session; it is refused until it surely has it."""
    refusals = outbox.refusals.get(broker, {}).get(partition.id)
    chain = partition.chain
    link = outbox.links.get(broker)
    if not refusals or chain is None or link is None or not link.up:
        return
    for no, (session, _) in list(refusals.items()):
        segment = chain.segment(no)
        decided = segment is None or segment.state is not SegmentState.OPEN
        if decided and session != link.session:
            outbox.send_broker(broker, ChainUpdate(chain, partition.revision))
            refusals[no] = (link.session, outbox.now.mono_us)


def forget_told(outbox: Outbox, broker: str, session: int, sent_us: int) -> None:
    """A heartbeat of that session, sent after the newer record on the same ordered stream, was answered: it knows."""
    refusals = outbox.refusals.get(broker)
    for partition in list(refusals or ()):
        assert refusals is not None
        told = refusals[partition]
        for no in [no for no, (told_in, told_us) in told.items() if told_in == session and told_us < sent_us]:
            del told[no]
        if not told:
            del refusals[partition]


def on_link_up(outbox: Outbox, partition: Partition, member: MemberId) -> None:
    """A refused server can be told at last."""
    _tell_refused(outbox, partition, member.broker)


# ---- the record changes ---------------------------------------------------------------------------------


def on_learned(outbox: Outbox, partition: Partition, known: Chain | None, chain: Chain) -> None:
    """Take up rights that the record gives, let go of those that it took away."""
    for segment in chain.segments:
        no = segment.no
        if segment.server != outbox.member:
            partition.rights = drop(partition.rights, no)
        elif no not in partition.rights:
            partition.rights = put(partition.rights, no, _new_right(outbox, partition, known, segment))
        elif not partition.rights[no].confirmed and known is not None:
            old = known.segment(no)
            if old is not None and old.server_epoch < segment.server_epoch:
                # taken anew: what this member promised in its last run is forgotten, so it refuses all others first
                held = partition.rights[no]
                held.confirmed = True
                held.from_us = outbox.now.mono_us + outbox.config.serve_lease_us + outbox.config.serve_margin_us
                refuse_others(outbox, partition, no, (*segment.members, *old.eligible))
        right = partition.rights.get(no)
        if right is not None:
            right.blind = segment.records_lost
        if right is not None and right.joining:
            for member in segment.eligible:
                right.joining = drop(right.joining, member)
    for no in [no for no in partition.rights if chain.segment(no) is None]:
        partition.rights = drop(partition.rights, no)
    for broker in list(outbox.refusals):
        _tell_refused(outbox, partition, broker)


def _new_right(outbox: Outbox, partition: Partition, known: Chain | None, segment: Segment) -> Right:
    log = partition.logs.get(segment.no)
    if segment.state is SegmentState.OPEN and log is not None and log.unbroken:
        return Right(confirmed=True, from_us=0, old_server=None)
    blind = segment.records_lost
    wait_us = outbox.config.serve_lease_us + outbox.config.serve_margin_us
    if known is None:
        return Right(confirmed=False, from_us=0, old_server=None, blind=blind)
    old = known.segment(segment.no)
    old_server = old.server if old is not None else segment.master
    if old_server == outbox.member:
        return Right(confirmed=True, from_us=0, old_server=None, blind=blind)
    refuse_others(outbox, partition, segment.no, segment.members)
    from_us = outbox.now.mono_us + wait_us
    if old_server is not None and _has_ended(outbox, old_server):
        from_us = 0
    return Right(confirmed=True, from_us=from_us, old_server=old_server, blind=blind)


def on_certificate(outbox: Outbox, partition: Partition, member: MemberId) -> None:
    """A server that is certainly gone delivers nothing: its successor need not wait."""
    for no, right in partition.rights.items():
        if right.old_server == member and _has_ended(outbox, member) and right.from_us > outbox.now.mono_us:
            right.from_us = outbox.now.mono_us
            outbox.poll(0, "pump", partition.id, no)
