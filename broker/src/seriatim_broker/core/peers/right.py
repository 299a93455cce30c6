"""The serving right: the one member that delivers a segment to consumers.

The chain record names the server. The server delivers only while every other eligible member has answered a heartbeat
that the server sent less than `serve_lease_us` (300 ms) ago. A member that wants the right first stops answering for
the segment, and then waits until its last answer cannot count any more. So two servers never deliver at once. Order in
the log and durability do not depend on this.
"""

from __future__ import annotations

from collections.abc import Iterable

from seriatim_api.ids import MemberId, PartitionId

from ..state.broker import BrokerState
from ..state.consumers import Right
from ..state.partition import Partition
from ..values.chain import Chain, change_server, may_join, merged, remove_eligible
from ..values.kinds import TimerKind, WriteOwner
from ..values.messages import ServerHeard, TakeOver
from ..values.segment import Segment, SegmentState
from ..values.segments import Changes
from ..values.states import NOTHING, drop, put
from . import disks, updates


def confirmed(partition: Partition, no: int) -> bool:
    """Whether the right to serve the segment was given to this member run."""
    held = partition.rights.get(no)
    return held is not None and held.confirmed


def joining(partition: Partition, no: int) -> tuple[MemberId, ...]:
    """The members that are receiving the control records of the segment, to become eligible."""
    held = partition.rights.get(no)
    return tuple(held.joining) if held is not None else ()


def stop_joining(partition: Partition, no: int, member: MemberId) -> None:
    """Stop giving the member the control records of the segment: it must ask again."""
    held = partition.rights[no]
    held.joining = drop(held.joining, member)


def has_right(broker: BrokerState, partition: Partition, segment: Segment | None, *, seeks: bool = True) -> bool:
    """Whether this member may deliver from the segment at this moment. If not, it seeks the right.

    Everything that gives messages to consumers, fires delayed ones, or says what was done with them, asks here first.

    Args:
        broker: This broker.
        partition: The partition.
        segment: The segment, as the newest chain record has it; None: the record does not have it.
        seeks: False: nothing waits for the right, so it is not sought.
    """
    # Rule `serve-lease` (SERVER): no other eligible member is silent for longer than the lease. Without it:
    #   1. Server Am is cut off from As, but not from its consumer c1.
    #   2. As takes the right over, and delivers a to consumer c2.
    #   3. Am delivers a to c1, as a first delivery (I9).
    if segment is None:
        return False
    right = partition.rights.get(segment.no)
    if right is None or not right.confirmed or broker.now.mono_us < right.from_us:
        may_deliver = False
    else:
        may_deliver = not silent_members(broker, partition, segment, broker.config.serve_lease_us)
    if seeks and not may_deliver:
        seek(broker, partition, segment.no)
    return may_deliver


def silent_members(broker: BrokerState, partition: Partition, segment: Segment, for_us: int) -> list[MemberId]:
    """The other eligible members that answered no heartbeat that was sent within the last `for_us`, or that refuse to.

    Members that this member's own transaction may have listed count as eligible. Without it (SERVER):
      1. The server lists a member as eligible. Its transaction gets no answer.
      2. The server knows an older record, in which it is the only eligible member, and delivers alone.
      3. The listed member finds the server silent, takes the right over, and delivers as well.
    """
    silent = []
    held = partition.rights.get(segment.no)
    listing = held.listing if held is not None else ()
    for member in dict.fromkeys((*segment.eligible, *listing)):
        if member == broker.member:
            continue
        link = broker.links.by_broker.get(member.broker)
        answered = link is not None and link.member == member and link.answered_us > broker.now.mono_us - for_us
        if link is None or not answered or (partition.id, segment.no) in link.refused_by:
            silent.append(member)
    return silent


def unfit_members(broker: BrokerState, partition: Partition, no: int) -> list[MemberId]:
    """The other eligible members for which control records do not wait: silent for `silence_us`, or disk hung."""
    segment = partition.chain.segment(no) if partition.chain is not None else None
    assert segment is not None
    unfit = silent_members(broker, partition, segment, broker.config.silence_us)
    others = [member for member in segment.eligible if member != broker.member]
    return unfit + [member for member in others if member not in unfit and disks.is_hung(broker, member)]


def seek(broker: BrokerState, partition: Partition, no: int) -> None:
    """A consumer group waits for deliveries that this server may not make now: take the missing step.

    The step is to take the right again, to wait until it begins, to ask for an answer to a heartbeat, or to remove
    silent members from `eligible`. The server looks again at `right.from_us`, or after a tenth of `heartbeat_us`.
    """
    right = partition.rights.get(no)
    chain = partition.chain
    if right is None or chain is None:
        return
    now = broker.now.mono_us
    if not right.confirmed:
        segment = chain.segment(no)
        assert segment is not None
        _want(broker, partition, segment)
        take_wanted(broker, partition)
        return
    if now < right.from_us:
        broker.poll(right.from_us - now, TimerKind.PUMP, partition.id, no)
        return
    for member in right.listing:
        broker.beat(member.broker)  # it may be unwatched, and then the next heartbeat would leave up to 1 s later
    segment = chain.segment(no)
    assert segment is not None
    silent = unfit_members(broker, partition, no)
    may_write = not partition.is_writing(WriteOwner.RIGHT, no) and not partition.write_wait_us(broker)
    if silent and segment.state is SegmentState.SEALED and may_write:
        partition.write_chain(broker, WriteOwner.RIGHT, remove_eligible(chain, no, silent), no)
    broker.poll(broker.config.heartbeat_us // 10, TimerKind.PUMP, partition.id, no)


def take_over(broker: BrokerState, partition: Partition, no: int, server_epoch: int) -> None:
    """Another broker or a client says that the server is silent: take the right if that is so, and this member may.

    Args:
        broker: This broker.
        partition: The partition of the segment.
        no: The number of the segment.
        server_epoch: The server epoch of the server that is said to be silent. If the record names a newer one, this
            does nothing.
    """
    want(broker, partition, no, server_epoch)
    take_wanted(broker, partition)


def want(broker: BrokerState, partition: Partition, no: int, server_epoch: int) -> None:
    """Note that `take_wanted` is to take this right, if `take_over` would take it."""
    segment = partition.chain.segment(no) if partition.chain is not None else None
    if segment is None or segment.server_epoch > server_epoch or segment.server == broker.member:
        return
    if _may_take(broker, partition, segment):
        _want(broker, partition, segment)


def _want(broker: BrokerState, partition: Partition, segment: Segment) -> None:
    if not partition.write_wait_us(broker):  # otherwise the caller asks again
        partition.wanted_rights = put(partition.wanted_rights, segment.no, segment.server_epoch)


def take_wanted(broker: BrokerState, partition: Partition) -> None:
    """Take all rights that this member wants and may have, in one transaction."""
    chain = partition.chain
    if partition.write_wait_us(broker):
        partition.wanted_rights = NOTHING  # no transaction can be written, so no server must be refused now
    if not partition.wanted_rights or chain is None or not partition.may_amend(broker):
        return
    changes: dict[int, Chain] = {}
    for no, server_epoch in list(partition.wanted_rights.items()):
        if not may_join(changes, no, partition.pace.segments_max):
            continue
        partition.wanted_rights = drop(partition.wanted_rights, no)
        segment = chain.segment(no)
        if segment is None or segment.server_epoch > server_epoch:
            continue
        if segment.server == broker.member:
            held = partition.rights.get(no)
            if held is not None and not held.confirmed:
                changes[no] = change_server(chain, no, broker.member, ())
        elif _may_take(broker, partition, segment):
            refuse(broker, partition, no, segment.server)
            silent = [member for member in segment.eligible if member != broker.member and _is_silent(broker, member)]
            changes[no] = change_server(chain, no, broker.member, (*silent, segment.server))
    if changes:
        partition.write_chain(broker, WriteOwner.RIGHT, merged(chain, changes))


def _may_take(broker: BrokerState, partition: Partition, segment: Segment) -> bool:
    """Whether this member may take the right of another server, which is silent."""
    log = partition.logs.get(segment.no)
    if log is None or segment.state is not SegmentState.SEALED:
        return False  # an unsettled segment keeps its server until it is settled
    # Rule `half-server` (I14): only a member with the whole segment takes the right. Without it:
    #   1. Bm copies segment 2, and has half of it. The server Am becomes silent.
    #   2. Bm takes the right, and serves the first half.
    #   3. Consumers never get the second half, because the server of segment 2 does not have it (I1).
    if not log.is_in_sync or disks.is_hung(broker, broker.member):
        return False
    if not _is_silent(broker, segment.server):
        return False
    return broker.member in segment.eligible or _nobody_eligible_lives(broker, segment)


def want_another(broker: BrokerState, partition: Partition, segment: Segment, *, tell: bool = False) -> None:
    """The server of a sealed segment does not answer: take the right, or have another member take it.

    Each member checks by itself whether the server is silent, so an unnecessary question changes nothing. With `tell`,
    a member that has heard the server says so.
    """
    # Rule `server-unmissed` (I13): a member that needs the server asks for another one. Without it:
    #   1. The server of segment 2 is gone, and no consumer group reads segment 2 any more.
    #   2. Only a server lists a copy as eligible, and only a server reports the producer table.
    #   3. Segment 2 has one in-sync copy for ever, and a segment after it that needs its table is never delivered.
    take_over(broker, partition, segment.no, segment.server_epoch)
    for member in dict.fromkeys((*segment.eligible, *segment.members)):
        if member not in (broker.member, segment.server):
            sent_us = broker.now.mono_us if tell else None
            broker.send(member, TakeOver(partition.id, segment.no, segment.server_epoch, sent_us))


def on_take_over(broker: BrokerState, partition: Partition, sender: MemberId, message: TakeOver) -> None:
    """Another broker says that the server is silent: take the right, or say that this member has heard the server."""
    take_over(broker, partition, message.segment_no, message.server_epoch)
    segment = partition.chain.segment(message.segment_no) if partition.chain is not None else None
    if message.sent_us is None or segment is None or segment.server_epoch != message.server_epoch:
        return
    ask_whether_there(broker, segment.server)
    link = broker.links.by_broker.get(segment.server.broker)
    if link is not None and link.member == segment.server and not _is_silent(broker, segment.server):
        before_us = max(broker.now.mono_us - link.answered_us, 0)
        broker.send(sender, ServerHeard(partition.id, segment.no, segment.server_epoch, message.sent_us, before_us))


def ask_whether_there(broker: BrokerState, member: MemberId) -> None:
    """Send a member a heartbeat, or connect to its broker."""
    if broker.is_linked(member):
        broker.beat(member.broker)
    elif member != broker.member:
        broker.connect(member.broker)


def is_heard_since(broker: BrokerState, member: MemberId, at_us: int) -> bool:
    """Whether a member's disk works, and it has answered a heartbeat that this one sent at that time or later."""
    if disks.is_hung(broker, member):
        return False
    link = broker.links.by_broker.get(member.broker)
    is_there = link is not None and link.up and link.member == member and link.answered_us >= at_us
    return is_there or member == broker.member


def _is_silent(broker: BrokerState, member: MemberId) -> bool:
    link = broker.links.by_broker.get(member.broker)
    if link is None or link.member != member:
        broker.connect(member.broker)
        return broker.is_gone(member)
    is_unheard = not link.up or link.answered_us < broker.now.mono_us - broker.config.silence_us
    return is_unheard or disks.is_hung(broker, member)


def offer(broker: BrokerState, partition: Partition, no: int) -> None:
    """This member's disk hangs, so it cannot serve: ask the other eligible members to take the right over."""
    segment = partition.chain.segment(no) if partition.chain is not None else None
    if segment is not None and segment.state is SegmentState.SEALED and segment.server == broker.member:
        for member in segment.eligible:
            if member != broker.member:
                broker.send(member, TakeOver(partition.id, no, segment.server_epoch))


def _nobody_eligible_lives(broker: BrokerState, segment: Segment) -> bool:
    """Whether the last member run of every eligible member is certified to have ended.

    Only then may a member serve that is not eligible.
    """
    return all(_has_ended(broker, member) for member in segment.eligible)


def _has_ended(broker: BrokerState, member: MemberId) -> bool:
    """Whether the last member run of the member is certified to have ended."""
    # Rule `unreachable-is-gone` (SERVER): only a death certificate shows that a server has ended. Without it:
    #   1. The server Am is cut off, and keeps delivering within its lease.
    #   2. Bm, which is not eligible, cannot reach Am or any eligible member, and takes the right at once.
    #   3. Both deliver.
    if broker.directory.is_replaced(member):
        return member in broker.directory.ended  # the command that gave its slot away certified its last member run
    link = broker.links.by_broker.get(member.broker)
    linked_run = link.member_run if link is not None and link.member == member else 0
    run = max(linked_run, broker.directory.member_runs.get(member, 0))
    return run > 0 and broker.directory.ended.get(member, 0) >= run


def _has_certainly_ended(broker: BrokerState, member: MemberId) -> bool:
    """Whether the member's last member run has ended, and was not linked to this broker when its certificate came.

    A member run that was linked at that moment may be alive. It may deliver until the lease of its last answered
    heartbeats is over.
    """
    link = broker.links.by_broker.get(member.broker)
    wait_us = broker.config.serve_lease_us + broker.config.serve_margin_us
    was_cut = link is not None and broker.now.mono_us < link.cut_us + wait_us
    return _has_ended(broker, member) and not was_cut


# ---- refusing the old server ----------------------------------------------------------------------------


def refuse_server(broker: BrokerState, partition: Partition, no: int) -> None:
    """This member was fenced, so a switch may name another server: refuse the present one."""
    segment = partition.chain.segment(no) if partition.chain is not None else None
    if segment is None:
        refuse_others(broker, partition, no, partition.logs[no].record.members)  # the server is not known yet
    elif segment.server != broker.member:
        refuse(broker, partition, no, segment.server)


def refuse(broker: BrokerState, partition: Partition, no: int, server: MemberId) -> None:
    """From now on, answers to that server's heartbeats do not count for this segment."""
    broker.links.refusals.setdefault(server.broker, {}).setdefault(partition.id, {})[no] = (0, 0)


def refused_to(broker: BrokerState, name: str) -> tuple[tuple[PartitionId, int], ...]:
    """The segments for which a broker is refused, until it has surely read the newer record."""
    refusals = broker.links.refusals.get(name)
    return tuple((partition, no) for partition, told in refusals.items() for no in told) if refusals else ()


def refuse_others(broker: BrokerState, partition: Partition, no: int, members: Iterable[MemberId]) -> None:
    """Refuse each of these members except this one, because any of them may believe that it serves the segment."""
    for member in members:
        if member != broker.member:
            refuse(broker, partition, no, member)


def refuse_at_start(broker: BrokerState, partition: Partition) -> None:
    """Refuse each member that may believe that it serves a segment, and that the record on this disk does not name.

    Rule `refusals-stay` (SERVER, K2): a member that restarts refuses the servers before, until it has sent
    them the newer record. Without it:
      1. A serves segment 1 and is cut off: also from the coordinator. B takes the right over, and refuses A.
      2. B confirms what consumers acknowledge, and starts again. It has forgotten that it refuses A, and cannot read
         the coordinator yet.
      3. A reaches B first. B answers A's heartbeats, so A delivers again, as if nothing had happened: messages that
         are confirmed, and under lower tokens.
    """
    chain = partition.decided
    if chain is None:
        return
    for no in partition.logs:
        segment = chain.segment(no)
        if segment is not None and _is_decided(chain, no):
            others = [member for member in (*segment.members, *segment.eligible) if member != segment.server]
            refuse_others(broker, partition, no, others)


def _tell_refused(broker: BrokerState, partition: Partition, name: str) -> None:
    """Send a refused server the newer record, once in each session of the link."""
    refusals = broker.links.refusals.get(name, {}).get(partition.id)
    chain = partition.decided
    link = broker.links.by_broker.get(name)
    if not refusals or chain is None or link is None or not link.up:
        return
    untold = [no for no, (session, _) in refusals.items() if session != link.session and _is_decided(chain, no)]
    if untold:
        updates.tell(broker, partition, name, *untold)
        refusals.update(dict.fromkeys(untold, (link.session, broker.now.mono_us)))


def _is_decided(chain: Chain, no: int) -> bool:
    """Whether the segment is not open any more, so that the record says which member serves it now."""
    segment = chain.segment(no)
    return segment is None or segment.state is not SegmentState.OPEN


def forget_told(broker: BrokerState, name: str, session: int, sent_us: int) -> None:
    """A broker answered a heartbeat that was sent after the newer record on the same stream: refuse it no longer."""
    refusals = broker.links.refusals.get(name)
    for partition in list(refusals or ()):
        assert refusals is not None
        told = refusals[partition]
        for no in [no for no, (told_in, told_us) in told.items() if told_in == session and told_us < sent_us]:
            del told[no]
        if not told:
            del refusals[partition]


def on_link_up(broker: BrokerState, partition: Partition, member: MemberId) -> None:
    """A broker is linked again: if it is refused, send it the newer record."""
    _tell_refused(broker, partition, member.broker)


# ---- the record changes ---------------------------------------------------------------------------------


def on_learned(broker: BrokerState, partition: Partition, known: Chain | None, chain: Chain, changes: Changes) -> None:
    """A newer record is known: take up the rights that it gives to this member, drop those that it took away."""
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
                # The right was taken again. This member has forgotten which servers its last member run answered, so it
                # refuses all of them first.
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
    for right in partition.rights.values():  # transactions that compared an older record have been decided by now
        for member in right.listing:
            if not broker.is_linked(member):
                right.joining = drop(right.joining, member)
        right.listing = ()
    for no in changes.gone:
        partition.rights = drop(partition.rights, no)
    for name in list(broker.links.refusals):
        _tell_refused(broker, partition, name)


def give_up(partition: Partition, told: Chain) -> None:
    """Stop serving the segments that another member serves, as these changes of the chain record say.

    Called if the changes cannot be applied, because this member does not know the record that they continue.
    """
    # Rule `changes-end-a-right` (SERVER). Without it:
    #   1. The new server sends the old one what changed, and waits until it has answered a later heartbeat.
    #   2. The old server cannot apply the changes and asks the coordinator. It answers the heartbeat meanwhile.
    #   3. The new server refuses the old one no longer, and both deliver (I4).
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
    old_server = None  # the server before, if no record between was missed: its certified end makes the wait needless
    if known is not None and chain.epoch == known.epoch + 1:
        old = known.segment(segment.no)
        old_server = old.server if old is not None else None
    refuse_others(broker, partition, segment.no, segment.members)
    from_us = broker.now.mono_us + broker.config.serve_lease_us + broker.config.serve_margin_us
    if old_server is not None and _has_certainly_ended(broker, old_server):
        from_us = 0
    return Right(confirmed=True, from_us=from_us, old_server=old_server, blind=blind)


def _was_given_in_this_run(broker: BrokerState, partition: Partition, segment: Segment) -> bool:
    """Whether the right was surely given to this member run; if not, it is taken again when a consumer needs it.

    That is sure in two cases: this member run prepared the segment, so no member served it before; or the right is
    newer than the first record that this member run read in the coordinator. Without it (I4):
      1. This member served the segment in its last member run, and gave tokens under a server epoch.
      2. It starts again. Another member reports it an older record first.
      3. The newer record arrives, and looks as if it gave the right to this member run.
      4. The counter of tokens starts over, so a token of the last member run is valid again.
    """
    chosen = partition.chosen_preparation(segment)
    if chosen is not None and chosen.member_run == broker.member_run:
        return True
    return partition.read_epoch is not None and segment.server_epoch > partition.read_epoch


def on_certificate(broker: BrokerState, partition: Partition, member: MemberId) -> None:
    """The server before has certainly ended, so it delivers nothing: this server need not wait any longer."""
    for no, right in partition.rights.items():
        if right.old_server == member and _has_certainly_ended(broker, member) and right.from_us > broker.now.mono_us:
            right.from_us = broker.now.mono_us
            broker.poll(0, TimerKind.PUMP, partition.id, no)
