"""Mutated inputs for every decoder of bytes that other processes wrote, as far as a test has time for them."""

from __future__ import annotations

import pytest

from tools.mutated_bytes.__main__ import MODULE, examine
from tools.mutated_bytes.child import decoders_of

INPUTS = 100
SEED = 2


def test_decoders_refuse_what_they_cannot_read() -> None:
    names = list(decoders_of(MODULE))
    outcomes = examine(names, SEED, 0, INPUTS)
    assert [outcome.name for outcome in outcomes] == names
    assert [problem for outcome in outcomes for problem in outcome.problems] == []
    assert [outcome.name for outcome in outcomes if not outcome.accepted] == [], "some inputs are right"


@pytest.mark.parametrize(
    ("planted", "said"),
    [
        ("signal", "signal 11"),
        ("untyped", "KeyError"),
        ("memory", "memory grew"),
        ("endless", "TooLong"),
    ],
)
def test_what_no_decoder_may_do_is_seen(planted: str, said: str) -> None:
    (outcome,) = examine([planted], SEED, 0, 3, module="tools.mutated_bytes.planted")
    assert said in outcome.problems[0]
