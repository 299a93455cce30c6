"""The producer's core against the model of a log, under random losses, refusals, moves and waits.

In every run order is kept, nothing is stored twice, each outcome is true, and all is settled when the faults end. Each
seed draws its own weights of events (some never happen), so that rare mixes come up as well.
"""

from __future__ import annotations

import random
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from seriatim._core.producer import (
    Abandon,
    Connected,
    Disconnected,
    Effect,
    Ended,
    Enqueue,
    Event,
    OpenStream,
    Outcome,
    PartitionProducer,
    ProducerConfig,
    Resolve,
    Resolved,
    Send,
    Settled,
    Timer,
)

from .log_model import Brokers, Stream

WINDOW = 3
MS = 1000
ADDRESSES = ("a:1", "b:1", "c:1")
STEPS = 120


class World:
    """The caller of the core, the network and the brokers, all moved by one seed."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        config = ProducerConfig(
            window_batches_max=WINDOW,
            delivery_timeout_ms=self.random.choice([300, 600, 3000]),
            reply_timeout_ms=self.random.choice([20, 200, 1000]),
        )
        self.core = PartitionProducer(config)
        self.brokers = Brokers()
        self.now_us = 0
        self.enqueued = 0
        self.opening: str | None = None
        self.resolving = False
        self.settled: dict[int, Settled] = {}
        self.broken_streams: set[int] = set()
        self.bodies: dict[tuple[int, int], int] = {}
        actions: list[tuple[Callable[[], None], Callable[[], bool], float]] = [
            (self.enqueue, lambda: self.core.unsettled_count < WINDOW + 2, 1),
            (self.answer_open, lambda: self.opening is not None, 2),
            (self.answer_resolve, lambda: self.resolving, 1),
            (self.deliver_frame, lambda: any(s.frames for s in self.brokers.streams), 2),
            (self.deliver_reply, lambda: any(s.replies for s in self.live_streams()), 2),
            (self.commit, lambda: self.brokers.open_segment.commit < len(self.brokers.open_segment.log), 1),
            (self.break_stream, lambda: bool(self.live_streams()), 0.5),
            (self.switch, lambda: True, 0.5),
            (self.open_over, lambda: not any(s.unsettled for s in self.brokers.segments), 0.2),
            (self.settle, lambda: any(s.unsettled for s in self.brokers.segments), 0.2),
            (self.wait, lambda: True, 0.5),
            (self.continue_as_a_copy, lambda: True, 0.1),
        ]
        self.actions = [
            (action, possible, weight * self.random.choice([0.1, 0.5, 1, 2])) for action, possible, weight in actions
        ]

    def run(self) -> None:
        for _ in range(STEPS):
            possible = [(action, weight) for action, is_possible, weight in self.actions if is_possible()]
            action = self.random.choices([a for a, _ in possible], [w for _, w in possible])[0]
            action()
            self.check_always()
        self.check_at_the_end()

    # ---- the caller ----------------------------------------------------------------------------------

    def step(self, event: Event) -> None:
        for effect in self.core.step(event, self.now_us, self.random.random()):
            self.do(effect)

    def do(self, effect: Effect) -> None:
        match effect:
            case Send():
                assert effect.stream not in self.broken_streams
                self.brokers.send(effect)
            case OpenStream():
                self.opening = effect.address
            case Resolve():
                assert not self.resolving
                self.resolving = True
            case Settled():
                assert effect.batch_id not in self.settled, "settled twice"
                self.settled[effect.batch_id] = effect
            case Ended():
                raise AssertionError("no producer fences this one")

    def live_streams(self) -> list[Stream]:
        return [s for s in self.brokers.streams if s.number not in self.broken_streams]

    # ---- faults and progress -------------------------------------------------------------------------

    def enqueue(self) -> None:
        if self.random.random() < 0.1:
            self.brokers.poison.add(self.enqueued)
        self.enqueued += 1
        self.step(Enqueue(self.enqueued - 1, self.random.randint(1, 3), 10))

    def answer_open(self) -> None:
        self.finish_open(works=self.random.random() < 0.8)

    def finish_open(self, *, works: bool) -> None:
        address, self.opening = self.opening, None
        assert address is not None
        if works:
            stream = self.brokers.connect(address)
            self.step(Connected(address, stream.number, 16, 1 << 20))
        else:
            self.step(Disconnected(address, None))

    def answer_resolve(self) -> None:
        self.resolving = False
        older = [r for r in self.brokers.routes if self.random.random() < 0.3]
        self.step(Resolved(self.random.choice([None, self.brokers.route, self.brokers.route, *older])))

    def deliver_frame(self) -> None:
        stream = self.random.choice([s for s in self.brokers.streams if s.frames])
        overloaded = self.random.random() < 0.1
        self.brokers.deliver(stream, overloaded=overloaded, with_route=self.random.random() < 0.5)

    def deliver_reply(self) -> None:
        stream = self.random.choice([s for s in self.live_streams() if s.replies])
        if len(stream.replies) > 1 and self.random.random() < 0.1:
            stream.replies.rotate(-1)  # nothing in the contract forbids it
        self.step(stream.replies.popleft())

    def commit(self) -> None:
        open_segment = self.brokers.open_segment
        self.brokers.commit(self.random.randint(open_segment.commit + 1, len(open_segment.log)))

    def break_stream(self) -> None:
        """The client sees the end; what it sent may still arrive later."""
        self.break_at_client(self.random.choice(self.live_streams()), frames_arrive=self.random.random() < 0.5)

    def break_at_client(self, stream: Stream, *, frames_arrive: bool) -> None:
        self.broken_streams.add(stream.number)
        stream.open = False
        if not frames_arrive:
            stream.frames.clear()
        self.step(Disconnected(stream.address, stream.number))

    def switch(self) -> None:
        open_segment = self.brokers.open_segment
        sealed_len = self.random.randint(open_segment.commit, len(open_segment.log))
        self.brokers.switch(self.random.choice(ADDRESSES), sealed_len, with_route=self.random.random() < 0.5)

    def open_over(self) -> None:
        self.brokers.open_over(self.random.choice(ADDRESSES))

    def settle(self) -> None:
        segment = next(s for s in self.brokers.segments if s.unsettled)
        self.brokers.settle(segment, self.random.randint(segment.commit, len(segment.log)))

    def wait(self) -> None:
        self.now_us += self.random.choice([1, 10, 100, 250, 1000]) * MS
        self.step(Timer())

    def continue_as_a_copy(self) -> None:
        twin = self.core.copy()
        assert twin.freeze() == self.core.freeze()
        self.core = twin

    # ---- what must hold ------------------------------------------------------------------------------

    def check_always(self) -> None:
        failed = {n for n, s in self.settled.items() if s.outcome is Outcome.FAILED}
        assert not failed & self.brokers.stored_ids(), "called failed, and stored"
        if not self.core.is_idle:
            assert self.core.wake_at_us is not None

    def check_at_the_end(self) -> None:
        self.drain()
        for segment in self.brokers.segments:
            if segment.unsettled:
                self.brokers.settle(segment, len(segment.log))
        order = self.brokers.read()
        assert order == sorted(set(order)), "reordered, or there twice"
        ok = {n for n, s in self.settled.items() if s.outcome is Outcome.OK}
        assert ok <= set(order), "acknowledged, and not there"
        self.check_always()
        assert self.settled.keys() == set(range(self.enqueued)), "never reported"
        # After the faults one more batch gets through: the sequence is in step again.
        self.step(Enqueue(self.enqueued, 1, 1))
        self.drain()
        assert self.settled[self.enqueued].outcome is Outcome.OK
        assert self.brokers.read()[-1] == self.enqueued

    def drain(self) -> None:
        """No more faults; time passes until all is settled."""
        for _ in range(400):
            self.network_settles()
            if self.core.is_idle and not any(s.frames for s in self.brokers.streams):
                return
            if self.core.wake_at_us is not None:
                self.now_us = max(self.now_us, self.core.wake_at_us)
            self.step(Timer())
        raise AssertionError("not settled in the end")

    def network_settles(self) -> None:
        while True:
            for stream in self.live_streams():
                if not stream.open:
                    self.break_at_client(stream, frames_arrive=False)
            if self.opening is not None:
                self.finish_open(works=True)
            elif self.resolving:
                self.resolving = False
                self.step(Resolved(self.brokers.route))
            elif frames := [s for s in self.brokers.streams if s.frames]:
                self.brokers.deliver(frames[0])
            elif self.brokers.open_segment.commit < len(self.brokers.open_segment.log):
                self.brokers.commit(len(self.brokers.open_segment.log))
            elif replies := [s for s in self.live_streams() if s.replies]:
                self.step(replies[0].replies.popleft())
            else:
                return


@settings(max_examples=600, deadline=None, derandomize=True, database=None)
@given(seed=st.integers(0, 1 << 32))
def test_order_and_outcomes_hold(seed: int) -> None:
    World(seed).run()


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_order_and_outcomes_hold_over_many_seeds() -> None:
    for seed in range(20_000):
        try:
            World(seed).run()
        except AssertionError as exc:
            raise AssertionError(f"seed {seed}: {exc}") from exc


def test_the_seeds_reach_every_outcome_and_the_next_epoch() -> None:
    outcomes: dict[Outcome, int] = dict.fromkeys(Outcome, 0)
    epochs = 0
    for seed in range(100):
        world = World(seed)
        world.run()
        epochs += world.core.epoch
        for settled in world.settled.values():
            outcomes[settled.outcome] += 1
    assert min(outcomes.values()) > 20, outcomes
    assert epochs > 20


def test_abandoned_in_the_middle_tells_the_truth() -> None:
    for seed in range(200):
        world = World(seed)
        for action, is_possible, _ in world.actions * 3:
            if is_possible():
                action()
        ended = world.core.step(Abandon(), world.now_us)
        world.settled |= {e.batch_id: e for e in ended if isinstance(e, Settled)}
        world.check_always()
        assert len(world.settled) == world.enqueued
        assert isinstance(ended[-1], Ended)
