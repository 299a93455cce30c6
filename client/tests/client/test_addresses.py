"""Which brokers a client may ask: those that it was given, and those that brokers named, up to a limit."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

from seriatim._transport.unary import ADDRESSES_MAX, Caller


async def test_addresses_of_brokers_that_are_gone_are_forgotten_and_those_that_were_given_never() -> None:
    caller = Caller(cast(Any, SimpleNamespace(silence=None, round_trips=None)), ["given:1"])
    living = [f"broker-{number}:1" for number in range(6)]
    for number in range(ADDRESSES_MAX):
        caller.learn([*living, f"gone-{number}:1"])
    caller.learn(living)  # as each answer names them
    asked = caller._order(None, None)
    assert len(asked) == ADDRESSES_MAX + 1
    assert asked[0] == "given:1"
    assert set(living) <= set(asked)
    assert "gone-0:1" not in asked
