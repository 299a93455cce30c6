"""Events and effects as short lines, for the story of a failing seed."""

from __future__ import annotations

import dataclasses
from typing import Any

from seriatim_api.batch import BatchHeader
from seriatim_api.errors import SeriatimError
from seriatim_api.ids import MemberId, RunId
from seriatim_broker.core.values import effects as fx
from seriatim_broker.core.values import events as ev
from seriatim_broker.core.values import messages as msg
from seriatim_broker.core.values.chain import Chain
from seriatim_broker.core.values.log import Batch
from seriatim_broker.core.values.segment import Segment

_NOISE = (ev.Tick, ev.Persisted, msg.Heartbeat, msg.HeartbeatAnswer, msg.LaneProbe)


def is_noise(thing: Any) -> bool:
    """Whether a reader of the story can do without it."""
    if isinstance(thing, ev.Received | fx.Send):
        return isinstance(thing.message, _NOISE)
    return isinstance(thing, _NOISE)


def brief(thing: Any) -> str:
    """A short text for any value of the core."""
    if isinstance(thing, bytes):
        return thing[-5:].hex()
    if isinstance(thing, Batch):
        return brief(thing.header)
    if isinstance(thing, BatchHeader):
        place = f"@{thing.segment}:{thing.base_index}" if thing.segment else ""
        return (
            f"<{thing.producer[:2].hex()} e{thing.producer_epoch} s{thing.base_sequence}+{thing.message_count}{place}>"
        )
    if isinstance(thing, MemberId):
        return thing.broker
    if isinstance(thing, RunId):
        return f"{thing.member.broker}/{thing.run}"
    if isinstance(thing, Chain):
        return f"epoch {thing.epoch} [{' '.join(_segment(segment) for segment in thing.segments)}]"
    if isinstance(thing, SeriatimError):
        return f"{type(thing).__name__}({thing.message})"
    if isinstance(thing, tuple | list) and not hasattr(thing, "_fields"):
        return f"({', '.join(brief(item) for item in thing)})"
    if dataclasses.is_dataclass(thing) and not isinstance(thing, type):
        parts = []
        for field in dataclasses.fields(thing):
            value = getattr(thing, field.name)
            if field.name in ("partition", "body", "stream"):
                continue
            parts.append(f"{field.name}={brief(value)}" if field.name not in ("message", "event") else brief(value))
        return f"{type(thing).__name__}({', '.join(parts)})"
    return str(thing)


def _segment(segment: Segment) -> str:
    members = "+".join(member.broker for member in segment.members)
    length = "" if segment.sealed_len is None else f"={segment.sealed_len}"
    mark = "?" if segment.incomplete_table else ""
    tail = f" tail {segment.tail_from}@{brief(segment.tail_copies)}" if segment.tail_copies else ""
    return (
        f"{segment.no}{mark}:{segment.state.value}{length} {members}/{segment.master_run}"
        f" att {brief(segment.switch_attempt)} srv {segment.server.broker}@{segment.server_epoch}"
        f" el {brief(segment.eligible)}{tail};"
    )
