"""Turns a broker's events about a subscription, except batches (which have bodies), into events of the core."""

from __future__ import annotations

from typing import Final, Literal

from seriatim_api.v1 import broker_pb2, common_pb2, records_pb2

from seriatim._core import consumer_types as ct
from seriatim._core.producer_types import ReplyError

_BEGINNINGS: Final[dict[int, Literal["rewind", "skip"]]] = {
    records_pb2.GROUP_OPERATION_REWIND: "rewind",
    records_pb2.GROUP_OPERATION_SKIP: "skip",
}


def core_event(event: broker_pb2.DeliveryEvent) -> ct.Event:
    """The core's event for an event of a broker."""
    sub = event.subscription
    match event.WhichOneof("event"):
        case "ack_confirmed":
            return ct.AckConfirmed(sub, event.ack_confirmed.segment, event.ack_confirmed.index)
        case "joined":
            told = event.joined
            return ct.Joined(
                sub,
                told.active,
                told.segment,
                told.index,
                told.token,
                told.group_epoch,
                told.server_epoch,
                told.paused,
                _BEGINNINGS.get(told.begun_by),
                told.grant_ms,
                told.at_most_once,
            )
        case "yield_asked":
            return ct.YieldAsked(sub, event.yield_asked.number, event.yield_asked.is_over)
        case "paused":
            return ct.Paused(sub, event.paused.paused)
        case "skip":
            return ct.Skipped(sub, event.skip.segment, event.skip.from_index, event.skip.to_index)
        case "end_of_segment":
            end = event.end_of_segment
            return ct.SegmentEnded(sub, end.segment, end.sealed_len, end.next_segment, end.next_server_address)
        case "refused":
            return ct.Refused(sub, _error(event.refused.error), event.refused.server_address)
        case "revoked":
            return ct.Refused(sub, _error(event.revoked.error))
        case "acks_confirmed":
            return ct.AcksConfirmed(sub, event.acks_confirmed.number)
        case "tokens_void":
            return ct.TokensVoid(sub, tuple(event.tokens_void.tokens))
        case "gap":
            gap = event.gap
            return ct.GapDeclared(sub, gap.segment, gap.from_index, gap.reason, gap.to_index)
        case "dropped":
            told_of = event.dropped
            return ct.Dropped(sub, told_of.from_offset, told_of.segment, told_of.to_index, told_of.messages)
        case _:
            return ct.Timer()  # an event of a newer broker, which an exclusive consumer does not need


def _error(error: common_pb2.Error) -> ReplyError:
    return ReplyError(error.number, error.message, error.retry_after_ms)
