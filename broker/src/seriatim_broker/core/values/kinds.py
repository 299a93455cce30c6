"""Kinds and reasons that parts of the core exchange with one another, other brokers, and metrics.

They are strings too, because messages and metrics have them.
"""

from __future__ import annotations

import enum
from typing import Self


class TimerKind(enum.StrEnum):
    """Which part of the core a timer wakes."""

    AMEND = "amend"
    BLOCKS = "blocks"
    CARRYING = "carrying"
    COMMIT = "commit"
    COPY = "copy"
    CURSOR = "cursor"
    DELAYED = "delayed"
    FENCE_TURN = "fence turn"
    FENCED = "fenced"
    FOLLOW = "follow"
    HEARTBEAT = "heartbeat"
    KEEPING = "keeping"
    KEYS = "keys"
    OPERATIONS = "operations"
    PREPARED = "prepared"
    PROBE = "probe"
    PUMP = "pump"
    QUESTIONS = "questions"
    QUIESCE = "quiesce"
    RANGES = "ranges"
    READ = "read"
    REPAIR = "repair"
    RESUME = "resume"
    ROOM = "room"
    SESSION = "session"
    SPREAD = "spread"
    SETTLE = "settle"
    STEP = "step"
    SWITCH = "switch"
    REPLICATION = "sync"
    WAITERS = "waiters"
    WAITING_KEYS = "waiting keys"


class StoredFor(enum.StrEnum):
    """Which part of the core waits until a write is durable."""

    START = "start"
    SETTLE = "settle"
    COPY = "copy"
    REPAIR = "repair"
    HANDOVER = "handover"


class ReadKind(enum.StrEnum):
    """What a read of the disk is for."""

    GROUP = "group"
    KEYS = "keys"
    RANGE = "range"
    REPAIR = "repair"
    COPY = "copy"
    COPY_WITH_TABLE = "copy with table"
    COPY_WITH_END_TABLE = "copy with end table"


class WriteOwner(enum.StrEnum):
    """Which part of the core runs a transaction on the chain record."""

    SWITCH = "switch"
    SETTLE = "settle"
    RIGHT = "right"
    COPY = "copy"
    GAP = "gap"
    LEAVE = "leave"
    TRIM = "trim"


class _Told(enum.StrEnum):
    """A reason in a message between brokers, which may be of different versions. One that is not known is `OTHER`."""

    @classmethod
    def _missing_(cls, _: object) -> Self:
        return cls("other")


class PrepareRefusal(_Told):
    """Why a member does not prepare a segment."""

    NONE = ""
    NOT_A_MEMBER = "not a member"
    VOIDED = "voided"
    BEHIND = "the coordinator has lost decisions"
    HOLDS_A_BATCH = "fenced or holds a batch"
    DECIDED = "decided"
    BLOCKS_MISSING = "idle blocks of the table are missing"
    OTHER = "other"


class ReplicateRefusal(_Told):
    """Why a follower does not take what the master sent."""

    GAP = "gap"
    STAGED = "staged"
    NOT_OPENED = "not opened"
    FENCED = "fenced"
    OTHER = "other"


class SwitchReason(enum.StrEnum):
    """Why a switch runs: the label `reason` of `seriatim_switches_total`."""

    COMPLAINT = "complaint"
    CONSUMER_COMPLAINT = "consumer's complaint"
    CREATED = "created"
    DISK_FULL = "disk full"
    DISK_HANGS = "disk hangs"
    FENCED_TOO_LONG = "fenced too long"
    FOLLOWER_DISAGREES = "follower disagrees"
    FOLLOWER_FENCED = "follower fenced"
    FOLLOWER_OUT_OF_STEP = "follower out of step"
    GROUP_CORDONED = "group cordoned"
    GROUP_LOST = "group lost"
    MOVED = "moved to a chosen place"
    PEER_DEAD = "peer dead"
    PLANNED = "planned"
    SILENT_TO_A_CLIENT = "silent to a client"
    # A planned switch that cannot continue as planned, and continues as a failover:
    PLAN_MASTER_DIED = "the master died in a planned switch"
    PLAN_RECORD_CHANGED = "the record changed in a planned switch"
    PLAN_REFUSED = "the coordinator refused to write in a planned switch"
    PLAN_TARGET_DIED = "the target died in a planned switch"
