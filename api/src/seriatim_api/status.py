"""Maps the error catalogue to gRPC and back.

A broker sends an error as the gRPC status code of its class, its message, and a trailing metadata entry with its number
and details. So the client can raise the same class.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress

import grpc
from google.protobuf.message import DecodeError

from seriatim_api import errors
from seriatim_api.v1 import common_pb2

METADATA_KEY = "seriatim-error-bin"

STATUS: dict[int, grpc.StatusCode] = {
    number: grpc.StatusCode[kind.grpc_status] for number, kind in errors.CATALOGUE.items()
}
"""The gRPC status code of each number in the catalogue."""

_FALLBACK: dict[grpc.StatusCode, type[errors.SeriatimError]] = {
    grpc.StatusCode.UNAVAILABLE: errors.UnavailableError,
    grpc.StatusCode.CANCELLED: errors.UnavailableError,
    grpc.StatusCode.DEADLINE_EXCEEDED: errors.DeadlineExceededError,
    grpc.StatusCode.RESOURCE_EXHAUSTED: errors.OverloadedError,
    grpc.StatusCode.UNIMPLEMENTED: errors.UnsupportedVersionError,
    grpc.StatusCode.INVALID_ARGUMENT: errors.BadRequestError,
}


def error_to_proto(error: errors.SeriatimError) -> common_pb2.Error:
    """The error as a protobuf message, for frames that carry several outcomes."""
    return common_pb2.Error(
        number=error.number,
        message=error.message,
        retry_after_ms=error.retry_after_ms or 0,
        details=error.details,
    )


def error_from_proto(message: common_pb2.Error) -> errors.SeriatimError:
    """The exception from the message of `error_to_proto`."""
    return errors.make_error(
        message.number,
        message.message,
        retry_after_ms=message.retry_after_ms or None,
        details=dict(message.details),
    )


def to_status(error: errors.SeriatimError) -> tuple[grpc.StatusCode, str, tuple[tuple[str, bytes], ...]]:
    """The code, the text and the trailing metadata for `context.abort`."""
    code = STATUS.get(error.number, grpc.StatusCode.UNKNOWN)
    return code, error.message, ((METADATA_KEY, error_to_proto(error).SerializeToString()),)


def from_status(
    code: grpc.StatusCode, text: str | None, trailing_metadata: Iterable[tuple[str, str | bytes]] | None
) -> errors.SeriatimError:
    """The exception for a failed call: from our metadata if it has any that can be read, else from gRPC's code."""
    for key, value in trailing_metadata or ():
        if key == METADATA_KEY and isinstance(value, bytes):
            with suppress(DecodeError):
                return error_from_proto(common_pb2.Error.FromString(value))
    kind = _FALLBACK.get(code, errors.UnavailableError)
    return kind(f"{code.name}: {text or 'no reason given'}")
