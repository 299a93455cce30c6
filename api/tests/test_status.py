"""Errors of calls that failed."""

from __future__ import annotations

import grpc
import pytest
from seriatim_api import errors
from seriatim_api.status import METADATA_KEY, from_status, to_status


@pytest.mark.parametrize("metadata", [b"\xff", b"\x0a\xff", b"garbage"])
def test_metadata_that_cannot_be_read_leaves_the_code(metadata: bytes) -> None:
    found = from_status(grpc.StatusCode.DEADLINE_EXCEEDED, "late", [(METADATA_KEY, metadata)])
    assert type(found) is errors.DeadlineExceededError
    assert "late" in found.message


def test_an_error_comes_back_as_it_was_sent() -> None:
    error = errors.UnreadableBodyError("no record batch", size_bytes=7)
    found = from_status(*to_status(error))
    assert (type(found), found.message, found.details) == (type(error), error.message, error.details)
