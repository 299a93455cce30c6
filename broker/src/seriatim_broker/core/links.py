"""Links to other brokers: who is there, who is silent, who is gone, and what each partition does about it.

A link that breaks may be resumed within a moment; a broker that is refused, silent or restarted is dead to every
partition that shares a segment or a serving right with it. Being wrong costs a switch.
"""

from __future__ import annotations

from seriatim_api.ids import MemberId

from . import copying, disks, eligibility, fencing, lanes, replication, right, settle, switch, updates
from .effects import Disconnect, Send
from .events import LinkDown, LinkUp
from .groups import cursors
from .messages import Heartbeat, HeartbeatAnswer
from .outbox import Outbox
from .partition import Partition, Partitions

# ---- a link comes and goes ------------------------------------------------------------------------------


def on_up(outbox: Outbox, partitions: Partitions, event: LinkUp) -> None:
    """Both streams to a broker stand."""
    outbox.connect(event.broker)
    link = outbox.links[event.broker]
    if link.up:
        _lose(outbox, partitions, event.broker, refused=False)
    if outbox.is_dismissed(event.member, event.run):
        outbox.emit(Disconnect(event.broker, event.session))  # it dialed again: it does not know, or cannot
        return
    restarted = link.member is not None and (link.member, link.run) != (event.member, event.run)
    link.up = True
    link.refused = False
    link.member = event.member
    link.run = event.run
    link.session = event.session
    link.forms = event.forms
    link.heard_us = outbox.now.mono_us
    lanes.on_up(link, outbox.now.mono_us)
    link.refused_by = frozenset()
    link.disk_stall_us = 0
    link.disk_full_since_us = None
    for partition in list(partitions.values()):
        _tell_up(outbox, partition, event.member)
    if restarted:  # a member that restarted, or has another disk, always means a switch
        _peer_dead(outbox, partitions, event.broker)


def _tell_up(outbox: Outbox, partition: Partition, member: MemberId) -> None:
    replication.on_link_up(outbox, partition, member)
    chain = partition.chain
    if chain is not None and any(member in segment.members for segment in chain.segments[-2:]):
        updates.tell_member(outbox, partition, member)
    if partition.switch is not None:
        partition.switch.on_link_up(outbox, partition, member)
    if any(not log.active for log in partition.unsealed_logs()):
        partition.read_chain(outbox)  # what was decided while this member was away?
    right.on_link_up(outbox, partition, member)
    cursors.on_link_up(outbox, partition, member)
    settle.on_link_up(outbox, partition, member)
    copying.on_link_up(outbox, partition, member)


def on_down(outbox: Outbox, partitions: Partitions, event: LinkDown) -> None:
    """A stream of the link broke, or an attempt to connect was refused."""
    link = outbox.links.get(event.broker)
    if link is None or (link.up and event.session not in (0, link.session)):
        return
    _lose(outbox, partitions, event.broker, event.refused)


def _lose(outbox: Outbox, partitions: Partitions, broker: str, refused: bool) -> None:
    link = outbox.links[broker]
    was_up, link.up = link.up, False
    news = refused and not link.refused
    link.refused = refused or outbox.is_link_dismissed(link)
    if was_up:
        link.wanted_us = outbox.now.mono_us
        outbox.wake(outbox.now.mono_us + outbox.config.resume_us + 1, "resume", detail=broker)
        assert link.member is not None
        for partition in list(partitions.values()):
            _tell_lost(outbox, partition, link.member)
    if news:
        _peer_dead(outbox, partitions, broker)


def _tell_lost(outbox: Outbox, partition: Partition, member: MemberId) -> None:
    replication.on_link_lost(outbox, partition, member)
    fencing.on_link_lost(outbox, partition, member)
    if partition.switch is not None:
        partition.switch.on_link_lost(outbox, partition, member)
    eligibility.on_link_lost(outbox, partition, member)
    copying.on_link_lost(outbox, partition, member)


def on_resume_over(outbox: Outbox, partitions: Partitions, broker: str) -> None:
    """The link had its time to come back."""
    link = outbox.links.get(broker)
    if link is not None and not link.up and outbox.now.mono_us >= link.wanted_us + outbox.config.resume_us:
        _peer_dead(outbox, partitions, broker)


def dismiss(outbox: Outbox, partitions: Partitions) -> None:
    """Cut every link to a run that was certified to be over, or whose slot has another disk by now.

    Rule `dismissed-run` (I12, I14): from the step in which this member learns of it, nothing that the run says counts.
    1  a certificate is written for a run that lives (a person was wrong, or a proof was), and its disk is given up
    2  its link stands, so a master goes on to count it as the second copy, or a slave goes on to follow it
    3  without this rule messages are acknowledged that one disk has; that disk fails, and they are gone
    """
    for broker, link in list(outbox.links.items()):
        if not outbox.is_link_dismissed(link):
            continue
        if link.up:
            link.cut_us = outbox.now.mono_us
            outbox.emit(Disconnect(broker, link.session))
        if link.up or not link.refused:
            _lose(outbox, partitions, broker, refused=True)


def _peer_dead(outbox: Outbox, partitions: Partitions, broker: str, reason: str = "peer dead") -> None:
    """Refused, silent, restarted, or not back in time: every open segment that this broker is a member of moves on."""
    for watching in list(outbox.watched.get(broker, ())):
        partition = partitions.get(watching)
        log = partition.open_log() if partition is not None else None
        if partition is None or log is None or log.record.sealed_len is not None:
            continue
        members = log.record.members
        if outbox.member in members and any(member.broker == broker for member in members):
            switch.begin_failover(outbox, partition, reason, log.no)


def _peer_hangs(outbox: Outbox, partitions: Partitions, broker: str) -> None:
    """The broker's disk hangs: its open segments move on, and control records do not wait for it."""
    _peer_dead(outbox, partitions, broker, "disk hangs")
    for watching in outbox.watched.get(broker, ()):
        partition = partitions.get(watching)
        for head in partition.groups.values() if partition is not None else ():
            outbox.poll(0, "pump", watching, head.segment_no)


# ---- heartbeats -----------------------------------------------------------------------------------------


def beat(outbox: Outbox, partitions: Partitions) -> None:
    """Heartbeats: often to those that share a segment, seldom to the rest; and who has been silent for too long."""
    config = outbox.config
    now = outbox.now.mono_us
    due_us = outbox.beat_due_us
    asleep = bool(due_us) and now - due_us > config.silence_us // 2
    disks.look_at_own(outbox, asleep)
    outbox.beat_due_us = now + config.heartbeat_us
    outbox.wake(outbox.beat_due_us, "heartbeat")
    for broker, link in list(outbox.links.items()):
        if not link.up:
            continue
        if asleep:
            link.heard_us = now  # it was this process that slept
            lanes.on_awake(link, now)
        watched = bool(outbox.watched.get(broker))
        is_silent = now - link.heard_us > (config.silence_us if watched else 4 * config.slow_heartbeat_us)
        if is_silent or lanes.look(outbox, link):
            outbox.emit(Disconnect(broker, link.session))
            _lose(outbox, partitions, broker, refused=False)
            _peer_dead(outbox, partitions, broker)
        elif watched or now - link.beat_us >= config.slow_heartbeat_us:
            link.beat_us = now
            outbox.emit(Send(broker, Heartbeat(now)))


def on_heartbeat(outbox: Outbox, sender: MemberId, message: Heartbeat) -> None:
    """Answer, and name the segments for which the sender is no longer answered."""
    refused = right.refused_to(outbox, sender.broker)
    answer = disks.answer(outbox, message.sent_us, refused, outbox.links[sender.broker].data_count)
    outbox.emit(Send(sender.broker, answer))


def on_heartbeat_answer(outbox: Outbox, partitions: Partitions, sender: MemberId, message: HeartbeatAnswer) -> None:
    """The other one is there, and this member's rights last a little longer."""
    link = outbox.links[sender.broker]
    link.answered_us = max(link.answered_us, message.sent_us)
    link.refused_by = frozenset(message.refused)
    lanes.on_answer(link, message.data_count, outbox.now.mono_us)
    right.forget_told(outbox, sender.broker, link.session, message.sent_us)
    disks.on_answer(outbox, link, message, lambda: _peer_hangs(outbox, partitions, sender.broker))
