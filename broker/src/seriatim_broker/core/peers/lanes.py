"""Lanes: whether each lane of a link delivers messages.

A link has two lanes, each with its own TCP connection: control (heartbeats, fences, prepares) and data (`DATA`:
batches, their acknowledgements, copies). One lane can stop while the other continues, if a firewall forgets a
connection or the path drops large packets. So each lane has its own proof:

    control   a message arrived on it within `lane_stall_us` (3 s). Heartbeats go there all the time.
    data      each answer to a heartbeat says how many messages the other end received on it. If that number did not
              grow for `lane_probe_us` (0.5 s), this broker sends a `LaneProbe`. The number must grow within
              `lane_stall_us` from then. If the brokers share no open segment and no serving right, the probe is
              sent after `lane_stall_us`.

The number shows progress, not a round trip. So a lane with megabytes in its queue does not count as stalled, and a busy
link sends no probe. Each end proves the direction in which it sends data.
"""

from __future__ import annotations

from ..state.broker import BrokerState
from ..state.links import Link
from ..values.effects import Send
from ..values.messages import DATA, LaneProbe, Message
from .disks import NO_PARTITION

_DATA = frozenset(DATA)


def on_up(link: Link, now_us: int) -> None:
    """A new connection begins to prove its lanes again."""
    link.data_count = link.data_told = 0
    on_awake(link, now_us)


def on_awake(link: Link, now_us: int) -> None:
    """This process did not run for some time: start over, because missing messages prove nothing now."""
    link.control_heard_us = link.data_proved_us = now_us
    link.probed_us = None


def on_received(link: Link, message: Message, now_us: int) -> None:
    """A message arrived: note the lane of its kind."""
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


def look(broker: BrokerState, link: Link, watched: bool) -> bool:
    """Whether a lane of the link is stalled; sends a probe if the data lane has shown no progress.

    Args:
        broker: This broker.
        link: The link.
        watched: Whether this broker shares an open segment or a serving right with the other one.
    """
    # Rule `lane-unwatched` (I13): the caller ends a link with a stalled lane, as if the peer were silent. Without it:
    #   1. The data lane from a master to its slave stops. Heartbeats continue.
    #   2. The master commits nothing that it accepts from then on, and copies that other members wait for never arrive.
    #   3. The link stays up for ever, and the next segment of this broker group is opened over it again.
    config, now_us = broker.config, broker.now.mono_us
    if now_us - link.control_heard_us > config.lane_stall_us:
        broker.out.note("lane_stalled", NO_PARTITION, peer=link.broker, lane="control")
        return True
    if link.probed_us is None:
        if now_us - link.data_proved_us >= (config.lane_probe_us if watched else config.lane_stall_us):
            link.probed_us = now_us
            broker.out.emit(Send(link.broker, LaneProbe()))
    elif now_us - link.probed_us > config.lane_stall_us:
        broker.out.note("lane_stalled", NO_PARTITION, peer=link.broker, lane="data")
        return True
    return False
