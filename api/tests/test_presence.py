"""Which fields of the wire and of records say something when they are not set, and why nothing can be mistaken.

Protobuf does not write a field that is zero or empty, unless it is `optional`. So zero and absent are one. That is a
fault where a caller can mean zero: the empty key was every key (ADR 0073). Each field whose comment gives zero, empty
or unset a meaning is `optional`, or stands below with the reason why it need not be.
"""

from __future__ import annotations

import re
from pathlib import Path

PROTO = Path(__file__).resolve().parents[1] / "proto" / "seriatim" / "v1"

NO_SUCH_VALUE = """
    AppendReply.offset Join.in_flight_max Join.run_max Join.spread_over Demand.run_max EndOfSegment.next_server_address
    GetStreamPortResponse.port UpdateTopicRequest.partition_count
    OperatedPartition.group_epoch ListGroupKeysRequest.after ListGroupKeysRequest.limit ListGroupKeysResponse.next
    ListDelayedRequest.limit ListDelayedRequest.until_ms
    ScrubRequest.after_partition_id ReadQuarantinedRequest.partition_id PrepareStagingRequest.topic
    OpenWriterRequest.incarnation PublishRequest.epoch PublishRequest.owner ListWritersResponse.next_after
    GetOffsetsRequest.incarnation PlanRangeRequest.cut_bytes RetryPolicy.grant_ms ChainRecord.chain_width
    BrokerGroupRecord.weight OpenRange.epoch Gap.to_index
    AcquireRequest.epoch ReleaseOwnerRequest.epoch ListOwnersRequest.topic ListOwnersRequest.after
    ListOwnersResponse.next
"""
"""Zero or empty is no value that these can have: a window, a limit, a port, a length or an end of 0, no name, a
number that begins at 1 (epochs of groups, writers and chains, partition ids). So it stands for absent."""

SAME = """
    TopicSettings.retention_ms TopicSettings.retention_bytes TopicSettings.unread_ms_max
    TopicSettings.unread_bytes_max RetryPolicy.attempts_max Error.retry_after_ms
    CursorRecord.repeated_to GroupEpochRecord.term_base Extend.unseen
"""
"""Zero and absent mean the same, also to administrators. What an update changes is named in `settings_mask`."""

NONE_IS_REFUSED = """
    CreateConsumerGroupRequest.partitions PlanGroupMoveRequest.partitions ListGroupKeysRequest.states
    GetOffsetsRequest.partitions DescribeGroupRequest.partitions
"""
"""A repeated field has no presence. Our client refuses an empty list, and writes no list for None, which means all."""

TOLD = """
    GroupPartition.oldest_append_ms
    ReplayDeadLettersResponse.offsets TellKnownResponse.behind Dropped.messages
    CursorRecord.dropped_position ReadQuarantinedResponse.done
    BrokerGroupDescription.waits_for
    BrokerAddress.stream_port MemberRecord.stream_port
    ClusterRecord.rebuild_begun_ms
    CursorRecord.oldest CursorRecord.handover_epoch
    WriterRecord.opened_at_ms RowLayout.batch_bytes SegmentRecord.delayed_until_ms
    PublishResponse.parts ReadStagedResponse.header AcquireReply.owner_text AcquireReply.reason
"""
"""What a broker or a record reports. Zero or empty is *not known* or *none*: no offset, time, epoch or text that is
reported is zero or empty. Code that reads it asks for that."""

FIELD = re.compile(r"\s*(?:(optional|repeated) [\w.]+|[a-z]\w+) (\w+) = \d+(?: \[[^\]]*\])?;(.*)")
"""A scalar, or a repeated field. Messages have presence, and enums have a value for *unspecified*."""

MEANING = re.compile(
    r"\b(?:empty|zeros)(?: if [^;]*)?(?:[:;]|$)|\b0(?: [a-z ]+)?:|\b0 (?:from|also|in) |\bnot set:|unset$"
)


def fields_with_a_meaning(text: str) -> tuple[set[str], set[str]]:
    """The fields of a .proto file whose comments say what zero, empty or unset means: optional ones, and others."""
    messages: list[str | None] = []
    optional: set[str] = set()
    others: set[str] = set()
    before = ""
    for line in text.splitlines():
        if line.lstrip().startswith("//"):
            before += line.strip() + " "
            continue
        if found := re.match(r"\s*(message|oneof|enum|service|rpc)\b ?(\w*).*\{(?!.*\})", line):
            messages.append(found[2] if found[1] == "message" else None)
        elif line.strip() == "}":
            messages.pop()
        elif (found := FIELD.fullmatch(line)) and MEANING.search((before + found[3]).strip()):
            name = next(message for message in reversed(messages) if message is not None)
            (optional if found[1] == "optional" else others).add(f"{name}.{found[2]}")
        before = ""
    return optional, others


def test_fields_that_mean_something_when_unset_are_optional_or_judged() -> None:
    judged = [name for group in (NO_SUCH_VALUE, SAME, NONE_IS_REFUSED, TOLD) for name in group.split()]
    assert len(judged) == len(set(judged))
    found: set[str] = set()
    for path in sorted(PROTO.glob("*.proto")):
        found |= fields_with_a_meaning(path.read_text(encoding="utf-8"))[1]
    assert sorted(found - set(judged)) == [], "make the field optional, or say here why zero cannot be meant"
    assert sorted(set(judged) - found) == [], "judged, and not there"


def test_a_field_whose_comment_names_zero_is_found() -> None:
    text = """
message A {
  bytes key = 1;  // only this key; empty: all
  optional bytes other = 2;  // not set: all
  uint32 plain = 3;  // a number
  oneof x {
    // 0: none
    uint32 inner = 4;
  }
}
"""
    assert fields_with_a_meaning(text) == ({"A.other"}, {"A.key", "A.inner"})
