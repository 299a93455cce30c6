"""What the judge forgives: each excuse has a name here, and a reason on the page docs/internals/excuses.md.

The judge reports each use of an excuse (`Seen.excuse`), so a run shows which excuses it needed. A test compares the
page with this list, and checks that each excuse is used. If you add an excuse, give its reason on that page.
"""

from __future__ import annotations

import enum


class Excuse(enum.Enum):
    """By name; the value is how a run reports it."""

    TWO_MEMORIES = "two memories for two disks"
    MEMORIES_LOST = "promised, and no memory or disk has it any more"
    WEAK_LEVEL = "acknowledged at a level without a promise"
    LOST_AFTERWARDS = "acknowledged, and declared or settled away since"
    SEQUENCE_UNKNOWN = "a producer is sent a gap after a loss"
    PRODUCER_FORGOTTEN = "enough other producers sent after a producer's last batch"
    TABLE_OLDER_THAN_GAP = "a table still names what lay in a gap"
    TABLES_LOST = "a segment was declared lost with all tables of the segments before it"
    REPEAT_OF_LOST = "a repeat of what lay in a gap is skipped"
    RESEND_OF_LOST = "a resend of what lay in a gap is given once more, at most once"
    DROPPED_UNREAD = "retention dropped what a group had not read"
    REPEAT_OF_DROPPED = "a repeat of what was dropped is skipped"
    RESEND_OF_DROPPED = "a resend of what was dropped is acknowledged"
    CONTRADICTED = "an older copy of a disk decided a length alone"
    CUT_ABOVE_COMMIT = "the true disk does not remember what was committed last"
    LOST_DISK = "a disk that was lost since counts"
    NOT_YET_FLUSHED = "a new server has all of a segment in memory"
    TIME_SET_BACK = "an append time that could not be true"
    TIME_UNKNOWN = "append times after an unsettled segment"
    FORGOTTEN_CURSOR = "retention drops messages of a group whose cursor the coordinator has lost"
    OLDER_CURSOR = "a server believes the cursor of an older copy of the coordinator"
    FORGOTTEN_CANCELLATION = "a cancellation is lost with all ledgers of the segment"
