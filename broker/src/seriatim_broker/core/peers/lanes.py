"""Whether each lane of a link carries, and not only one of them.

A link has two lanes, each with a TCP connection of its own: control (heartbeats, fences, prepares) and data (`DATA`:
batches, their acknowledgements, copies). One of the two can stop while the other goes on: a firewall forgets a
connection, or the path drops large packets. So each lane proves by itself that it carries:

    control   something arrived on it within `lane_stall_us`. Heartbeats go there all the time.
    data      each answer to a heartbeat says how many messages the answerer received on it. While the number grows the
              lane carries. If it did not grow for `lane_probe_us` a `LaneProbe` is sent, and it must grow within
              `lane_stall_us` from then.

The number is a proof of progress and not a round trip, so a lane with megabytes in its queue is not mistaken for a
stalled one; and a busy link sends no probe at all. Each end proves the direction in which it sends data.

Rule `lane-unwatched` (I13): a stalled lane counts as silence, and silence ends the link.
1  the data lane from a master to its slave stops; heartbeats go on
2  nothing that the master accepts from now on commits, and copies that others wait for never arrive
3  without this rule the link stands for ever, and is chosen for the next segment of the group again
"""

from __future__ import annotations

from ..state.broker import BrokerState
from ..state.links import Link
from ..values.effects import Send
from ..values.messages import DATA, FORM_LANE_PROBES, LaneProbe, Message
from .disks import NO_PARTITION

_DATA = frozenset(DATA)


def on_up(link: Link, now_us: int) -> None:
    """A new connection begins with proofs of its own."""
    link.data_count = link.data_told = 0
    on_awake(link, now_us)


def on_awake(link: Link, now_us: int) -> None:
    """What did not arrive while this process slept proves nothing."""
    link.control_heard_us = link.data_proved_us = now_us
    link.probed_us = None


def on_received(link: Link, message: Message, now_us: int) -> None:
    """Something arrived, on the lane of its kind."""
    link.heard_us = now_us
    if type(message) in _DATA:
        link.data_count += 1
    else:
        link.control_heard_us = now_us


def on_answer(link: Link, data_count: int, now_us: int) -> None:
    """The other end says how many messages it received on the data lane."""
    if data_count > link.data_told:
        link.data_told = data_count
        link.data_proved_us = now_us
        link.probed_us = None


def look(broker: BrokerState, link: Link) -> bool:
    """Whether a lane of the link is stalled; sends a probe if the data lane has to prove that it carries."""
    config, now_us = broker.config, broker.now.mono_us
    if now_us - link.control_heard_us > config.lane_stall_us:
        broker.out.note("lane_stalled", NO_PARTITION, peer=link.broker, lane="control")
        return True
    if not link.forms & FORM_LANE_PROBES:
        return False  # a peer of an older version does not say what it received
    if link.probed_us is None:
        if now_us - link.data_proved_us >= config.lane_probe_us:
            link.probed_us = now_us
            broker.out.emit(Send(link.broker, LaneProbe()))
    elif now_us - link.probed_us > config.lane_stall_us:
        broker.out.note("lane_stalled", NO_PARTITION, peer=link.broker, lane="data")
        return True
    return False
