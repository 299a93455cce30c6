"""Messages with many rows travel in pieces that are read when they come."""

from __future__ import annotations

import pytest
from seriatim_api.errors import BadRequestError
from seriatim_api.ids import PartitionId
from seriatim_api.v1 import peer_pb2
from seriatim_broker.core.values import messages as m
from seriatim_broker.core.values.keyed import ConsumerGroupSettings, ConsumerMode, RetryPolicy
from seriatim_broker.core.values.log import CursorState, HandOverId, HandOverState, LedgerChange
from seriatim_broker.rpc.links import codec, peer_frames

P = PartitionId(7)
ROWS = tuple((b"k%05d" % number, b"v" * (number % 200)) for number in range(20_000))
SETTINGS = ConsumerGroupSettings(ConsumerMode.KEY_ORDERED, RetryPolicy(delays_ms=(1_000, 2_000, 3_000)))
CURSOR = CursorState(3, "g", 1, 5, 9, settings=SETTINGS, term_base=7)
MESSAGES = (
    m.HandOver(P, HandOverState(3, "g", 1, HandOverId(2, 9), ROWS)),
    m.ReplicateLedger(P, 3, 4, 11, 10, CURSOR, LedgerChange(ROWS, (), is_full=True)),
    m.ReplicateLedger(P, 3, 4, 11, 10, CURSOR, LedgerChange(ROWS, tuple(name for name, _ in ROWS))),
    m.ReplicateLedger(P, 3, 4, 11, 10, CURSOR, LedgerChange((), tuple(b"d" * 900 for _ in range(2_000)))),
)


def frames_of(message: m.Message) -> list[peer_pb2.PeerFrame]:
    """The frames of one message."""
    return [peer_pb2.PeerFrame.FromString(frame) for frame in peer_frames.write_control_frames([message])]


@pytest.mark.parametrize("message", MESSAGES)
def test_a_message_with_many_rows_arrives_as_it_was_sent(message: m.Message) -> None:
    reader = peer_frames.ControlReader()
    between = m.Heartbeat(1)
    sent = [between, message, between, message]
    frames = list(peer_frames.write_control_frames(sent))
    assert [one for frame in frames for one in reader.read(frame)] == sent
    parts = [frame for frame in map(peer_pb2.PeerFrame.FromString, frames) if frame.part]
    assert len(parts) >= 6
    assert all(frame.is_piece and len(frame.part) <= peer_frames.PIECE_SIZE_BYTES for frame in parts)


def test_a_message_with_few_rows_is_one_frame() -> None:
    few = m.ReplicateLedger(P, 3, 4, 11, 10, CURSOR, LedgerChange(ROWS[:100]))
    (frame,) = frames_of(few)
    assert [codec.decode(message) for message in frame.messages] == [few]


def test_pieces_of_other_messages_are_refused() -> None:
    first, second, *_ = frames_of(MESSAGES[0])
    other = frames_of(MESSAGES[1])[1]
    heartbeat = codec.encode(m.Heartbeat(1))
    for wrong in (
        peer_pb2.PeerFrame(part=other.part, parts_left=second.parts_left, is_piece=True),
        peer_pb2.PeerFrame(part=second.part, parts_left=second.parts_left),
        peer_pb2.PeerFrame(part=second.part, parts_left=second.parts_left + 1, is_piece=True),
        peer_pb2.PeerFrame(part=heartbeat, parts_left=second.parts_left, is_piece=True),
        peer_pb2.PeerFrame(part=b"\xff", parts_left=second.parts_left, is_piece=True),
    ):
        reader = peer_frames.ControlReader()
        assert reader.read(first.SerializeToString()) == []
        with pytest.raises(BadRequestError):
            reader.read(wrong.SerializeToString())
    with pytest.raises(BadRequestError):
        peer_frames.ControlReader().read(peer_pb2.PeerFrame(part=heartbeat, is_piece=True).SerializeToString())
