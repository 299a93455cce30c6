"""What an idle partition costs: a broker has thousands of them, and most of the day nothing happens in them."""

from __future__ import annotations

import gc
import tracemalloc

import pytest
from seriatim_api.ids import PartitionId
from seriatim_broker.core.values import effects as fx
from seriatim_broker.core.values import events as ev
from seriatim_broker.core.values import messages as msg
from seriatim_broker.core.values.chain import create
from seriatim_broker.core.values.producers import NO_TABLE
from seriatim_broker.core.values.states import State

from .support import M00, M01, M10, M20, MS, SEND_CHAIN, STREAM, TOPIC, Bench, P, Serving, attempt, opening

PARTITION_COUNT = 500
IDLE_SIZE_BYTES_MAX = 2_960
"""Of core state a partition: 2.95 KB were seen for a master, 2.1 KB for a slave. The sequence of segments takes
150 bytes of it. All of a broker may grow by 4 KB for each."""


def _open(bench: Bench, number: int, master: bool) -> None:
    """A switcher prepares and opens the first segment of a partition here; master and slave are in step."""
    partition = PartitionId(number)
    members = (M00, M01) if master else (M01, M00)
    chain = create(partition, TOPIC, number, True, SEND_CHAIN, opening(1, members), number)
    segment = chain.open_segment
    bench.hear(M10, msg.PrepareRequest(partition, 1, segment.switch_attempt, members, True, False, NO_TABLE, None))
    bench.persist()
    bench.hear(M10, msg.ChainUpdate(chain, number))
    bench.persist()
    if master:
        bench.hear(M01, msg.TailAnswer(partition, 1, attempt(1), 0, 0, 0))
    else:
        bench.hear(M01, msg.TailRequest(partition, 1, attempt(1)))
    bench.clear()


@pytest.mark.parametrize("master", [True, False])
def test_an_idle_partition_is_small(master: bool) -> None:
    bench = Bench()
    for member in (M01, M10, M20):
        bench.link(member)
    _open(bench, 1, master)
    tracemalloc.start()
    try:
        gc.collect()  # rubbish of earlier tests, and of these, is no state
        before, _ = tracemalloc.get_traced_memory()
        for number in range(1000, 1000 + PARTITION_COUNT):
            _open(bench, number, master)
        gc.collect()
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    partitions = bench.core.partitions
    assert len(partitions) == PARTITION_COUNT + 1
    assert all(partition.logs[1].active for partition in partitions.values())
    assert (after - before) / PARTITION_COUNT < IDLE_SIZE_BYTES_MAX


def test_who_takes_the_last_item_out_of_a_map_leaves_no_empty_one() -> None:
    bench = Serving()
    bench.begin()
    bench.deliver()
    bench.ack(0)
    bench.do(ev.ResolveProducer(1, P, None, bench.now_us + MS))
    bench.do(ev.ConsumerGone(STREAM))
    bench.deliver()
    assert bench.delivered(fx.Batches)
    partition = bench.part
    assert not partition.consumer_groups
    assert not partition.writes
    assert not partition.waiters
    _check_no_empty_dict(partition)


def _check_no_empty_dict(state: State) -> None:
    for name in state._slot_names():
        value = getattr(state, name)
        assert not isinstance(value, dict) or value, f"{type(state).__name__}.{name}"
        for inner in value.values() if isinstance(value, dict) else (value,):
            if isinstance(inner, State):
                _check_no_empty_dict(inner)
