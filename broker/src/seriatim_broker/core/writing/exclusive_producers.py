"""Exclusive producers: which batches the master of a partition takes from the owner of a name.

The producer table has the epoch of the newest owner that the partition has heard of, by its control batch. The record
in the coordinator decides about a producer that the table does not know. So a message of a known owner waits for no
coordinator, and an owner of before is refused also when the partition has forgotten all owners.

Rule `epochs-first` (E4): the epoch of a batch is compared before anything else of it, also that of a control batch.
Without it:
  1. Owner 5 is frozen after sequence 17. Owner 6 is announced.
  2. The broker that announced owner 5 sends that control batch again, late.
  3. The master answers that it is stored, as it does to forwarders. The broker reports to program 5 that it is the
     owner.

Rule `announced-first` (E1, E3): a higher epoch begins with a control batch. Without it:
  1. Program 6 is the next owner. It does not wait for the answer of the broker, and sends to partition 0.
  2. Partition 1 has no control batch yet, and takes messages of owner 5.
  3. Two programs send at the same time.

Rule `unknown-owners-are-read` (E4): a master that does not know the producer reads the record, whether its table is
complete or not, and takes only batches of the owner in it. That holds for control batches, too. Without it:
  1. Owner 5 is frozen. Owners 6 and 7 send, and fall silent. The partition forgets the producer.
  2. A week later program 5 wakes up, and sends its next batch.
  3. The master does not know the producer, and stores the batch after those of owner 7.

Rule `read-after-opening` (E4): the record is read in the segment in which the batch is appended. Without it:
  1. The master of segment 1 reads that 5 is the owner. Owner 6 is announced in segment 1, which is opened over.
  2. The same broker is the master of segment 2, and its table does not have the control batch.
  3. It takes a batch of owner 5 because of what it read in segment 1.

Rule `later-owner-is-read` (E3): a record that is below the epoch of a batch is read again, once for each epoch. Without
it:
  1. The master reads for program 4 that it is the owner. Program 4 ends, and does not send its batch again.
  2. Owner 5 is announced. The master compares with what it read before, and refuses the control batch for good.
  3. No program ever becomes the owner.

Rule `read-once` (E4): what was read does not count any more when a batch of the producer was appended. Without it:
  1. The master reads that 5 is the owner. Owner 6 is announced, and then the partition forgets the producer.
  2. It takes a batch of owner 5 because of what it read before.
"""

from __future__ import annotations

from typing import Final

from seriatim_api import errors
from seriatim_api.batch import FLAG_CONTROL, BatchHeader
from seriatim_api.exclusive import FIRST_SEQUENCE, is_exclusive

from ..peers import versions
from ..state.broker import BrokerState
from ..state.partition import Partition
from ..state.segment_log import OwnerLook, SegmentLog
from ..values.events import Append
from ..values.messages import FORM_EXCLUSIVE
from ..values.owners import OwnerRead, ReadOwner
from ..values.producers import Entry
from ..values.states import drop, put
from . import admission

LOOKS_MAX: Final = 64
"""Maximum number of producers of a partition whose records are read, or were read and not used yet."""

RETRY_AFTER_MS: Final = 10
"""Until then the record is mostly there."""


def is_announced(log: SegmentLog, event: Append) -> bool:
    """Whether the owner of a control batch was announced before, as far as this master knows."""
    last = log.live_table.last(event.header.producer)
    return last is not None and event.header.producer_epoch == last.epoch


def first_sequence(header: BatchHeader) -> int:
    """The sequence with which a producer epoch begins."""
    return FIRST_SEQUENCE if is_exclusive(header.producer) and not header.flags & FLAG_CONTROL else 0


def refusal(
    broker: BrokerState, partition: Partition, log: SegmentLog, header: BatchHeader, last: Entry | None
) -> errors.SeriatimError | None:
    """The refusal of a batch of an exclusive producer, before its sequence is looked at; None if its owner may send it.

    `last` is the producer's newest batch. All other producers may send.
    """
    if not is_exclusive(header.producer):
        return None
    if not versions.all_read(broker, FORM_EXCLUSIVE):
        return errors.BadRequestError(
            "the brokers of this cluster do not all know exclusive producers: nothing was stored. Send without an owner"
        )
    if last is not None:
        if header.producer_epoch < last.epoch:
            return _fenced(header, last.epoch, "another program is the owner")
        if header.producer_epoch > last.epoch and not header.flags & FLAG_CONTROL:
            return _fenced(header, last.epoch, "this partition has not heard of the later owner")
        return None
    look = admission.heard_of(log).owners.get(header.producer)
    read_epoch = look.record.epoch if look is not None and look.record is not None else 0
    is_old = look is not None and look.is_read and look.epoch < header.producer_epoch > read_epoch
    if look is None or not look.is_read or is_old:
        if look is None or is_old:
            _look(broker, partition, log, header)
        return errors.OverloadedError(
            "the master reads in the coordinator which program is the owner: nothing was stored; send it again",
            retry_after_ms=RETRY_AFTER_MS,
        )
    record = look.record
    topic = partition.chain.topic if partition.chain is not None else ""
    if record is None or record.topic != topic:
        return _fenced(header, 0, "no program is the owner")
    if header.producer_epoch != record.epoch:
        return _fenced(header, record.epoch, "another program is the owner", name=record.name, owner=record.owner)
    return None


def _fenced(header: BatchHeader, epoch: int, why: str, **more: str) -> errors.SeriatimError:
    text = f"owner's epoch {header.producer_epoch} does not count: {why} (epoch {epoch}); nothing was stored"
    return errors.ProducerFencedError(text, retry_after_ms=None, epoch=epoch, **more)


def _look(broker: BrokerState, partition: Partition, log: SegmentLog, header: BatchHeader) -> None:
    heard, producer = admission.heard_of(log), header.producer
    if producer not in heard.owners and len(heard.owners) >= LOOKS_MAX:
        heard.owners = drop(heard.owners, next(iter(heard.owners)))
    serial = broker.new_serial()
    heard.owners = put(heard.owners, producer, OwnerLook(serial, epoch=header.producer_epoch))
    broker.out.emit(ReadOwner(serial, partition.id, producer))


def on_read(broker: BrokerState, partition: Partition, event: OwnerRead) -> None:
    """The coordinator gave the record of an owner, or did not answer. Then the next batch has it asked again."""
    log = partition.open_log()
    heard = log.heard if log is not None else None
    for producer, look in heard.owners.items() if heard is not None else ():
        if look.serial == event.serial:
            assert heard is not None
            heard.owners = drop(heard.owners, producer)
            if not event.failed:
                heard.owners = put(heard.owners, producer, OwnerLook(0, True, event.record, look.epoch))
            return


def note_append(log: SegmentLog, producer: bytes) -> None:
    """A batch of the producer was appended: the table knows it from now on."""
    heard = admission.heard_of(log)
    if producer in heard.owners:
        heard.owners = drop(heard.owners, producer)
