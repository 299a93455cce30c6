"""The hello that begins each lane of a link: who dials or answers, of which cluster, and for which link."""

from __future__ import annotations

from google.protobuf.message import DecodeError
from seriatim_api.errors import BadRequestError, PreconditionError
from seriatim_api.ids import MemberId
from seriatim_api.protocol import PROTOCOL, check_protocol
from seriatim_api.v1 import peer_pb2
from seriatim_api.wire.frames import FrameError, read_fields, write_field

from ...interfaces.link import PeerIdentity


def write_hello(identity: PeerIdentity, session: bytes) -> bytes:
    """A frame, for either lane, with only a hello."""
    hello = peer_pb2.PeerHello(
        protocol=PROTOCOL,
        cluster_id=identity.cluster_id,
        broker=identity.member.broker,
        incarnation=identity.member.incarnation,
        run=identity.member_run,
        session=session,
        forms=identity.forms,
    )
    return b"".join(write_field(1, [hello.SerializeToString()]))


def read_hello(frame: bytes, cluster_id: str) -> tuple[PeerIdentity, bytes]:
    """The identity of the peer, and the session.

    Raises:
        BadRequestError: It is no hello.
        UnsupportedVersionError: The peer speaks a protocol that this version does not know.
        PreconditionError: The peer belongs to another cluster.
    """
    try:
        fields = dict(read_fields(frame))
        hello = peer_pb2.PeerHello.FromString(bytes(fields.get(1, b"")))
    except (FrameError, DecodeError) as exc:
        raise BadRequestError(f"a link begins with a hello: {exc}") from exc
    check_protocol(hello.protocol, f"broker {hello.broker[:40]}", "the broker at the other end")
    if hello.cluster_id != cluster_id:
        raise PreconditionError("the peer belongs to another cluster", theirs=hello.cluster_id, ours=cluster_id)
    if len(hello.session) != 16 or not hello.broker or not hello.incarnation or not hello.run:
        raise BadRequestError("the hello of a link names broker, incarnation, run and session")
    member = MemberId(hello.broker, hello.incarnation)
    return PeerIdentity(hello.cluster_id, member, hello.run, hello.forms), hello.session
