# ruff: noqa: SLF001 - a mutant replaces steps that no other code may touch
"""Rules of the client, removed one at a time: those of its ordering core, which runs in every simulated world."""

from __future__ import annotations

from dataclasses import replace

from seriatim._core import producer
from seriatim._core.producer_runs import ProducerRun
from seriatim._core.producer_types import Effect, Send
from seriatim._core.send_attempts import Batch

from .. import clients
from .mutation import Mutation, Patch
from .rows import mutations

_ORDER = ("GAP", "I1", "I2", "I9", "RT", "CORE")


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


MUTATIONS: dict[str, Mutation] = {
    "client-cut-anew": Mutation("a batch is never cut anew", _cut_anew, _ORDER, layer="client"),
} | mutations("""
[GAP I1 I2 I9 RT CORE impatient client]
client-resend-order [anything]: resent batches go out in the original order
@ seriatim._core.producer.PartitionProducer._send
- while run.sent_count < len(queue.batches):
+ if run.number > 1 and not run.sent_count:
+     run.expect_reply(self._reply_due_us(now_us))
+     for batch in reversed([each for each in queue.batches if each.epoch == epoch]):
+         effects.append(run.begin_send_attempt(batch, stream, route.epoch))
+ while run.sent_count < len(queue.batches):
client-forgets [anything]: a producer run begins with the oldest unacknowledged batch
@ seriatim._core.producer_runs.ProducerRun.start
- self.sent_count = self.in_flight_count = self.in_flight_bytes = 0
+ sent = [each for each in batches if each.first_producer_run and each.epoch == epoch and not each.acked]
+ self.sent_count, self.in_flight_count, self.in_flight_bytes = len(sent), 0, 0
client-last-attempt [I10 CORE]: a batch is failed only if every send attempt failed
@ seriatim._core.send_attempts.Batch.end_send_attempt
- self.unknown_end = self.unknown_end or not proven
+ self.unknown_end = not proven
+ if proven:
+     self.open_producer_runs = ()
client-keeps-sequences: a failed batch gives its sequence back
@ seriatim._core.giving_up.give_up
- other.renumber(batch.epoch, sequence)
+ pass
- queue.next_sequence = sequence
+ pass
client-same-epoch: after an unknown batch a new producer epoch begins
@ seriatim._core.giving_up._go_on_in_next_epoch
- queue.epoch += 1
+ pass
- sequence = 0
+ sequence = queue.batches[at].base_sequence
client-counts-the-wait [LATE]: the deadline of a batch counts from when the application gave its oldest message
@ seriatim._core.producer.PartitionProducer._enqueue
- now_us - event.waited_us +
+ now_us +
client-acks-early [I3 I8 anything]: only the application acknowledges
@ seriatim._core.consumer.PartitionConsumer._delivered
  self.next_index = self._given_below = end
+ self._acknowledge(Acknowledge(self.grant, self.segment, self.next_index))
client-late-deliveries [I9 I11 held-frames]: a grant lives as long as its heartbeats are answered
@ seriatim._core.joining.Joining._lapses_at_us
+ return self._alive_us + (1 << 50)
""")
"""By name."""
