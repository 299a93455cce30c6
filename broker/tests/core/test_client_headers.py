"""What a client may not say in the header of a batch, because brokers do not do it, or only they may say it."""

from __future__ import annotations

from dataclasses import replace

import pytest
from seriatim_api.batch import FLAG_DELAYED, FLAG_FIRED, FLAG_NAMES, FLAG_SOURCE_SEQUENCE, FLAG_STAGED, parse_header
from seriatim_api.errors import BadRequestError
from seriatim_api.publications import STAGE_TOPIC
from seriatim_broker.core.values import events as ev
from seriatim_broker.core.values.log import PutBatch

from .support import M01, Bench, P, first_chain, header, opened_master


def sent(bench: Bench, *, source_sequence: int = 0, flags: int = 0, byte: int = 0) -> list[str]:
    """Errors of a batch with this header; `byte`: one that is set to 1."""
    made = header(flags=flags, source_sequence=source_sequence)
    raw = bytearray(made.raw)
    if byte:
        raw[byte] = 1
    bench.do(ev.Append(1, P, parse_header(bytes(raw)), b"body", 1, True, ev.AckLevel.REPLICATED_FLUSHED))
    assert all(isinstance(error, BadRequestError) for error in bench.refused().values())
    assert len(bench.writes(PutBatch)) == 1 - len(bench.refused())
    return [str(error) for error in bench.refused().values()]


def stage() -> Bench:
    """A master of the stage topic."""
    bench = Bench()
    bench.open(replace(first_chain(), topic=STAGE_TOPIC))
    bench.follow(M01)
    return bench


@pytest.mark.parametrize("flag", [FLAG_DELAYED, FLAG_SOURCE_SEQUENCE, FLAG_FIRED], ids=FLAG_NAMES.get)
def test_a_flag_without_effect_is_refused_by_its_name(flag: int) -> None:
    for (error,) in (sent(opened_master(), flags=flag), sent(stage(), flags=flag | FLAG_STAGED)):
        assert FLAG_NAMES[flag] in error
        assert "nothing was stored" in error


def test_a_source_sequence_without_flag_is_refused() -> None:
    for bench, flags in ((opened_master, 0), (stage, FLAG_STAGED)):
        (source,) = sent(bench(), source_sequence=1, flags=flags)
        assert "SOURCE_SEQUENCE" in source


@pytest.mark.parametrize("byte", [3, *range(160, 184)])
def test_a_byte_of_brokers_or_reserved_is_refused(byte: int) -> None:
    (error,) = sent(opened_master(), byte=byte)
    assert "zeros" in error


def test_a_header_without_any_of_them_is_taken() -> None:
    assert not sent(opened_master())
    assert not sent(stage(), flags=FLAG_STAGED)
