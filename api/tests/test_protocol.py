"""A peer with another protocol is refused, and the text says which of the two sides is older."""

from __future__ import annotations

import pytest
from seriatim_api.errors import UnsupportedVersionError
from seriatim_api.protocol import PROTOCOL, check_protocol


def test_the_present_protocol_is_taken() -> None:
    check_protocol(PROTOCOL, "the client", "the broker")


@pytest.mark.parametrize(("step", "older"), [(-1, "the client"), (1, "the broker")])
def test_another_protocol_is_refused_and_the_older_side_is_named(step: int, older: str) -> None:
    with pytest.raises(UnsupportedVersionError) as caught:
        check_protocol(PROTOCOL + step, "the client", "the broker")
    assert f"the client speaks protocol {PROTOCOL + step}, and the broker speaks {PROTOCOL}" in caught.value.message
    assert caught.value.message.endswith(f"Remedy: upgrade {older}")
