"""The history checker: did every consumer group see every acknowledged message, once, in the one order?

    _writer    what processes call to write a history
    _format    lines: names of kinds, ids, offsets, tokens

    _sources   lines of files, read in one pass, or events in memory
    _collect   columns of numbers, made of these lines
    _check     the checker; it checks what needs all partitions at once
    _order     order and repeats of deliveries from one partition
    _by_key    deliveries that were given one by one, under tokens
    _moves     rewinds, skips and changes of mode, and what each explains
    _findings  a count of each finding, and the first of each kind
    _report    counts and findings, as text and as data

Producers and consumers write each action into a history when they do it. Afterwards `check` reads these histories, and
names every broken promise with the lines that show it. The checker knows nothing about brokers: it judges what clients
saw. This package uses only the standard library. So the simulator, the process tests, the demo and the command
`seriatim check` can all use the same checker. They start processes and cause faults; the checker does not.

How to record
-------------

There is one file for each process, with one JSON object on each line, in the order of that process::

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
history    `version`, `process`, `clock`: the first line of a file, and of each later process that appends to it
send       `p` producer, `e` producer epoch (0 if absent), `t` topic, `q` partition, `s` sequence, `m` message id,
           `y` key (optional), `due` when a delayed message is due, on the clock of `at`; one line for each message,
           not for each resend; written before the message is sent
outcome    `m`, `x` (`ok`, `failed` or `unknown`), `o` offset (if ok and known); written after the answer came
deliver    `g` consumer group, `c` consumer, `t`, `q`, `o`, `m`, `a` delivery attempt (1 if absent), `r` (1: flagged
           `maybe_repeated`), `b` (1: the group is at most once). In modes `key_ordered` and `shared` also `u` token,
           `v` epoch of the group, and `y` key (absent: a key of its own)
ack        `g`, `t`, `q`, `o`: the group has acknowledged this offset and all below it. With `c` and `u`: only this one,
           under this token. Then `o` and `u` may be lists of the same length
confirm    `g`, `c`, `t`, `q`, `o`, `u`, `v`: the brokers confirmed these acknowledgements
nack       `g`, `c`, `t`, `q`, `o`, `u`: the consumer failed on this message, and gave its grant back
void       `g`, `c`, `t`, `q`, `u` list of tokens: the consumer knows that these grants have ended
parked     `g`, `t`, `q`, `y` key, `o` its first offset, `n` its messages, `x` state: a broker listed this key
dead       `g`, `t`, `q`, `o`, `m`, `w` where it is stored, `r`: a dead letter of this message, as it says itself
`person`   `g`, `t`, `q`, `x` (`release`, `skip`, `dead_letter`, `replay`, `drop`, `move` or `delete`), `o`, `y`,
           `done` (1: the answer came): what an administrator did. Of a `move` also `d`: `rewind` to `o`, `skip` from
           `o` to `z`, or another `mode`, which explains everything before its answer came
topic      `t`, `x` (`delete` or `publish`): a program deletes the topic, or publishes rows in it
cancel     `t`, `q`, `o` offset in the outcome of a delayed message, `x` (`cancelled`, `too_late` or `not_found`;
           absent: a broker is about to be asked): a program cancels it
gap, skip  `t`, `q`, `o` first offset, `z` first offset after it, `g` (absent: all groups), `why`. A gap declares that
           messages are gone (a LOST segment, retention, a group that started later). A skip says that the server
           skipped repeats; missing messages in it still count as lost
fault      `name`, `victim`, `phase` (`inject` or `heal`), and other keys; findings cite the last fault before them
end        `g` (absent: all groups), `t` (absent: the topics that it was seen to read), `drained`, `waiting` (free text)
close      the process ended by itself. If a file has no such line, its process was killed
=========  ===========================================================================================================

A `send`, `outcome` or `deliver` line may be about a batch. Then `m` is a list of ids, or with `n` it is the first of
`n` consecutive integers. Sequences and offsets count up from the given one. Ids are integers or strings, unique in the
history. Offsets are `"segment:index"`.

Times (`at`) are seconds of one monotonic clock, CLOCK_MONOTONIC, which all processes of one machine share. Histories
of several machines cannot be mixed. A recorder reads the time of a send before the send, and the time of an outcome
after the answer. So if the checker says "sent after the acknowledgement", that is true. Within a file the order of
lines counts. Deliveries to one group in several files are merged by time.

A process may be killed at any moment. The checker accepts and counts a torn last line. Call `flush` before you
acknowledge messages that you recorded: then the lines are in the kernel, which outlives the process, and no
acknowledged delivery is missing from the history.

A client that was made with a `recorder` writes all this by itself, in every mode. Its `Admin` writes the keys and dead
letters that it lists, what it does with them, and rewinds and skips of groups. Messages of a parked key count as lost
unless the history has the key, with at least as many messages: list parked keys when all else is done, before `end`.

What the checker finds
----------------------

==================  ==================================================================================================
lost                acknowledged, or delivered to another group, but never delivered to a group that reported `drained`,
                    and not in a declared gap, after a parked message, or skipped by an administrator. Or delivered
                    before an administrator rewound the group, and not after that. Or replayed, and no copy was
                    delivered. Or its key is parked, and the list of the key has fewer messages than are missing.
                    Nothing is lost to a group that is at most once
unfinished          by token: not acknowledged when it came last to a group that reported `drained`, and neither parked,
                    dead-lettered nor skipped
repeated            delivered twice to a group as a first delivery attempt without a flag: the same message, or the
                    same offset
twice               delivered twice to a group that is at most once
acknowledged_again  by token: came again after the brokers had confirmed its acknowledgement
reordered_producer  overtaken by a later message of its own producer
reordered_offset    delivered after a higher offset
reordered_group     two groups saw two messages in opposite orders
reordered_realtime  overtaken by a message that was sent after this one's acknowledgement
overlapped          by token: came for the first time before an earlier message of its key that came was done with
two_hands           by token: two consumers had the same token, or one had a message of a key while another one's
                    acknowledgement of a later message counted
stale_token         by token: the tokens of a key fell within a consumer, or a message was acknowledged under a grant
                    that its consumer knew to have ended
miscounted          by token: an attempt was counted that was not made, or attempts fell without a change of server
dead_twice          a dead letter is stored at two places, and no administrator moved the group back that often
dead_misplaced      a dead letter names a place at which another message is
failed_delivered    reported as failed, and delivered
early               delivered more than 0.1 s before it was due
not_cancelled       its cancellation was answered with `cancelled`, and it was delivered
misplaced           delivered at another offset or partition than acknowledged, under another key than sent, or one
                    offset has two messages
contradicted        one message has two different outcomes, or was said to be cancelled and to be due
unsent              delivered, but no file has its send (only counted if a process was killed)
stuck               a message without outcome, or a group that did not drain
==================  ==================================================================================================

A message that was stored twice after an UNSETTLED segment is delivered from its first place. The acknowledgement has
the second place. The message is not misplaced if the server told the group to skip the second place. By token the
server reports nothing of that. Then the first place must be in an earlier segment, and the message must not come from
the second place.

A delayed message is stored again when it is due, so it is delivered from another offset than acknowledged. This offset
must be the same for all groups. The message is in no order with others that were sent. It need not come if it was
cancelled, or if the answer to that is not known. A gap after its first place excuses it, because it may have been fired
there.

The report says what the checker cannot judge, and judges all else: groups whose mode was changed, or that were deleted;
deliveries from a topic that was deleted; and whether messages were sent, in a topic in which rows were published.

A move explains what it does, and no more. After a rewind each message from its place on may come once more as a first
attempt, and after later ones. If the answer to the rewind came, each of them must come again, unless a later move may
have left it behind, or it is gone, parked or a dead letter. What a skip passes need not come, and may come late from a
consumer that had it before. Groups in mode `exclusive` that were moved are judged by their offsets, and not compared
with other groups.

"By token" are groups of modes `key_ordered` and `shared`. In mode `key_ordered` order counts within a key, and in mode
`shared` not at all. A message may come again under a higher token, with the flag or a higher attempt, as long as the
brokers have not confirmed its acknowledgement. The copy of a replayed dead letter is a message of its own.

The checker judges order within a partition, over first deliveries: the first time that a group gets a message, flagged
or not. Counts are messages. If several messages overtook one, it counts once for each of the four ways. `reordered`
counts each (group, message) once.
"""

from seriatim.history._check import check, check_events
from seriatim.history._format import HistoryFormatError
from seriatim.history._report import KINDS, REORDERED, Evidence, Finding, Report, render
from seriatim.history._writer import HistoryWriter, MemoryHistory

__all__ = [
    "KINDS",
    "REORDERED",
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
