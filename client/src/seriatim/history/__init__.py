"""The history checker: did every consumer group see every acknowledged message, once, in the one order?

Producers and consumers write down what they do as they do it; afterwards `check` reads what they wrote and names
every broken promise with the lines that show it. The checker knows nothing of brokers: it judges what clients saw.
The module uses the standard library only, so that the simulator, the process tests, the demo and the command
`seriatim check` can all stand on the same judge. Starting processes, breaking things and drawing pictures are left
to those.

How to record
-------------

One file for each process, one JSON object on each line, in the order in which that process saw things::

    {"k":"history","version":1,"process":"producer-1","clock":"monotonic"}
    {"k":"send","at":10.25,"p":"p1","t":"flights","q":3,"s":0,"m":100,"n":3}
    {"k":"outcome","at":10.31,"x":"ok","m":100,"n":3,"o":"1:0"}
    {"k":"deliver","at":10.33,"g":"readers","c":"c1","t":"flights","q":3,"o":"1:0","m":[100,101,102]}
    {"k":"ack","at":10.34,"g":"readers","t":"flights","q":3,"o":"1:2"}
    {"k":"end","at":20.0,"g":"readers","drained":true}
    {"k":"close","at":20.1}

=========  ===========================================================================================================
kind       keys
=========  ===========================================================================================================
history    `version`, `process`, `clock`: the first line of a file, and of each later run that appends to it
send       `p` producer, `e` epoch (0 if absent), `t` topic, `q` partition, `s` sequence, `m` message id, `y` key
           (optional); one line for each message (not for each resend of it), written before it is handed over
outcome    `m`, `x` (`ok`, `failed` or `unknown`), `o` offset (if ok and known); written after the answer came
deliver    `g` group, `c` consumer, `t`, `q`, `o`, `m`, `a` attempt (1 if absent), `r` (1: flagged `maybe_repeated`)
ack        `g`, `t`, `q`, `o`: the group has acknowledged this offset
gap, skip  `t`, `q`, `o` first offset, `z` first offset after it, `g` (absent: all groups), `why`; a gap declares that
           messages are gone (a LOST segment, retention, a group that started later); a skip passes over repeats and
           excuses nothing
fault      `name`, `victim`, `phase` (`inject` or `heal`), and whatever else helps; findings cite the last one before
end        `g` (absent: all groups), `t` (absent: the topics it was seen to read), `drained`, `waiting` (free text)
close      the process ended of itself; a file without it belongs to one that was killed
=========  ===========================================================================================================

A `send`, `outcome` or `deliver` line may speak of a batch: `m` is then a list of ids, or with `n` the first of `n`
consecutive integers; sequences and offsets count up from the given one. Ids are integers or strings, unique in the
history. Offsets are `"segment:index"`.

Times (`at`) are seconds of one monotonic clock: CLOCK_MONOTONIC, which all processes of one machine share (histories of
several machines cannot be mixed). A send's time is read before the send and an outcome's after the answer, so what the
checker calls "sent after the ack" truly was. Within a file the order of lines counts; deliveries to one group that lie
in several files are merged by time.

A process may be killed at any moment: a torn last line is accepted and counted. So that nothing acknowledged is missing
from the record, call `flush` before you ack what you recorded (it reaches the kernel, which survives the process).

What is looked for
------------------

==================  ==================================================================================================
lost                acknowledged, or delivered to another group, but never delivered to a group that reported drained,
                    outside every declared gap
repeated            delivered twice to a group as a first attempt, unflagged: the same message, or the same offset
reordered_producer  overtaken by a later message of its own producer
reordered_offset    delivered after a higher offset
reordered_group     two groups saw two messages in opposite orders
reordered_realtime  overtaken by a message that was sent after this one's acknowledgement
failed_delivered    reported as failed, and delivered
misplaced           delivered at another offset or partition than acknowledged, or one offset holds two messages
contradicted        two different outcomes of one message
unsent              delivered, but nobody recorded the send (only a note if a file was cut short by a kill)
stuck               no outcome, or a group that did not drain
==================  ==================================================================================================

A message that was stored twice behind an unsettled segment comes from its first place; it is not misplaced if the
group was told to skip the second, which is the one in the acknowledgement.

Order is judged over first deliveries (the first time a group sees a message, flagged or not) within a partition. Counts
are messages (a message that several others overtook counts once for each of the four ways); `reordered` counts each
(group, message) once.
"""

from seriatim.history._check import check, check_events
from seriatim.history._format import HistoryFormatError
from seriatim.history._report import Evidence, Finding, Report, render
from seriatim.history._writer import HistoryWriter, MemoryHistory

__all__ = [
    "Evidence",
    "Finding",
    "HistoryFormatError",
    "HistoryWriter",
    "MemoryHistory",
    "Report",
    "check",
    "check_events",
    "render",
]
