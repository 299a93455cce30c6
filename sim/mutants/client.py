# ruff: noqa: SLF001 - a mutant replaces steps that no other code may touch
"""Rules of the client, removed one at a time: those of its ordering core, which runs in every simulated world."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from seriatim._core import consumer, giving_up, joining, producer
from seriatim._core.consumer_types import Acknowledge, Deliver, Delivered
from seriatim._core.producer_runs import ProducerRun
from seriatim._core.producer_types import Effect, Enqueue, Send
from seriatim._core.send_attempts import Batch

from .. import clients
from .mutation import Mutation, Patch

_ORDER = ("GAP", "I1", "I2", "I9", "RT", "CORE")


def _resend_out_of_order() -> list[Patch]:
    real = producer.PartitionProducer._send

    def send(self: producer.PartitionProducer, now_us: int, effects: list[Effect]) -> None:
        """The newest of what is sent again goes first."""
        before = len(effects)
        real(self, now_us, effects)
        sent = effects[before:]
        first = sent[0] if sent else None
        if isinstance(first, Send) and first.starts_run and first.producer_run > 1 and len(sent) > 1:
            again = [replace(effect, starts_run=False) for effect in reversed(sent) if isinstance(effect, Send)]
            effects[before:] = [replace(again[0], starts_run=True), *again[1:]]

    return [(producer.PartitionProducer, "_send", send)]


def _cut_anew() -> list[Patch]:
    real_attempt = ProducerRun.begin_send_attempt
    real_send = producer.PartitionProducer._send
    real_carry = clients.SimProducer._attempt
    again: set[tuple[int, int, int]] = set()

    def attempt(self: ProducerRun, batch: Batch, stream: int, route_epoch: int) -> Send:
        if batch.unknown_end and batch.message_count > 1:
            again.add((batch.batch_id, self.number, batch.base_sequence))
        return real_attempt(self, batch, stream, route_epoch)

    def send(self: producer.PartitionProducer, now_us: int, effects: list[Effect]) -> None:
        """What has an unknown end goes out again in two parts: the last message for itself."""
        before = len(effects)
        real_send(self, now_us, effects)
        cut: list[Effect] = []
        for effect in effects[before:]:
            if isinstance(effect, Send) and (effect.batch_id, effect.producer_run, effect.base_sequence) in again:
                first_part = effect.message_count - 1
                cut.append(replace(effect, message_count=first_part))
                cut.append(
                    replace(
                        effect,
                        batch_id=effect.batch_id + first_part,
                        message_count=1,
                        base_sequence=effect.base_sequence + first_part,
                        starts_run=False,
                    )
                )
            else:
                cut.append(effect)
        effects[before:] = cut

    def carry(self: clients.SimProducer, effect: Send) -> None:
        # A body is the id of its first message, and those of a batch follow one another.
        self._bodies.setdefault(effect.batch_id, effect.batch_id.to_bytes(8, "big"))
        real_carry(self, effect)

    return [
        (ProducerRun, "begin_send_attempt", attempt),
        (producer.PartitionProducer, "_send", send),
        (clients.SimProducer, "_attempt", carry),
    ]


def _forgotten_at_a_redirect() -> list[Patch]:
    real = ProducerRun.start

    def start(self: ProducerRun, epoch: int, batches: Any) -> None:
        """The next run begins behind what is on its way already."""
        sent = sum(1 for batch in batches if batch.first_producer_run and batch.epoch == epoch and not batch.acked)
        real(self, epoch, batches)
        self.sent_count = sent

    return [(ProducerRun, "start", start)]


def _last_attempt_decides() -> list[Patch]:
    def end_send_attempt(self: Batch, run: int, *, proven: bool) -> bool:
        """An attempt that is proven to have failed speaks for all of them."""
        if run not in self.open_producer_runs:
            return False
        self.open_producer_runs = tuple(other for other in self.open_producer_runs if other != run)
        self.unknown_end = not proven
        if proven:
            self.open_producer_runs = ()
        return True

    return [(Batch, "end_send_attempt", end_send_attempt)]


def _sequences_are_kept() -> list[Patch]:
    real = giving_up.give_up

    def give_up(queue: Any, batch: Batch, error: Any, effects: list[Effect]) -> None:
        """A batch that failed keeps its sequence, and so do those behind it."""
        numbers = [(other, other.epoch, other.base_sequence) for other in queue.batches]
        following = queue.epoch, queue.next_sequence
        doubtful = batch.doubtful or any(other.acked for other in queue.batches)
        real(queue, batch, error, effects)
        if doubtful:
            return
        for other, epoch, base_sequence in numbers:
            other.epoch, other.base_sequence = epoch, base_sequence
        queue.epoch, queue.next_sequence = following

    return [(giving_up, "give_up", give_up), (producer, "give_up", give_up)]


def _unknown_goes_on_in_its_epoch() -> list[Patch]:
    real = giving_up._go_on_in_next_epoch

    def go_on(queue: Any, at: int, error: Any, effects: list[Effect]) -> None:
        """What was given up as unknown leaves its numbers to those behind it, in the same epoch."""
        epoch, first = queue.epoch, queue.batches[at].base_sequence
        real(queue, at, error, effects)
        queue.epoch = epoch
        for batch in queue.batches:
            batch.epoch = epoch
        sequence = first
        for batch in list(queue.batches)[at:]:
            batch.base_sequence = sequence
            sequence += batch.message_count
        queue.next_sequence = sequence

    return [(giving_up, "_go_on_in_next_epoch", go_on)]


def _wait_does_not_count() -> list[Patch]:
    real = producer.PartitionProducer._enqueue

    def enqueue(self: producer.PartitionProducer, event: Enqueue, now_us: int, effects: list[Effect]) -> None:
        """The deadline of a batch counts from when it was cut."""
        real(self, replace(event, waited_us=0), now_us, effects)

    return [(producer.PartitionProducer, "_enqueue", enqueue)]


def _delivered_is_acknowledged() -> list[Patch]:
    real = consumer.PartitionConsumer._delivered

    def delivered(self: consumer.PartitionConsumer, event: Delivered, effects: list[Any]) -> None:
        """What was handed to the application needs no word from it."""
        real(self, event, effects)
        if any(isinstance(effect, Deliver) for effect in effects):
            self._acknowledge(Acknowledge(self.grant, self.segment, self.next_index))

    return [(consumer.PartitionConsumer, "_delivered", delivered)]


def _late_deliveries_count() -> list[Patch]:
    def lapses_at_us(self: joining.Joining) -> int:
        """A grant lives for ever, whether or not its server answers heartbeats."""
        return self._alive_us + (1 << 50)

    return [(joining.Joining, "_lapses_at_us", property(lapses_at_us))]


MUTATIONS: dict[str, Mutation] = {
    "client-resend-order": Mutation(
        "resent batches go out in the original order", _resend_out_of_order, _ORDER, layer="client"
    ),
    "client-cut-anew": Mutation("a batch is never cut anew", _cut_anew, _ORDER, layer="client"),
    "client-forgets": Mutation(
        "a producer run begins with the oldest unacknowledged batch", _forgotten_at_a_redirect, _ORDER, layer="client"
    ),
    "client-last-attempt": Mutation(
        "a batch is failed only if every send attempt failed",
        _last_attempt_decides,
        ("I10", "CORE"),
        "impatient",
        layer="client",
    ),
    "client-keeps-sequences": Mutation(
        "a failed batch gives its sequence back", _sequences_are_kept, _ORDER, "impatient", layer="client"
    ),
    "client-same-epoch": Mutation(
        "after an unknown batch a new producer epoch begins",
        _unknown_goes_on_in_its_epoch,
        _ORDER,
        "impatient",
        layer="client",
    ),
    "client-counts-the-wait": Mutation(
        "the deadline of a batch counts from when the application gave its oldest message",
        _wait_does_not_count,
        ("LATE",),
        "impatient",
        layer="client",
    ),
    "client-acks-early": Mutation(
        "only the application acknowledges", _delivered_is_acknowledged, ("I3", "I8"), layer="client"
    ),
    "client-late-deliveries": Mutation(
        "a grant lives as long as its heartbeats are answered",
        _late_deliveries_count,
        ("I9", "I11"),
        "held-frames",
        layer="client",
    ),
}
