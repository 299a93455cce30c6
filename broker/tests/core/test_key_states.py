"""What is known of a key that waits is known of its first message, and ends with it."""

from __future__ import annotations

from dataclasses import replace

import pytest
from seriatim_api.ids import make_offset
from seriatim_broker.core.values import effects as fx
from seriatim_broker.core.values import events as ev
from seriatim_broker.core.values.chain import trim
from seriatim_broker.core.values.keyed import KeyOperation, KeyPhase, SeenKey
from seriatim_broker.core.values.log import LedgerRow
from seriatim_broker.core.values.segment import Start

from .keyed_support import QUICK, KeyedServing, offsets
from .support import GROUP, P
from .test_forwarding import Forwarding, forwarding

LONG = replace(QUICK, attempts_max=3, delays_ms=(600_000, 600_000))


def drops_below(bench: KeyedServing, index: int) -> None:
    """Retention drops the messages of segment 1 below that index."""
    bench.chain = trim(bench.part.chain, 1, Start(index, 0, 0), 1)  # type: ignore[arg-type]
    bench.read_chain(bench.chain)
    bench.deliver()


def delayed(keys: str, *, is_aside: bool) -> KeyedServing:
    """A consumer failed on the first message of key a, which waits for 10 minutes; other messages are acknowledged."""
    bench = KeyedServing(keys, policy=LONG)
    bench.serve()
    keyed = bench.keyed
    first, *others = bench.runs()
    bench.nack(first)
    for run in others:
        bench.acks(run)
    if is_aside:
        keyed.set_aside(keyed.line.keys[b"ka"])
    bench.deliver()
    bench.clear()
    return bench


@pytest.mark.parametrize("is_aside", [False, True])
def test_key_goes_on_when_its_failed_message_is_dropped(is_aside: bool) -> None:
    """Rule `delay-ends-with-message`."""
    bench = delayed("aab", is_aside=is_aside)
    drops_below(bench, 1)
    (run,) = bench.runs()
    assert (run.offsets, run.attempt) == (offsets([1]), 1)
    assert [event.from_offset for event in bench.delivered(fx.Dropped)] == [make_offset(1, 0)]
    bench.nack(run)
    bench.deliver()
    keyed = bench.keyed
    assert (keyed.line.phase_counts[KeyPhase.RETRY], keyed.line.keys[b"ka"].attempts) == (1, 1), "by its own failure"


@pytest.mark.parametrize("is_aside", [False, True])
def test_key_of_which_all_is_dropped_leaves_no_record(is_aside: bool) -> None:
    bench = delayed("aab", is_aside=is_aside)
    drops_below(bench, 3)
    keyed = bench.keyed
    assert not any((keyed.line.keys, keyed.line.singles))
    assert [name for name in bench.rows() if b"ka" in name] == []


@pytest.mark.parametrize("held", [0, 20])
def test_message_behind_a_dropped_one_is_not_forwarded(held: int) -> None:
    """Of the keys that wait for the dead-letter topic, only the first 16 are looked at in each step."""
    names = "bcdefghijklmnopqrstu"[:held]
    bench = forwarding(names + "aa")
    bench.unreadable = set(offsets(range(held + 1)))
    bench.fail(*names, "a")
    bench.deliver()
    drops_below(bench, held + 1)
    assert bench.granted() == [[held + 1]]
    assert not bench.keyed.forwarder.waiting


def test_key_in_the_dead_letter_order_is_released() -> None:
    bench: Forwarding = forwarding("aab")
    bench.unreadable = set(offsets([0]))
    bench.fail("a")
    bench.deliver()
    seen = SeenKey(b"ka", 0, make_offset(1, 0), 1)
    bench.do(ev.OperateKeys(2, P, GROUP, KeyOperation.RELEASE, (seen,), bench.now_us + 10**6))
    bench.deliver()
    assert bench.granted() == [[0, 1]]
    assert not bench.keyed.forwarder.waiting
    assert bench.keyed.line.keys[b"ka"].phase is not KeyPhase.FORWARDING


@pytest.mark.parametrize("is_dropped_first", [False, True], ids=["dropped later", "dropped while it is granted"])
def test_attempt_on_a_dropped_message_ends_with_its_server(is_dropped_first: bool) -> None:
    """Rule `granted-and-gone`: the next server knows the attempt, and does not read the message any more."""
    bench = KeyedServing("aab", policy=replace(QUICK, delays_ms=(100, 100)))
    bench.serve()
    run = next(run for run in bench.runs() if run.offsets[0] == make_offset(1, 0))
    bench.nack(run)
    for _ in range(3):
        bench.deliver()
    assert [run.attempt for run in bench.runs()] == [2], "it is granted again"
    if is_dropped_first:
        drops_below(bench, 1)
    rows = tuple(LedgerRow(1, GROUP, name, value) for name, value in bench.rows().items())
    successor = KeyedServing("aab", policy=bench.policy, cursors=(bench.part.cursors[GROUP],), rows=rows)
    successor.chain = trim(successor.chain, 1, Start(1, 0, 0), 1)
    successor.read_chain(successor.chain)
    successor.begin()
    successor.read_chain(successor.part.chain)  # if the drop is noted, the chain is read once more
    successor.cursor()
    successor.deliver()
    assert [(run.offsets[0], run.attempt) for run in successor.runs() if run.offsets[0] == make_offset(1, 1)] == [
        (make_offset(1, 1), 1)
    ]
