"""Links to other brokers: which are there, silent or gone, and what each partition does about it.

A broken link may be resumed within `resume_us` (200 ms). A broker that refuses connections, is silent or has restarted
counts as dead for every partition that shares an open segment with it. If that is wrong, it costs a switch.
"""

from __future__ import annotations

from seriatim_api.ids import MemberId

from ..consumers.cursors import control_records
from ..consumers.groups import eligibility, without_consumers
from ..copies import copying, settle
from ..delayed import firing
from ..peers import disks, lanes, right, updates
from ..state.broker import BrokerState
from ..state.partition import Partition, Partitions
from ..switching import fencing, switch
from ..values.effects import Disconnect, Send
from ..values.events import LinkDown, LinkUp
from ..values.kinds import SwitchReason, TimerKind
from ..values.messages import Heartbeat, HeartbeatAnswer
from ..writing import replication

# ---- a link comes and goes ------------------------------------------------------------------------------


def on_up(broker: BrokerState, partitions: Partitions, event: LinkUp) -> None:
    """Both streams to a broker are connected.

    Rule `dismissed-once` (COPY): a dismissed run is refused when it connects again. Without it:
      1. A certificate is written for a member run that lives. This broker reads it, and cuts the link.
      2. The member connects again, and is let in.
      3. A segment is opened on it, and it counts as a copy. Then its directory is given up, as the certificate allows.
    """
    broker.connect(event.broker)
    link = broker.links.by_broker[event.broker]
    if link.up:
        _lose(broker, partitions, event.broker, refused=False)
    if broker.directory.is_dismissed(event.member, event.member_run):
        broker.out.emit(Disconnect(event.broker, event.session))  # it has not read its certificate yet
        return
    restarted = link.member is not None and (link.member, link.member_run) != (event.member, event.member_run)
    link.up = True
    link.refused = False
    link.member = event.member
    link.member_run = event.member_run
    link.session = event.session
    link.forms = event.forms
    link.heard_us = broker.now.mono_us
    lanes.on_up(link, broker.now.mono_us)
    broker.beat_soon()
    link.refused_by = frozenset()
    link.disk_stall_us = 0
    link.disk_full_since_us = None
    for partition in list(partitions.values()):
        _tell_up(broker, partition, event.member)
    if restarted:  # a member that restarted, or has another disk, always means a switch
        _peer_dead(broker, partitions, event.broker)


def _tell_up(broker: BrokerState, partition: Partition, member: MemberId) -> None:
    replication.on_link_up(broker, partition, member)
    chain = partition.chain
    if chain is not None and any(member in segment.members for segment in chain.segments[-2:]):
        updates.tell_member(broker, partition, member)
    switch.on_link_up(broker, partition, member)
    if any(not log.active for log in partition.unsealed_logs()):
        partition.read_chain(broker)  # a newer record may have been decided meanwhile
    right.on_link_up(broker, partition, member)
    control_records.on_link_up(partition, member)
    firing.on_link_up(broker, partition, member)
    settle.on_link_up(broker, partition, member)
    copying.on_link_up(broker, partition, member)


def on_down(broker: BrokerState, partitions: Partitions, event: LinkDown) -> None:
    """A stream of the link broke, or an attempt to connect was refused."""
    link = broker.links.by_broker.get(event.broker)
    if link is None or (link.up and event.session not in (0, link.session)):
        return
    _lose(broker, partitions, event.broker, event.refused)


def _lose(broker: BrokerState, partitions: Partitions, name: str, refused: bool) -> None:
    link = broker.links.by_broker[name]
    was_up, link.up = link.up, False
    news = refused and not link.refused
    link.refused = refused or broker.is_link_dismissed(link)
    if was_up:
        link.wanted_us = broker.now.mono_us
        broker.wake(broker.now.mono_us + broker.config.resume_us + 1, TimerKind.RESUME, detail=name)
        assert link.member is not None
        for partition in list(partitions.values()):
            _tell_lost(broker, partition, link.member)
    if news:
        _peer_dead(broker, partitions, name)


def _tell_lost(broker: BrokerState, partition: Partition, member: MemberId) -> None:
    replication.on_link_lost(broker, partition, member)
    fencing.on_link_lost(broker, partition, member)
    switch.on_link_lost(broker, partition, member)
    eligibility.on_link_lost(broker, partition, member)
    copying.on_link_lost(broker, partition, member)


def on_resume_over(broker: BrokerState, partitions: Partitions, name: str) -> None:
    """`resume_us` has passed since the link broke: without a link the broker counts as dead."""
    link = broker.links.by_broker.get(name)
    if link is not None and not link.up and broker.now.mono_us >= link.wanted_us + broker.config.resume_us:
        _peer_dead(broker, partitions, name)


def dismiss(broker: BrokerState, partitions: Partitions) -> None:
    """Cut every link to a dismissed run: one that has a death certificate, or whose slot has another disk.

    Rule `dismissed-run` (I12, I14): a broker believes nothing that a dismissed run says, from the step on in which it
    learns of the dismissal. Without it:
      1. A certificate is written for a member run that lives, because an administrator or a proof was wrong. Its disk
         is given up.
      2. Its link is still there. So a master counts it as the second copy, or a slave follows it.
      3. Messages are acknowledged that only one other disk has. That disk fails, and they are gone.
    """
    for name, link in list(broker.links.by_broker.items()):
        if not broker.is_link_dismissed(link):
            continue
        if link.up:
            link.cut_us = broker.now.mono_us
            broker.out.emit(Disconnect(name, link.session))
        if link.up or not link.refused:
            _lose(broker, partitions, name, refused=True)


def _peer_dead(
    broker: BrokerState, partitions: Partitions, name: str, reason: SwitchReason = SwitchReason.PEER_DEAD
) -> None:
    """A broker counts as dead: begin a switch of every open segment of which one is the master and one a slave.

    Of two slaves that do not hear each other, neither begins one: their master decides, who needs both.
    """
    for watching in list(broker.links.watched.get(name, ())):
        partition = partitions.get(watching)
        has_rows = partition is not None and (partition.ledger_rows or partition.handoffs)
        if partition is not None and has_rows and partition.chain is not None:
            without_consumers.take_up_forwards(broker, partition, partition.chain, dead=name)
        if partition is not None and partition.chain is not None:
            firing.on_peer_dead(broker, partition, name)
        log = partition.open_log() if partition is not None else None
        if partition is None or log is None or log.record.sealed_len is not None:
            continue
        master, *slaves = log.record.members
        lacks_slave = broker.member == master and any(slave.broker == name for slave in slaves)
        if lacks_slave or (broker.member in slaves and master.broker == name):
            switch.begin_failover(broker, partition, reason, log.no)


def _peer_hangs(broker: BrokerState, partitions: Partitions, name: str) -> None:
    """A broker's disk hangs: its open segments switch, and control records do not wait for it."""
    _peer_dead(broker, partitions, name, SwitchReason.DISK_HANGS)
    for watching in broker.links.watched.get(name, ()):
        partition = partitions.get(watching)
        for consumer_group in partition.consumer_groups.values() if partition is not None else ():
            broker.poll(0, TimerKind.PUMP, watching, consumer_group.segment_no)
        for no in partition.firing if partition is not None else ():
            broker.poll(0, TimerKind.PUMP, watching, no)


# ---- heartbeats -----------------------------------------------------------------------------------------


def beat(broker: BrokerState, partitions: Partitions) -> None:
    """Send the heartbeats that are due, and end the links to brokers that have been silent for too long.

    Brokers that share an open segment or a serving right with this one get a heartbeat every `heartbeat_us` (100 ms),
    the others every `slow_heartbeat_us` (1 s). The look itself comes as often as the most frequent of them, and when a
    watched broker has been silent for `silence_us`.
    """
    config = broker.config
    now = broker.now.mono_us
    due_us = broker.links.beat_due_us
    if now < due_us:
        return  # this timer was set before brokers began to need heartbeats more often
    asleep = bool(due_us) and now - due_us > min(config.silence_us, config.slow_silence_us) // 2
    disks.look_at_own(broker, asleep)
    firing.look_at_clock(broker, partitions.values())
    broker.set_beat(now + broker.beat_pause_us())
    silent_us = broker.links.beat_due_us  # when the first watched broker will have been silent for too long
    for name, link in list(broker.links.by_broker.items()):
        if not link.up:
            continue
        # Rule `sleep-is-no-silence` (CALM): if this process did not run, the silence says nothing of the others.
        # Without it:
        # 1. This process is frozen for 600 ms, and continues. Its first look comes before it reads what has arrived.
        # 2. All others were silent for 600 ms. It cuts all links, and all segments that it shares with others move.
        if asleep:
            link.heard_us = now
            lanes.on_awake(link, now)
        watched = bool(broker.links.watched.get(name))
        # Rule `watched-from-now` (CALM): the silence of a broker that is watched from now on counts from now on.
        # Without it:
        # 1. Two brokers share nothing, and exchange heartbeats every second. The last frame is 600 ms old.
        # 2. A segment opens on both. This broker sends a heartbeat, and looks before the answer can be there.
        # 3. 600 ms are more than `silence_us` (500 ms). The link is cut, and the segment that has just opened moves.
        heard_us = max(link.heard_us, link.watched_us) if watched else link.heard_us
        is_silent = now - heard_us > (config.silence_us if watched else max(config.slow_silence_us, config.silence_us))
        if is_silent or lanes.look(broker, link, watched):
            broker.out.emit(Disconnect(name, link.session))
            _lose(broker, partitions, name, refused=False)
            _peer_dead(broker, partitions, name)
            continue
        if watched:
            silent_us = min(silent_us, heard_us + config.silence_us + 1)
        if now - link.beat_us >= 3 * broker.beat_period_us(name) // 4:  # it left earlier if it left with an answer
            link.beat_us = now
            broker.out.emit(Send(name, Heartbeat(now)))
    if silent_us < broker.links.beat_due_us:  # not at the next look, which may be 100 ms later
        broker.set_beat(silent_us)


def on_heartbeat(broker: BrokerState, sender: MemberId, message: Heartbeat) -> None:
    """Answer a heartbeat, and name the segments for which the answer does not count.

    If half of the period has passed since the last heartbeat to that broker, the next one leaves with the answer. So
    two brokers exchange three frames in a period, and not four, and each is woken up less often.
    """
    refused = right.refused_to(broker, sender.broker)
    answer = disks.answer(broker, message.sent_us, refused, broker.links.by_broker[sender.broker].data_count)
    broker.out.emit(Send(sender.broker, answer))
    broker.beat_with_answer(sender.broker)


def on_heartbeat_answer(
    broker: BrokerState, partitions: Partitions, sender: MemberId, message: HeartbeatAnswer
) -> None:
    """Another broker answered a heartbeat: the serving rights of this member are prolonged.

    Rule `lease-from-receipt` (SERVER): the lease counts from the sending of the heartbeat (`message.sent_us`). Without
    it:
      1. The server sends a heartbeat. The successor answers it, and then stops answering.
      2. The answer is on its way for 400 ms. Meanwhile the successor waits `serve_lease_ms` and begins to deliver.
      3. The answer arrives. The old server delivers for 300 ms more, at the same time as the successor.
    """
    link = broker.links.by_broker[sender.broker]
    link.answered_us = max(link.answered_us, message.sent_us)
    link.round_trip_us = max(broker.now.mono_us - message.sent_us, 0)
    link.refused_by = frozenset(message.refused)
    lanes.on_answer(link, message.data_count, broker.now.mono_us)
    right.forget_told(broker, sender.broker, link.session, message.sent_us)
    disks.on_answer(broker, link, message, lambda: _peer_hangs(broker, partitions, sender.broker))
