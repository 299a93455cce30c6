"""Rules of the client, removed one at a time: those of its ordering core, which runs in every simulated world."""

from .rows import mutations

MUTATIONS = mutations("""
[GAP I1 I2 I9 RT CORE impatient client]
client-resend-order [anything]: resent batches go out in the original order
@ seriatim._core.producer.PartitionProducer._send
- while run.sent_count < len(queue.batches):
+ if run.number > 1 and not run.sent_count:
+     run.expect_reply(self._reply_due_us(now_us))
+     for batch in reversed([each for each in queue.batches if each.epoch == epoch]):
+         effects.append(run.begin_send_attempt(batch, stream, route.epoch))
+ while run.sent_count < len(queue.batches):
client-cut-anew [anything]: a batch is never cut again
@ seriatim._core.producer.PartitionProducer._send
- effects.append(run.begin_send_attempt(batch, stream, route.epoch))
+ from dataclasses import replace
+ is_again = batch.unknown_end and batch.message_count > 1
+ sent = run.begin_send_attempt(batch, stream, route.epoch)
+ if is_again:  # the last message goes for itself
+     last, base = sent.message_count - 1, sent.base_sequence
+     effects.append(replace(sent, message_count=last))
+     sent = replace(sent, batch_id=sent.batch_id + last, message_count=1, base_sequence=base + last, starts_run=False)
+ effects.append(sent)
@ sim.programs.producers.SimProducer._attempt
- body = self._bodies[effect.batch_id]
+ body = self._bodies.setdefault(effect.batch_id, effect.batch_id.to_bytes(8, "big"))  # the id of its first message
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
@ seriatim._core.abandonment.give_up
- other.renumber(batch.epoch, sequence)
+ pass
- queue.next_sequence = sequence
+ pass
client-same-epoch: after an unknown batch a new producer epoch begins
@ seriatim._core.abandonment._go_on_in_next_epoch
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
client-outdated-servers [I2 keyed-further]: what an outdated server says of messages and segments does not count
@ seriatim._core.joining.Joining._takes_join
- self._server_is_outdated = (event.group_epoch, event.segment, event.server_epoch) < known
- if self._server_is_outdated:
+ if (event.group_epoch, event.segment, event.server_epoch) < known:
""")
"""By name."""
