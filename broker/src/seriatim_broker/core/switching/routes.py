"""Routes: who asks where to append is told, at once or when the chain is past the segment that failed it.

A complaint starts a switch; a suspicion has the master probed first. And so has a complaint about a partition that was
moved several times a moment ago: a client that can reach none of its brokers would drive it round the send chain for as
long as that lasts, some ten times a second, under the eyes of all others.
"""

from __future__ import annotations

from collections.abc import Sequence

from seriatim_api import errors

from ..state.broker import BrokerState
from ..state.partition import Partition
from ..state.switching import Waiter
from ..values.chain import Chain
from ..values.config import BrokerConfig
from ..values.effects import Resolved
from ..values.events import ResolveProducer
from ..values.kinds import SwitchReason, TimerKind
from ..values.messages import Heartbeat
from . import switch


def on_resolve(broker: BrokerState, partition: Partition, event: ResolveProducer) -> None:
    """A producer asks for the route, and perhaps complains of a segment."""
    _resolve(broker, partition, event.request, event.failed_segment, event.deadline_us)
    if event.silent_segment is not None:
        probe_master(broker, partition, event.silent_segment)


def _resolve(
    broker: BrokerState, partition: Partition, request: int, failed_segment: int | None, deadline_us: int
) -> None:
    """Answer with the route, now if it is known to be good, else after a look at the coordinator."""
    waiter = Waiter(request, failed_segment, broker.now.mono_us, deadline_us)
    partition.waiters = (*partition.waiters, waiter)
    broker.wake(deadline_us, TimerKind.WAITERS, partition.id)
    log = partition.open_log()
    if failed_segment is None and log is not None and log.active:
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
    """Answer those whose segment the chain is past, and those whose time is up."""
    if not partition.waiters:
        return
    still: list[Waiter] = []
    for waiter in partition.waiters:
        chain = partition.chain
        late = broker.now.mono_us >= waiter.deadline_us
        known = chain is not None and not partition.reading
        past = chain is not None and (waiter.past is None or chain.open_segment.no > waiter.past)
        if late and chain is None:
            error = errors.CoordinatorUnavailableError("the chain could not be read in time")
            broker.out.emit(Resolved(waiter.request, None, error))
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


def _look_for(broker: BrokerState, partition: Partition, complaints: Sequence[Waiter]) -> None:
    """Somebody else may run the switch, and nobody tells a broker that is no member: look, less and less often."""
    if complaints:
        age_us = broker.now.mono_us - max(waiter.asked_us for waiter in complaints)
        broker.poll(max(broker.config.retry_us, age_us // 2), TimerKind.READ, partition.id)


def complain(broker: BrokerState, partition: Partition, segment_no: int, reason: SwitchReason) -> bool:
    """A client cannot reach the master of a segment: open the next one. Returns whether the complaint counts.

    If the partition is restless it does not, yet: the client is told the same master, tries it again, and complains
    again if that is in vain. Meanwhile the master is asked: one that is dead is not waited for.
    """
    if _is_restless(broker, partition, segment_no):
        probe_master(broker, partition, segment_no)
        return False
    switch.begin_failover(broker, partition, reason, segment_no)
    return True


def _is_restless(broker: BrokerState, partition: Partition, segment_no: int) -> bool:
    """Whether the partition was moved too much lately to be moved on a client's word; see `restless_us`."""
    config, now_ms, chain = broker.config, broker.now.wall_ms, partition.chain
    if chain is None or chain.open_segment.no != segment_no:
        return False
    newest = chain.segments[-3:]  # from the third young one on they count alike
    young = [segment for segment in newest if 0 <= now_ms - segment.opened_at_ms < config.restless_us // 1000]
    # Numbers that were folded count as well: in a partition that is moved again and again they are young too.
    count = sum(1 + segment.folded for segment in young)
    patience_us = config.patience_us * (0 if count < 2 else 1 if count == 2 else 4)
    patience_us = max(patience_us, _patience_without_messages_us(config, chain))
    age_us = (now_ms - chain.open_segment.opened_at_ms) * 1000
    return 0 <= age_us < patience_us  # opened in the future: the clocks disagree, and an age says nothing


def _patience_without_messages_us(config: BrokerConfig, chain: Chain) -> int:
    """How long a client must be patient with a partition that got no message in two rounds of all its broker groups.

    Empty segments that were folded count as well. Without this patience, one client that reaches no broker at all opens
    an empty segment every four seconds, 150,000 in a week. Without the folded ones in it, it opens one every second.
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
"""So many doublings of the patience count: it has reached its limit long before."""


# ---- a master that a client finds silent ----------------------------------------------------------------


def probe_master(broker: BrokerState, partition: Partition, segment_no: int) -> None:
    """A client finds the master silent: ask it, and look after a moment whether it answered."""
    partition.probe_wanted = segment_no if partition.chain is None else None
    segment = partition.chain.open_segment if partition.chain is not None else None
    if partition.probed_at_us is not None or segment is None or segment.no != segment_no:
        return
    if segment.master == broker.member:
        return
    partition.probed_at_us = broker.now.mono_us
    if broker.is_linked(segment.master):
        broker.send(segment.master, Heartbeat(broker.now.mono_us))
    else:
        broker.connect(segment.master.broker)
    broker.poll(broker.config.probe_us, TimerKind.PROBE, partition.id, segment_no)


def on_probe_due(broker: BrokerState, partition: Partition, segment_no: int) -> None:
    """No word from the master since it was asked: it is taken for dead."""
    probed_at_us, partition.probed_at_us = partition.probed_at_us, None
    segment = partition.chain.open_segment if partition.chain is not None else None
    if probed_at_us is None or segment is None or segment.no != segment_no:
        return
    link = broker.links.by_broker.get(segment.master.broker)
    heard = link is not None and link.up and link.member == segment.master and link.heard_us >= probed_at_us
    if not heard:
        switch.begin_failover(broker, partition, SwitchReason.SILENT_TO_A_CLIENT, segment_no)
