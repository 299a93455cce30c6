"""Rules about publications, removed one at a time."""

from .rows import mutations

MUTATIONS = mutations("""
[KEPT-STAGE publications]
record-if-unknown [I9 WHOLE PUB many-writers]: a master that does not know the writer reads its record, and refuses
  what is not decided
@ core.writing.publication_rows._ask_record
+ carrying.is_decided = True
decided-are-let-in [I13 many-writers]: the writer of a decided publication is never refused
@ core.writing.publication_rows._may_append
- return not log.uncertain or appending.has_room(broker, log, batch.size_bytes)
+ table = log.live_table
+ if table.last(carrying.producer) is None:
+     if appending.admission.spared(broker, log, carrying.producer) == appending.admission.SPARED_ALL:
+         return False
+ return not log.uncertain or appending.has_room(broker, log, batch.size_bytes)
own-table [I9 CUTS GAP CORE]: a master continues a publication where its own table says
@ core.writing.publication_plan.stand
+ return Stand.UNKNOWN if last is None else 0
answers-committed [DONE I12]: a master answers only when all rows are committed
@ core.writing.publication_rows._is_safe
+ return True
answers-flushed [I12 unflushed-publications]: a master answers only when the disks have all rows, even if the topic
  commits earlier
@ core.writing.publication_rows._is_safe
- return segment_no != log.no or index + last.message_count <= log.flushed
+ return segment_no != log.no or index + last.message_count <= log.commit
checks-staged [CUTS]: a staged batch is appended only if it is the one that the manifest names
@ core.writing.publication_rows.on_fetched
- elif event.batch is not None and is_as_staged(event.batch, carrying.batches[number], broker.checksum):
+ elif event.batch is not None:
follows-as-staged [I5 CUTS]: a slave takes a staged body only if it is the one that the master named
@ core.writing.following._is_body_of
+ return True
as-the-writer [PUB]: published batches have the writer's producer id, the publication's sequence and the row's number
@ core.writing.publication_plan.published_header
- published(header, partition, producer, sequence, row, manifest)
+ published(header, partition, header.producer, sequence, row, manifest)
ends-with-the-segment [I6 CORE]: nothing is carried out in a segment that was fenced
@ core.writing.publication_rows._led
- return log if log is not None and log.active and log.unbroken else None
+ return log
passes-over-what-is-lost [I13]: a publication continues without staged data that was declared lost
@ core.writing.publication_rows.on_fetched
- if event.is_gone:
+ if False:
says-what-is-lost [DONE]: the program that published is notified if rows were lost
@ core.values.writers.check_loss
+ pass
only-masters-publish [PUB CUTS]: a client's batch that looks like a published one is refused
@ core.writing.appending._stage_refusal
+ return None
decided-first [PUB]: masters are asked only for publications that were read as DECIDED
@ sim.publishing.staged.is_read_again
+ return False
each-answers [DONE]: a publication is done only when every master has said so
@ sim.publishing.staged.may_be_done
+ return True
asks-members: a publication is decided only if all its staged data can be read
@ sim.publishing.staged.is_there
+ return True
above-floors: a publication is decided only if all its staged data is above the floors
@ core.values.writers.check_manifest
- if lowest < floors.get(partition, 0):
+ if False:
owners [OWNER]: a writer publishes for its first owner only
@ core.values.writers.judge
- if record.owner and wanted.owner and record.owner != wanted.owner:
+ if False:
epochs-grow [FENCE]: an epoch of a writer never comes twice, even if the writer is deleted
@ core.values.writers.opened
- epoch=max(before.epoch, revision) + 1
+ epoch=before.epoch + 1
one-count [SPREAD]: all rows of a publication are spread over the same number of partitions
@ seriatim._publishing.chunks.manifest_of
- if (chunk.incarnation, chunk.layout) != (first.incarnation, first.layout):
+ if chunk.incarnation != first.incarnation:
chunks-in-order [CUTS]: rows are in the order of the chunks that were named
@ seriatim._publishing.chunks.manifest_of
- first = chunks[0]
+ chunks = chunks[::-1]
+ first = chunks[0]
finish-first [NEXT]: a publication is decided only when the one before is done
@ core.values.writers.judge
- if record.state is WriterState.DECIDED:
+ if record.state is WriterState.DECIDED and wanted.sequence <= record.sequence:
@ core.values.writers.decided
- assert before.state is not WriterState.DECIDED,
+ assert True,
fences [FENCE]: only the program that opened the writer last publishes
@ core.values.writers.judge
- if wanted.epoch != record.epoch:
+ if False:
only-the-last-is-ok [PUB FENCE DONE]: a sequence below the last one is never ok
@ core.values.writers.judge
  if wanted.sequence < record.sequence:
+     return Verdict.DONE
+ if False:
digests [PUB]: the last publication is ok only with its digest
@ core.values.writers.judge
- _check_same(record, wanted)
+ _check_same(record, replace(wanted, digest=record.digest))
repeats-as-decided [REPEAT]: the last publication is compared in the layout in which it was decided
@ core.values.writers.judge
- _check_same(record, wanted)
+ _check_same(record, replace(wanted, repeats=()))
compares-record [ONE NEXT FENCE runtime]: a decision compares the record that it was made from
@ runtime.coordinator.writer_conditions.of_record
+ return []
compares-floors [runtime]: a decision compares the floors of staged data
@ runtime.coordinator.writer_conditions.of_floors
+ return []
floor-first [runtime]: retention raises the floor of staged data before it looks at records
@ runtime.duties.stage_floors.StageFloors._raise
+ return True
waits-for-decided [runtime]: retention waits for publications that are decided
@ runtime.duties.stage_floors.StageFloors._is_needed
+ return False
taken-up [I13 runtime]: the controller finishes a publication that its publisher does not finish
@ runtime.controller.unfinished_publications.is_to_finish
+ return False
""")
"""By name."""
