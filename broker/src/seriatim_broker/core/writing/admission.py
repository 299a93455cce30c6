"""Admission: whether a producer that the table does not know may come into it, and whom it pushes out.

Which producer goes is a function of the log. Whether the batch that pushes it out comes into the log is the master's
decision, and only here a clock counts: the monotonic clock of the master. A wrong decision costs a refusal that can be
tried again, and never a repeat. Known producers always continue.

Rule `protected` (I9): a new producer pushes out none that was heard within `producer_protect_us` (600 s), or in the
rooms of writers, forwarders and replays within an hour; if there is no other one, it is refused. No client tries to
deliver a batch for longer than 600 s. Without it:
  1. P sends its first batch a, and gets no answer.
  2. A program makes 100,000 producers within a minute, and P is pushed out.
  3. P resends a. It is stored twice.

Rule `protected-from-opening` (I9): a master knows nothing of the time before it opened the segment, so that time counts
as nothing. Without it:
  1. P sends a to Am, which dies. Bm opens the next segment a second later.
  2. To Bm, all producers were silent for ever. A new producer pushes P out.
  3. P resends a. It is stored twice.

Rule `asked-is-heard` (I9, J4): a writer counts as heard when the master is asked to carry out its publication, and a
forwarder when a number comes again. The controller asks every partition about each decided publication. Without it:
  1. A publication is decided. This partition has its rows, and another one waits for a disk that is away.
  2. Other writers publish. After an hour this one is pushed out here.
  3. The controller asks all partitions again. This master reads DECIDED, and stores the rows again.

Rule `decided-are-let-in` (I13): the writer of a decided publication is never refused. Without it:
  1. There is room for one writer. W1 has rows in partition 0, and W2 in partition 1. Both are decided.
  2. W1 waits in partition 1 for the place of W2, and W2 in partition 0 for the place of W1.
  3. Both are asked for again and again, so neither is ever pushed out.
So masters let it in above every limit. They tell publishers that they are crowded, and these decide nothing for writers
that have not published yet (`rpc.distributed.publisher`).

The first batch of a producer says how many of those that would go first stay (`BatchHeader.spared`): those that were
asked for lately, up to the first one that is silent. If all are protected, none goes. Then the room is above its limit
for a time, by a quarter of it at most, and each later producer pushes out two. So there is room for new producers after
a switch, when all count as heard.
"""

from __future__ import annotations

from seriatim_api import errors
from seriatim_api.batch import SPARED_ALL
from seriatim_api.ids import make_offset

from ..state.broker import BrokerState
from ..state.partition import Partition
from ..state.segment_log import Heard, SegmentLog
from ..values.producers import ORDINARY, WRITERS, ProducerTable, room_of
from ..values.states import drop, put

MARKS_MAX = 64
"""Marks of the log's length that a master keeps for the time in which producers are protected."""

KEPT_FACTOR = 6
"""How much longer writers, forwarders and replays are protected than other producers: for an hour."""

SLACK_SHARE = 4
"""While all producers of a room are protected, new ones come in until the room is a quarter above its limit."""

CROWDED_US = 60_000_000
"""How long a master tells publishers that it is crowded, from the last writer on that came in above the quarter."""


def begin(broker: BrokerState, log: SegmentLog) -> None:
    """This member opens the segment as master: from now on it hears producers."""
    log.led_from_us = broker.now.mono_us


def note_append(broker: BrokerState, log: SegmentLog) -> None:
    """A batch was appended: the newest mark says so. It moves until it is far enough from the one before."""
    now_us, protect_us, marks = broker.now.mono_us, broker.config.producer_protect_us, heard_of(log).marks
    if len(marks) > 1 and now_us - marks[-2][0] < protect_us // MARKS_MAX:
        marks[-1] = now_us, log.tail
        return
    marks.append((now_us, log.tail))
    while now_us - marks[1][0] > KEPT_FACTOR * protect_us:  # the one before it is enough
        del marks[0]


def note_asked(broker: BrokerState, log: SegmentLog, producer: bytes) -> None:
    """A publisher asks about the publication of this writer, or a forwarder sends a number again."""
    now_us = broker.now.mono_us
    heard = heard_of(log)
    heard.asked = put(drop(heard.asked, producer), producer, now_us)
    until_us = now_us - KEPT_FACTOR * broker.config.producer_protect_us
    while heard.asked[oldest := next(iter(heard.asked))] < until_us:
        heard.asked = drop(heard.asked, oldest)


def spared(broker: BrokerState, log: SegmentLog, producer: bytes) -> int:
    """How many of those that would go first stay if this producer, which the table does not know, comes now."""
    table, room, heard = log.live_table, room_of(producer), heard_of(log)
    wanted = len(table.pushed_out_by(producer))
    if not wanted:
        return 0
    protect_us = _protect_us(broker, room)
    silent_below, asked_us = _silent_below(broker, log, protect_us), broker.now.mono_us - protect_us
    silent = 0  # silent ones in a row
    for number, (who, offset) in enumerate(table.oldest(room)):
        if offset >= silent_below or number >= SPARED_ALL:
            break
        silent = silent + 1 if heard.asked.get(who, asked_us) <= asked_us else 0
        if silent == wanted:
            return number + 1 - wanted
    if room == WRITERS and _is_above_slack(table, room):
        heard.crowded_us = broker.now.mono_us
    return SPARED_ALL


def is_crowded(broker: BrokerState, log: SegmentLog) -> bool:
    """Whether a short time ago a writer was let in that would have been refused before the decision."""
    at_us = heard_of(log).crowded_us
    return at_us is not None and broker.now.mono_us - at_us < CROWDED_US


def refusal(broker: BrokerState, partition: Partition, log: SegmentLog, producer: bytes) -> errors.SeriatimError | None:
    """The refusal of a producer that the table does not know; None if it may come. Never asked about writers."""
    config, table, room = broker.config, log.live_table, room_of(producer)
    if _is_above_slack(table, room) and spared(broker, log, producer) == SPARED_ALL:
        return errors.TooManyProducersError(
            f"{partition.name} remembers {table.count_of(room)} producers, and each of them may have sent within "
            f"the last {_protect_us(broker, room) // 1_000_000} s; this batch is not stored; send with fewer "
            "producers, or to more partitions",
            retry_after_ms=1_000,
        )
    if broker.producer_bytes < config.producers_bytes_max:
        return None
    if table.pushed_out_by(producer, spared(broker, log, producer)):
        return None  # for one that comes, at least one goes, so the table takes no more memory
    return errors.TooManyProducersError(
        f"the producer tables of this broker take {config.producers_bytes_max} bytes, which is their limit; this batch "
        "is not stored; send with fewer producers, or raise producer_tables_size_bytes_max",
        retry_after_ms=1_000,
    )


def heard_of(log: SegmentLog) -> Heard:
    """What this master remembers of producers; it begins to."""
    if log.heard is None:  # an idle partition has no such object, to save memory
        log.heard = Heard(log.led_from_us)
    return log.heard


def _is_above_slack(table: ProducerTable, room: int) -> bool:
    limit = table.limit_of(room)
    return table.count_of(room) >= limit + limit // SLACK_SHARE


def _protect_us(broker: BrokerState, room: int) -> int:
    return broker.config.producer_protect_us * (1 if room == ORDINARY else KEPT_FACTOR)


def _silent_below(broker: BrokerState, log: SegmentLog, protect_us: int) -> int:
    """Batches below this offset were appended longer ago than that; 0 if this master has not led the log for as long.

    Batches of earlier segments were heard at the opening, so they count as if they were at index 0.
    """
    until_us = broker.now.mono_us - protect_us
    tails = [tail for at_us, tail in heard_of(log).marks if at_us <= until_us]
    return make_offset(log.no, tails[-1]) if tails else 0
