"""Draws the chains of a topic: a row for each partition, a piece for each segment, the open segment last."""

from __future__ import annotations

from collections.abc import Sequence

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text
from seriatim_api.v1 import broker_pb2, records_pb2

from ..spec.topic import Topic
from .look import Look

SEGMENTS_DRAWN_MAX = 8
"""How many segments of each chain are drawn, the newest. Older segments are counted."""

PAGE_SEGMENTS = 256
"""How many segments each page of a long chain's record has."""

_STYLES = {
    records_pb2.SEGMENT_STATE_OPEN: "bold green",
    records_pb2.SEGMENT_STATE_SEALED: "",
    records_pb2.SEGMENT_STATE_UNSETTLED: "bold yellow",
    records_pb2.SEGMENT_STATE_LOST: "bold red",
}
LEGEND = "group:messages of a closed segment  ½ one copy  ? not settled  ✗ lost  ▶ open, and its master"


def draw_topic(described: broker_pb2.DescribeTopicResponse) -> RenderableType:
    """A topic as the brokers have it."""
    topic = described.topic
    state = records_pb2.TopicState.Name(topic.state).removeprefix("TOPIC_STATE_").lower()
    title = Text.assemble((topic.name, "bold"), f"  {len(described.chains)} partitions, {state}")
    table = Table("partition", "chain", "next", "epoch", box=None, pad_edge=False)
    for chain in described.chains:
        table.add_row(str(chain.partition), _ribbon(chain), " ".join(_next_groups(chain)), str(chain.epoch))
    return Group(title, table, Text(LEGEND, style="dim"))


def draw_topic_status(topic: Topic) -> RenderableType:
    """A topic as the Topic object has it: the open segments of its first partitions."""
    status = topic.status
    title = Text.assemble((topic.topic_name, "bold"), f"  {status.partitions or 0} partitions, {status.state}")
    if status.segments is not None:
        title.append(f", {status.segments:,} segments")
    if status.sealed_messages is not None:
        title.append(f", {status.sealed_messages:,} messages in closed ones")
    table = Table("partition", "open segment", "group", "master", box=None, pad_edge=False)
    for chain in status.chains:
        table.add_row(str(chain.partition), str(chain.segment), chain.group, chain.master)
    hidden = (status.partitions or 0) - len(status.chains)
    more = [Text(f"and {hidden:,} partitions more", style="dim")] if hidden > 0 and status.chains else []
    return Group(title, table, *more)


def find_topic(look: Look, name: str) -> Topic | None:
    """A topic, by the name of its object or by its name among the brokers; None if there is no such object."""
    return next((topic for topic in look.topics if name in (topic.name, topic.topic_name)), None)


def _ribbon(chain: records_pb2.ChainRecord) -> Text:
    segments: Sequence[records_pb2.SegmentRecord] = chain.segments
    shown = segments[-SEGMENTS_DRAWN_MAX:]
    hidden = len(segments) - len(shown) + chain.page_count * PAGE_SEGMENTS
    pieces = [Text(f"({hidden:,} older)", style="dim")] if hidden else []
    pieces += [_piece(segment) for segment in shown]
    return Text(" → ", style="dim").join(pieces)


def _piece(segment: records_pb2.SegmentRecord) -> Text:
    style = _STYLES.get(segment.state, "")
    if segment.state == records_pb2.SEGMENT_STATE_OPEN:
        master = segment.members[0].broker if segment.members else "no master"
        return Text(f"{segment.group} ▶ {master}", style=style)
    length = f"{segment.sealed_len:,}" if segment.HasField("sealed_len") else "?"
    mark = {records_pb2.SEGMENT_STATE_UNSETTLED: " ?", records_pb2.SEGMENT_STATE_LOST: " ✗"}.get(segment.state, "")
    if segment.state == records_pb2.SEGMENT_STATE_SEALED and len(segment.members) < 2:
        mark, style = " ½", "yellow"
    return Text(f"{segment.group}:{length}{mark}", style=style)


def _next_groups(chain: records_pb2.ChainRecord) -> list[str]:
    """The broker groups that a switch would try first: the send chain without the one that has the open segment."""
    here = chain.segments[-1].group if chain.segments else ""
    return [group for group in chain.send_chain if group != here]
