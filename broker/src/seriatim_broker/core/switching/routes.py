"""Routes: a client asks where to append, and gets the route at once, or when the next segment is open.

A complaint names a segment whose master the client cannot reach, and begins a switch. A suspicion names a segment whose
master is silent: the broker asks the master first, and the client waits for what comes of it: the same route if the
master is heard, else the next one. A complaint is treated like a suspicion if the partition was opened twice within
`restless_us` (10 s). Without it:

  1. A client can reach no broker of the partition, and complains of each master.
  2. Each complaint opens the next segment, about ten times a second.
  3. The partition goes round the send chain as long as that lasts, and all other clients must follow it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from seriatim_api import errors
from seriatim_api.ids import MemberId

from ..state.broker import BrokerState
from ..state.partition import Partition
from ..state.switching import Probed, Waiter
from ..values.chain import Chain
from ..values.config import BrokerConfig
from ..values.effects import Resolved
from ..values.events import ResolveProducer
from ..values.kinds import SwitchReason, TimerKind
from ..values.messages import Heartbeat
from . import switch


def on_resolve(broker: BrokerState, partition: Partition, event: ResolveProducer) -> None:
    """A producer asks for the route, and may complain of a segment or name a silent one.

    The answer leaves at once if this broker has the open segment, else after a read of the chain record.
    """
    if event.silent_segment is not None:
        probe_master(broker, partition, event.silent_segment)
    failed_segment = event.failed_segment
    waiter = Waiter(event.request, failed_segment, broker.now.mono_us, event.deadline_us, event.silent_segment)
    partition.waiters = (*partition.waiters, waiter)
    broker.wake(event.deadline_us, TimerKind.WAITERS, partition.id)
    log = partition.open_log()
    if failed_segment is None and log is not None and log.active:
        if not _is_looked_into(partition, waiter):  # else nothing has changed for it, and for the others that wait
            answer_waiters(broker, partition)
        return
    if failed_segment is not None and partition.chain is not None and partition.chain.open_segment.no == failed_segment:
        if complain(broker, partition, failed_segment, SwitchReason.COMPLAINT):
            _look_for(broker, partition, [waiter])
        else:
            answer_waiters(broker, partition)
    else:
        partition.read_chain(broker)


def answer_waiters(broker: BrokerState, partition: Partition) -> None:
    """Answer each client that need not wait any more.

    Its complaint is of a segment that is no longer open, or does not count yet; or it only asks for the route, and the
    chain is known, and nothing is under way about a master that it finds silent; or its deadline has passed.
    """
    if not partition.waiters:
        return
    still: list[Waiter] = []
    for waiter in partition.waiters:
        chain = partition.chain
        late = broker.now.mono_us >= waiter.deadline_us
        known = chain is not None and not partition.reading
        past = chain is not None and (waiter.past is None or chain.open_segment.no > waiter.past)
        if late and chain is None:
            error = errors.CoordinatorUnavailableError(
                "the coordinator did not answer in time, so the route is not known; no message is lost; ask again"
            )
            broker.out.emit(Resolved(waiter.request, None, error))
        elif not late and _is_looked_into(partition, waiter):
            still.append(waiter)
        elif late or (past and known) or (past and waiter.past is not None):
            broker.out.emit(Resolved(waiter.request, partition.route(), None))
        elif known and waiter.past is not None and partition.switch is None:
            if complain(broker, partition, waiter.past, SwitchReason.COMPLAINT):
                still.append(waiter)
            else:
                broker.out.emit(Resolved(waiter.request, partition.route(), None))
        else:
            still.append(waiter)
    partition.waiters = tuple(still)
    _look_for(broker, partition, [waiter for waiter in still if waiter.past is not None])


def _is_looked_into(partition: Partition, waiter: Waiter) -> bool:
    """Whether this broker asks the master that the client finds silent, or runs a switch away from it.

    A planned switch does not count, because it may be given up.

    Rule `suspicion-waits` (ASKED): a question about a silent master is answered when the master was heard, or when the
    next segment is open. Without it:
      1. A master freezes. Its producer asks another broker, which asks the master, and answers with the same route.
      2. After `probe_us` (150 ms) without an answer that broker begins a switch. The next segment is open 20 ms later.
      3. The producer asks again 125 ms after its first question, and each 125 ms. Until then it waits for the frozen
         master.
    """
    chain, probed, running = partition.chain, partition.probed, partition.switch
    if waiter.silent is None or chain is None or chain.open_segment.no != waiter.silent:
        return False
    asks = partition.probe_wanted is not None or (probed is not None and probed.segment_no == waiter.silent)
    return asks or (running is not None and not running.is_planned)


def _look_for(broker: BrokerState, partition: Partition, complaints: Sequence[Waiter]) -> None:
    """Read the chain record again while clients wait for a switch, after half of the time that they have waited.

    Another broker may run the switch, and it does not tell brokers that are not members of the partition.
    """
    if complaints:
        age_us = broker.now.mono_us - max(waiter.asked_us for waiter in complaints)
        broker.poll(max(broker.config.retry_us, age_us // 2), TimerKind.READ, partition.id)


def complain(broker: BrokerState, partition: Partition, segment_no: int, reason: SwitchReason) -> bool:
    """A client or consumer cannot reach the master of a segment: begin a switch.

    Returns:
        Whether the complaint counts. It does not while the partition is restless: the client gets the same route, tries
        the master again, and complains again if that fails. Meanwhile this broker asks the master, and begins a switch
        if the master does not answer within `probe_us`.
    """
    if _is_restless(broker, partition, segment_no):
        probe_master(broker, partition, segment_no)
        return False
    switch.begin_failover(broker, partition, reason, segment_no)
    return True


def _is_restless(broker: BrokerState, partition: Partition, segment_no: int) -> bool:
    """Whether the open segment is too young to be switched because of a complaint alone; see `restless_us`.

    If two segments were opened within `restless_us` (10 s), a complaint counts when the open one is `patience_us` (1 s)
    old. If three or more were opened, it counts when the open one is four times as old.
    """
    config, now_ms, chain = broker.config, broker.now.wall_ms, partition.chain
    if chain is None or chain.open_segment.no != segment_no:
        return False
    newest = chain.segments[-3:]  # more than three count as three
    young = [segment for segment in newest if 0 <= now_ms - segment.opened_at_ms < config.restless_us // 1000]
    # Folded segments count too, because they are also young if the partition is moved again and again.
    count = sum(1 + segment.folded for segment in young)
    patience_us = config.patience_us * (0 if count < 2 else 1 if count == 2 else 4)
    patience_us = max(patience_us, _patience_without_messages_us(config, chain))
    age_us = (now_ms - chain.open_segment.opened_at_ms) * 1000
    return 0 <= age_us < patience_us  # an age below 0 means that the clocks disagree: it says nothing


def _patience_without_messages_us(config: BrokerConfig, chain: Chain) -> int:
    """How old the open segment must be for a complaint, if two rounds of all broker groups brought no message.

    Without this age, one client that can reach no master opens an empty segment every 4 s, 150,000 in a week. Folded
    segments count as empty ones. If they did not count, the client would open a segment every second.
    """
    tried = 2 * len(chain.send_chain)
    empty = chain.open_segment.folded
    for segment in reversed(chain.segments[-1 - tried - DOUBLINGS_MAX : -1]):
        if segment.sealed_len != 0:
            break
        empty += 1 + segment.folded
    if empty < tried or not config.patience_us:
        return 0
    return min(8 * config.patience_us << min(empty - tried, DOUBLINGS_MAX), config.vain_patience_us_max)


DOUBLINGS_MAX = 16
"""Maximum number of doublings of the age that are counted. The age reaches `vain_patience_us_max` before."""


# ---- a master that is silent to a client ----------------------------------------------------------------


LOOK_AGAIN_US: Final = 10_000
"""A broker that heard nothing from a master looks again after this long. If it was later than this, it waits for as
long as it was late, and at most for `probe_us`."""


def probe_master(broker: BrokerState, partition: Partition, segment_no: int) -> None:
    """A client has no answer from the master: send the master a heartbeat, and look after `probe_us` if it is heard."""
    partition.probe_wanted = segment_no if partition.chain is None else None
    segment = partition.chain.open_segment if partition.chain is not None else None
    if segment is None or segment.no != segment_no or segment.master == broker.member:
        return
    if partition.probed is not None and partition.probed.segment_no == segment_no:
        return
    partition.probed = Probed(segment_no, broker.now.mono_us)
    if broker.is_linked(segment.master):
        broker.send(segment.master, Heartbeat(broker.now.mono_us))
    else:
        broker.connect(segment.master.broker)
    broker.poll(_probe_us(broker, segment.master), TimerKind.PROBE, partition.id, segment_no)


def _probe_us(broker: BrokerState, master: MemberId) -> int:
    """How long a master has for its answer: `probe_us`, and the way, which counts as at most that long again."""
    link = broker.links.by_broker.get(master.broker)
    return broker.config.probe_us + (min(link.round_trip_us, broker.config.probe_us) if link is not None else 0)


def on_probe_due(broker: BrokerState, partition: Partition, segment_no: int) -> None:
    """If the master has sent nothing since it was asked, begin a switch; else answer the clients that wait for it."""
    probed = partition.probed
    if probed is None or probed.segment_no != segment_no:
        return  # a later segment is asked about, and has a timer of its own
    partition.probed = None
    segment = partition.chain.open_segment if partition.chain is not None else None
    if segment is None or segment.no != segment_no:
        return  # who waited has the next route
    link = broker.links.by_broker.get(segment.master.broker)
    heard = link is not None and link.up and link.member == segment.master and link.heard_us >= probed.at_us
    # Rule `look-after-sleep` (CALM): a broker that did not run first reads what has arrived. Without it:
    # 1. A client says that the master is silent. This broker asks the master, and then does not run for 160 ms.
    # 2. The master's answer lies in the socket. The timer comes before it.
    # 3. This broker takes its own pause for the master's silence, and a healthy broker group loses the open segment.
    # Only the time since the question says how long the pause may have been, because each event loop is a little late.
    if not heard and not probed.again and link is not None and link.up:
        late_us = broker.now.mono_us - probed.at_us - _probe_us(broker, segment.master)
        partition.probed = probed._replace(again=True)
        again_us = min(max(late_us, LOOK_AGAIN_US), broker.config.probe_us)
        broker.poll(again_us, TimerKind.PROBE, partition.id, segment_no)
        return
    if not heard:
        switch.begin_failover(broker, partition, SwitchReason.SILENT_TO_A_CLIENT, segment_no)
    answer_waiters(broker, partition)
