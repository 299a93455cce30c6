"""The switch: seal the open segment and open the next one. Any broker may run it.

Read the chain; fence a member and take its tail; prepare the next group under an id of this attempt; one transaction.
Each phase has a deadline, and whatever goes wrong before the transaction leaves the chain as it was. Being wrong about
who is dead costs a switch, never order. What the members answer is in `fencing`, `preparing` and `quiescence`.
"""

from __future__ import annotations

import enum

from seriatim_api import errors
from seriatim_api.ids import MemberId, RunId

from . import attempts, behind, blocks, candidates, folding
from .chain import Chain, Opening, Seal, Segment, create, open_over, seal_and_open
from .effects import ReadCertificate, Resolved
from .events import CreatePartition, PlanSwitch, WriteOutcome
from .log import TailCopy
from .messages import (
    FenceAnswer,
    FenceProgress,
    FenceRequest,
    PrepareAnswer,
    PrepareRequest,
    QuiesceAnswer,
    QuiesceRequest,
    TableRequest,
)
from .outbox import Outbox
from .partition import Partition
from .producers import NO_TABLE, ProducerTable, Table, merge
from .state import State


class Kind(enum.Enum):
    """Why a switch runs."""

    FAILOVER = "failover"
    PLANNED = "planned"
    GENESIS = "genesis"


class Phase(enum.Enum):
    """What a switch waits for."""

    READING = "reading"
    QUIESCING = "quiescing"
    FENCING = "fencing"
    TABLES = "tables"
    CERTIFYING = "certifying"
    PREPARING = "preparing"
    WRITING = "writing"
    PAUSED = "paused"


class Genesis(State):
    """What a first segment is made from."""

    __slots__ = ("flush", "number", "refused", "send_chain", "topic", "width")

    def __init__(self, topic: str, number: int, flush: bool, send_chain: tuple[str, ...], width: int) -> None:
        self.topic = topic
        self.number = number
        self.flush = flush
        self.send_chain = send_chain
        self.width = width
        self.refused = False  # the transaction did not hold


class Switch(State):
    """One switch of one partition, run by this broker."""

    __slots__ = (
        "answers",
        "attempt",
        "attempt_is_new",
        "certificate",
        "chain",
        "contradicted",
        "deadline_us",
        "fenced",
        "first_answer_us",
        "genesis",
        "group",
        "groups_left",
        "id",
        "kind",
        "members",
        "pause_us",
        "pending",
        "phase",
        "prepared",
        "reason",
        "request",
        "segment_no",
        "source",
        "started_us",
        "table",
        "table_complete",
        "target_group",
        "target_master",
        "tries",
    )

    def __init__(self, kind: Kind, reason: str, segment_no: int, request: int | None) -> None:
        self.kind = kind
        self.reason = reason
        self.segment_no = segment_no
        self.request = request
        self.genesis: Genesis | None = None
        self.phase = Phase.READING
        self.id = b""
        self.chain: Chain | None = None
        self.answers: dict[MemberId, FenceAnswer] = {}
        self.pending: dict[MemberId, bool] = {}  # asked and not answered -> whether the question was sent
        self.first_answer_us: int | None = None
        self.fenced = False  # by this switch: it must come to an end now
        self.source: MemberId | None = None
        self.certificate: RunId | None = None  # that proves the end of the master's run
        self.contradicted = False  # a member holds what should not be there yet, and the record was read again since
        self.table = NO_TABLE
        self.table_complete = True
        self.groups_left: list[str] = []
        self.group = ""
        self.members: tuple[MemberId, ...] = ()
        self.attempt = b""
        self.attempt_is_new = True
        self.prepared: dict[MemberId, int] = {}
        self.deadline_us = 0
        self.pause_us = 0
        self.tries = 0  # that found no group: each gives the members twice the time of the one before
        self.started_us = 0
        self.target_group = ""  # of a planned switch: where it should go, if that was said
        self.target_master = ""

    @property
    def is_planned(self) -> bool:
        """Whether everyone is alive and it may be dropped at no cost."""
        return self.kind is not Kind.FAILOVER

    # ---- begin and end ----------------------------------------------------------------------------------

    def begin(self, outbox: Outbox, partition: Partition) -> None:
        """Step 1: read the chain. Not while the coordinator refuses writes: the switch would fence, and not end."""
        if not self.started_us:
            self.started_us = outbox.now.mono_us
        if partition.write_wait_us(outbox):
            self._wait_for_writes(outbox, partition)
            return
        self.phase = Phase.READING
        self._renew(outbox)
        partition.read_chain(outbox)

    def _renew(self, outbox: Outbox) -> None:
        """Answers to an earlier reading of the chain say nothing about the next one."""
        self.id = outbox.new_id()
        self.answers = {}
        self.pending = {}
        self.first_answer_us = None
        self.source = None
        self.certificate = None
        self.table_complete = True

    def hurry(self, outbox: Outbox, partition: Partition) -> None:
        """There is a new reason: do not sit out a pause."""
        if self.phase is Phase.PAUSED:
            self.begin(outbox, partition)

    def give_up(self, outbox: Outbox, partition: Partition, error: errors.SeriatimError) -> None:
        """A planned switch is dropped; the segment goes on where it is."""
        if self.request is not None:
            outbox.emit(Resolved(self.request, partition.route(), error))
        if partition.switch is self:
            partition.switch = None

    def _finish(self, outbox: Outbox, partition: Partition) -> None:
        """The chain is past the segment, by this switch or another."""
        if self.request is not None:
            outbox.emit(Resolved(self.request, partition.route(), None))
        partition.switch = None

    def _pause(self, outbox: Outbox, partition: Partition) -> None:
        """Nothing more can be done now: try again after a while, or when something changes."""
        if self.kind is Kind.PLANNED and self.fenced:
            self._become_failover(outbox, partition, "the target died")
            return
        if self.kind is not Kind.FAILOVER:
            self.give_up(outbox, partition, errors.UnavailableError("the members needed did not answer in time"))
            return
        config = outbox.config
        self.phase = Phase.PAUSED
        self.tries = min(self.tries + 1, config.patience_doublings_max)
        self.pause_us = min(max(2 * self.pause_us, config.retry_us), config.retry_us_max)
        self._set_deadline(outbox, partition, self.pause_us)

    def _wait_for_writes(self, outbox: Outbox, partition: Partition) -> None:
        """The coordinator refused a write: a switch that nobody waits for goes on later, another one ends here."""
        if self.kind is not Kind.FAILOVER:
            error: errors.SeriatimError = errors.CoordinatorRefusedError(
                "the coordinator refuses to write, so this cannot be done now. Messages are safe. Remedy: see the log "
                "of the broker for the reason, e.g. etcd's quota is used up; then ask again"
            )
            if outbox.behind:
                error = errors.CoordinatorBehindError(behind.reason(outbox))
            self.give_up(outbox, partition, error)
            return
        if self.phase is Phase.PAUSED and self.deadline_us > outbox.now.mono_us:
            return
        self.phase = Phase.PAUSED
        self._set_deadline(outbox, partition, partition.write_wait_us(outbox))

    def _set_deadline(self, outbox: Outbox, partition: Partition, after_us: int) -> None:
        self.deadline_us = outbox.now.mono_us + after_us
        outbox.wake(self.deadline_us, "switch", partition.id)

    # ---- what happens -----------------------------------------------------------------------------------

    def on_chain_read(
        self, outbox: Outbox, partition: Partition, chain: Chain | None, revision: int, failed: bool
    ) -> None:
        """The record as the coordinator has it: only this one may be compared with in the transaction."""
        if self.phase is not Phase.READING:
            return
        if failed:
            self._pause(outbox, partition)
            return
        if chain is None and self.genesis is not None and not self.genesis.refused:
            self.groups_left = list(self.genesis.send_chain)
            self._prepare_next(outbox, partition)
            return
        if chain is None:
            self.give_up(outbox, partition, errors.UnknownTopicError(f"there is no partition {partition.id}"))
            return
        chain = partition.chain  # what was read, or something newer that came meanwhile
        assert chain is not None
        if not self.segment_no:
            self.segment_no = chain.open_segment.no  # planned: whatever is open now
        if chain.open_segment.no != self.segment_no:
            self._finish(outbox, partition)
        elif self.kind is Kind.PLANNED and self.fenced:
            self._become_failover(outbox, partition, "the record changed")
        elif self.kind is Kind.PLANNED:
            self.chain = chain
            self._rehearse(outbox, partition, chain)
        else:
            self.chain = chain
            self._fence(outbox, partition, chain.open_segment.members)

    def on_learned(self, outbox: Outbox, partition: Partition, chain: Chain) -> None:
        """A newer record came by another way."""
        if not self.segment_no and self.kind is Kind.PLANNED:
            return  # it has not read which segment it is about
        if chain.open_segment.no > self.segment_no:
            self._finish(outbox, partition)
        elif self.phase not in (Phase.READING, Phase.PAUSED, Phase.WRITING):
            self.chain = chain  # another field changed: the transaction compares with the newest revision known

    def on_timer(self, outbox: Outbox, partition: Partition) -> None:
        """A deadline passed."""
        if outbox.now.mono_us < self.deadline_us:
            return
        if self.phase is Phase.PAUSED:
            self.begin(outbox, partition)
        elif self.phase is Phase.FENCING:
            self._decide_or_wait(outbox, partition, timed_out=True)
        elif self.phase is Phase.TABLES:
            self._choose_groups(outbox, partition)
        elif self.phase is Phase.CERTIFYING:
            self._pause(outbox, partition)
        elif self.phase is Phase.PREPARING:
            self._prepare_next(outbox, partition)
        elif self.phase is Phase.QUIESCING:
            self.give_up(outbox, partition, errors.DeadlineExceededError("the master did not come to rest in time"))

    def on_link_up(self, outbox: Outbox, partition: Partition, member: MemberId) -> None:
        """A member that could not be asked can be asked now."""
        if self.phase is Phase.FENCING and self.pending.get(member) is False:
            self._ask_fence(outbox, partition, member)
        elif self.phase is Phase.PREPARING and member in self.members and member not in self.prepared:
            self._ask_prepare(outbox, partition, member)
        elif self.phase is Phase.PAUSED:
            self.begin(outbox, partition)

    def on_link_lost(self, outbox: Outbox, partition: Partition, member: MemberId) -> None:
        """A member will not answer."""
        if self.phase is Phase.FENCING and member in self.pending:
            self.pending[member] = False
            self._decide_or_wait(outbox, partition)
        elif self.phase is Phase.PREPARING and member in self.members and member not in self.prepared:
            self._prepare_next(outbox, partition)
        elif self.phase is Phase.QUIESCING and member in self.members:
            self.give_up(outbox, partition, errors.UnavailableError(f"{member.broker} of the target went away"))

    # ---- planned: see that the target can, then come to rest ---------------------------------------------

    def _rehearse(self, outbox: Outbox, partition: Partition, chain: Chain) -> None:
        """Have the target prepare the segment, with an empty table, while the master goes on accepting.

        Without it: (1) the master comes to rest and is fenced; (2) the target, which has died or whose disk takes
        nothing, does not prepare; (3) producers wait for a failover that nobody needed.
        """
        problem = self._problem(outbox, chain)
        if problem is not None:
            self.give_up(outbox, partition, problem)
            return
        self.source = None
        self.table = NO_TABLE
        self.table_complete = False
        self.groups_left = [self.target_group] if self.target_group else self._other_groups(outbox)
        self._prepare_next(outbox, partition)

    def _other_groups(self, outbox: Outbox) -> list[str]:
        assert self.chain is not None
        return [group for group in candidates.in_order(outbox, self.chain) if group != self.chain.open_segment.group]

    def _quiesce(self, outbox: Outbox, partition: Partition) -> None:
        assert self.chain is not None
        old = self.chain.open_segment
        self.phase = Phase.QUIESCING
        self._set_deadline(outbox, partition, 2 * outbox.config.planned_switch_us)
        outbox.send(old.master, QuiesceRequest(partition.id, old.no, self.id))

    def _problem(self, outbox: Outbox, chain: Chain) -> errors.SeriatimError | None:
        """Why a planned switch has nowhere to go; None if it has."""
        old, target = chain.open_segment, self.target_group
        if not target:
            others = [group for group in candidates.in_order(outbox, chain) if group != old.group]
            return None if others else errors.PreconditionError("no other group of the send chain is whole")
        members = outbox.groups.get(target, ())
        if self.target_master and self.target_master not in [member.broker for member in members]:
            return errors.PreconditionError(f"{self.target_master} is no member of group {target!r}")
        if not candidates.is_whole(outbox, target):
            for member in members:
                outbox.connect(member.broker)  # whoever asks again may find it whole
            return errors.UnavailableError(f"group {target!r} is not whole, as far as is known here")
        if target == old.group and self.target_master in ("", old.master.broker):
            return errors.PreconditionError(f"the open segment is there: {old.master.broker} is its master")
        return None

    def on_quiesced(self, outbox: Outbox, partition: Partition, message: QuiesceAnswer) -> None:
        """The master rests, or goes on."""
        if self.phase is not Phase.QUIESCING or message.switch != self.id:
            return
        if not message.quiet:
            self.give_up(outbox, partition, errors.UnavailableError("the master did not come to rest in time"))
            return
        assert self.chain is not None
        self._fence(outbox, partition, self.chain.open_segment.members[:1])

    # ---- step 2: fence ----------------------------------------------------------------------------------

    def _fence(self, outbox: Outbox, partition: Partition, members: tuple[MemberId, ...]) -> None:
        self.phase = Phase.FENCING
        self.pending = dict.fromkeys(members, False)
        self._set_deadline(outbox, partition, outbox.config.fence_timeout_us << self.tries)
        for member in members:
            self._ask_fence(outbox, partition, member)
        self._decide_or_wait(outbox, partition)

    def _ask_fence(self, outbox: Outbox, partition: Partition, member: MemberId) -> None:
        assert self.chain is not None
        if not outbox.is_linked(member):
            outbox.connect(member.broker)
            return
        self.pending[member] = True
        attempt = self.chain.open_segment.attempt
        outbox.send(member, FenceRequest(partition.id, self.segment_no, attempt, self.id))

    def on_fence_answer(self, outbox: Outbox, partition: Partition, sender: MemberId, message: FenceAnswer) -> None:
        """A member is fenced, and says what it has."""
        if self.phase is not Phase.FENCING or message.switch != self.id or sender not in self.pending:
            return
        if message.coordinator_behind:
            self._pause(outbox, partition)  # what this member knows, the record may not have
            return
        del self.pending[sender]
        if message.fenced:
            self.fenced = True
            self.answers[sender] = message
            if self.first_answer_us is None:
                self.first_answer_us = outbox.now.mono_us
        self._decide_or_wait(outbox, partition)

    def on_fence_progress(self, outbox: Outbox, partition: Partition, sender: MemberId, message: FenceProgress) -> None:
        """A member is fenced and has much to say: it gets the time for it, if nothing else is known yet.

        Without it: (1) a large table needs longer than `fence_timeout_us`; (2) the certificate of the master is there,
        so the segment is opened over, though a member is about to say how long it is.
        """
        if self.phase is Phase.FENCING and message.switch == self.id and self.pending.get(sender) and not self.answers:
            config = outbox.config
            more_us = config.fence_turn_us + config.transfer_us(min(message.size_bytes, 2 * config.table_bytes_max))
            self._set_deadline(outbox, partition, (config.fence_timeout_us << self.tries) + more_us)

    def _decide_or_wait(self, outbox: Outbox, partition: Partition, timed_out: bool = False) -> None:
        """Go on once the best answer is there, or nobody else can give one, or the time is up."""
        with_length = self._believed(outbox, partition)
        if with_length and self._waits_for_second(outbox, with_length):
            return
        hopeless = not any(sent or not outbox.is_gone(member) for member, sent in self.pending.items())
        if (
            any(self.answers[member].unbroken for member in with_length)
            or (with_length and hopeless)
            or (timed_out and with_length)
        ):
            self._decide(outbox, partition, with_length)
        elif timed_out or hopeless:
            if self.kind is Kind.PLANNED:
                self._become_failover(outbox, partition, "the master died")
            elif self.answers:
                self._open_over(outbox, partition)  # only suspects answered: fenced, but no length to trust
            else:
                self._ask_certificate(outbox, partition)
        elif with_length:
            self._set_deadline(outbox, partition, outbox.config.fence_wait_us)

    def _believed(self, outbox: Outbox, partition: Partition) -> list[MemberId]:
        """The members whose answered length may decide: not below what another one knows to be committed.

        Rule `known-elsewhere` (I1): a disk with less than that has forgotten something. It is an older copy.
        """
        answers = {member: answer for member, answer in self.answers.items() if answer.length is not None}
        assert self.chain is not None
        start = self.chain.open_segment.start  # every member had flushed what retention dropped
        committed = max((answer.commit for answer in answers.values()), default=0)
        committed = max(committed, start)
        believed = [member for member, answer in answers.items() if (answer.length or 0) >= committed]
        for member in answers:
            if member not in believed:
                outbox.note(
                    "older_disk", partition.id, segment=self.segment_no, member=str(member), committed=committed
                )
        return believed

    def _waits_for_second(self, outbox: Outbox, with_length: list[MemberId]) -> bool:
        """Whether the other members get some more time, because only disks that were just started have answered.

        Rule `second-member` (I1): both members went down, and one is back. Its disk may be an older copy, made within
        the last run, which nothing else tells. The other member knows better, and is probably on its way.
        """
        assert self.first_answer_us is not None
        if not all(self.answers[member].from_disk for member in with_length):
            return False
        awaited = [member for member in self.pending if not outbox.is_replaced(member)]
        until_us = self.first_answer_us + outbox.config.second_member_us
        if not awaited or outbox.now.mono_us >= until_us:
            return False
        assert self.chain is not None
        self.deadline_us = until_us
        outbox.wake(until_us, "switch", self.chain.partition)
        return True

    def _become_failover(self, outbox: Outbox, partition: Partition, why: str) -> None:
        """The master came to rest and the plan cannot be followed: it is over, and all members are asked."""
        if self.request is not None:
            outbox.emit(Resolved(self.request, partition.route(), errors.UnavailableError(f"{why} meanwhile")))
        self.request = None
        self.kind = Kind.FAILOVER
        self.reason = f"{why} in a planned switch"
        self.begin(outbox, partition)

    # ---- step 3: decide ---------------------------------------------------------------------------------

    def _decide(self, outbox: Outbox, partition: Partition, with_length: list[MemberId]) -> None:
        """The unbroken master's commit; else the shortest answered tail (any would be safe, it copies least)."""
        assert self.chain is not None
        self.source = self.choose_source(with_length)
        answer = self.answers[self.source]
        self.table = answer.table
        self.table_complete = not answer.incomplete_table
        before = self.chain.before(self.segment_no)
        mergeable = not self.table_complete and not self.table.blocks  # blocks are named only if it is too large
        if mergeable and before is not None and self.chain.settled_before(self.segment_no):
            self.phase = Phase.TABLES
            self._set_deadline(outbox, partition, outbox.config.table_timeout_us)
            outbox.send(before.server, TableRequest(partition.id, before.no))
        else:
            self._choose_groups(outbox, partition)

    def choose_source(self, with_length: list[MemberId]) -> MemberId:
        """Whose answer becomes the sealed length.

        Of members that ran on the shortest tail, because it copies least. Of disks that were just started the longest:
        rule `longest-of-started` (I1). One of them may be an older copy, and what is missing on that one was perhaps
        acknowledged.
        """
        unbroken = [member for member in with_length if self.answers[member].unbroken]
        if unbroken:
            return unbroken[0]
        ran_on = [member for member in with_length if not self.answers[member].from_disk]
        if ran_on:
            return min(ran_on, key=lambda member: self.answers[member].length or 0)
        return max(with_length, key=lambda member: self.answers[member].length or 0)

    def on_table(self, outbox: Outbox, partition: Partition, segment_no: int, table: Table | None) -> None:
        """What lies in all segments before is known: the next segment opens with a complete table again."""
        before = self.chain.before(self.segment_no) if self.chain is not None else None
        if self.phase is not Phase.TABLES or before is None or segment_no != before.no:
            return
        if table is not None:
            merged = merge([ProducerTable(table), ProducerTable(self.table)]).at_rest()
            if merged.size_bytes <= outbox.config.spelled_out_bytes_max:
                self.table = merged
                self.table_complete = True
        self._choose_groups(outbox, partition)

    def _ask_certificate(self, outbox: Outbox, partition: Partition) -> None:
        """Nobody answers: only a certificate that the master's run has ended allows to open over it."""
        assert self.chain is not None
        self.phase = Phase.CERTIFYING
        self._set_deadline(outbox, partition, outbox.config.fence_timeout_us)
        outbox.emit(ReadCertificate(partition.id, self.chain.open_segment.master_run_id))

    def on_certificate(self, outbox: Outbox, partition: Partition, run: RunId, exists: bool | None) -> None:
        """Whether the master's run is certified to have ended: by its own certificate, or a later run's of its disk.

        An earlier run's does not: (1) the master's run 0 ended yesterday; (2) run 1 opened this segment and is merely
        unreachable; (3) with yesterday's certificate the next segment is opened while run 1 goes on acknowledging (I7).
        """
        if self.phase is not Phase.CERTIFYING:
            return
        assert self.chain is not None
        wanted = self.chain.open_segment.master_run_id
        if exists and run.member == wanted.member and run.run >= wanted.run:
            self.certificate = run
            self._open_over(outbox, partition)
        else:
            self._pause(outbox, partition)

    def _open_over(self, outbox: Outbox, partition: Partition) -> None:
        self.source = None
        self.table = NO_TABLE
        self.table_complete = False
        self._choose_groups(outbox, partition)

    # ---- step 4: prepare --------------------------------------------------------------------------------

    def _choose_groups(self, outbox: Outbox, partition: Partition) -> None:
        assert self.chain is not None
        self.groups_left = candidates.in_order(outbox, self.chain)
        if self.kind is Kind.PLANNED:  # to the group that has rehearsed
            others = [group for group in self._other_groups(outbox) if group != self.group]
            self.groups_left = [self.group, *others]
        self._prepare_next(outbox, partition)

    def _prepare_next(self, outbox: Outbox, partition: Partition) -> None:
        """Ask all members of the next group, under an attempt of its own."""
        while self.groups_left:
            self.group = self.groups_left.pop(0)
            usable = candidates.usable_members(outbox, self.group)
            if not usable:
                continue
            if self.table.blocks and not all(blocks.reads(outbox, member) for member in usable):
                for member in usable:  # what a member reads it says when it is linked
                    if not outbox.is_linked(member):
                        outbox.connect(member.broker)
                continue  # a member of an older version would take the blocks' names for nothing
            turn = self._turn(partition, usable)
            self.members = outbox.share((*usable[turn:], *usable[:turn]))
            self.attempt, self.attempt_is_new = attempts.begin(outbox, partition, self._content())
            self.prepared = {}
            self.phase = Phase.PREPARING
            self._set_deadline(outbox, partition, self._prepare_timeout_us(outbox))
            for member in self.members:
                self._ask_prepare(outbox, partition, member)
            return
        self._pause(outbox, partition)

    def _prepare_timeout_us(self, outbox: Outbox) -> int:
        """How long the members of a group may take: longer for more bytes, and longer with each try.

        Else a table that takes a little longer than the timeout would end every try, and each one begins anew.
        """
        tail = self.tail()
        size_bytes = self.table.size_bytes + sum(batch.size_bytes for batch in (tail.batches if tail else ()))
        return (outbox.config.prepare_timeout_us << self.tries) + outbox.config.transfer_us(size_bytes)

    def _turn(self, partition: Partition, usable: tuple[MemberId, ...]) -> int:
        """Which member is to be the master: the one that was asked for, else they take turns."""
        names = [member.broker for member in usable]
        if self.kind is Kind.PLANNED and self.group == self.target_group and self.target_master in names:
            return names.index(self.target_master)
        return (partition.id + self.segment_no) % len(usable)

    def _content(self) -> attempts.Content:
        """What the members of the next group are asked to prepare."""
        flush = self.genesis.flush if self.genesis is not None else self.chain is not None and self.chain.flush
        return attempts.Content(
            self.segment_no + 1, self.group, self.members, flush, not self.table_complete, self.table, self.tail()
        )

    def _ask_prepare(self, outbox: Outbox, partition: Partition, member: MemberId) -> None:
        content = self._content()
        outbox.send(
            member,
            PrepareRequest(
                partition.id,
                content.segment_no,
                self.attempt,
                content.members,
                content.flush,
                content.incomplete_table,
                content.table,
                content.tail,
                attempts.replaced_by(outbox, partition, self.attempt, content.segment_no),
                self.source,
            ),
        )

    def tail(self) -> TailCopy | None:
        """The uncertain tail: sealed in, perhaps on one disk only."""
        if self.source is None:
            return None
        answer = self.answers[self.source]
        if not answer.tail:
            return None
        assert answer.length is not None
        return TailCopy(self.segment_no, answer.commit, answer.length, answer.tail)

    def on_prepare_answer(self, outbox: Outbox, partition: Partition, sender: MemberId, message: PrepareAnswer) -> None:
        """A member of the next group is prepared, or will not be."""
        if self.phase is not Phase.PREPARING or message.attempt != self.attempt or sender not in self.members:
            return
        if message.refusal:
            if message.refusal in ("decided", "fenced or holds a batch"):
                self._contradict(outbox, partition, sender)
            elif message.refusal == "the coordinator has lost decisions":
                self._pause(outbox, partition)  # another group may not know what this member knows
            elif message.refusal == "voided" and not self.attempt_is_new:  # the member has restarted since
                attempts.void(outbox, partition, self.attempt)
                self.groups_left.insert(0, self.group)
                self._prepare_next(outbox, partition)
            else:
                self._prepare_next(outbox, partition)
            return
        if message.missing_bytes:  # it gets idle blocks: as long as it gets on, it has the time
            more_us = outbox.config.transfer_us(message.missing_bytes)
            self._set_deadline(outbox, partition, self._prepare_timeout_us(outbox) + more_us)
            return
        self.prepared[sender] = message.run
        if len(self.prepared) < len(self.members):
            return
        if self.kind is Kind.PLANNED and not self.fenced:
            self._quiesce(outbox, partition)
        else:
            self._write(outbox, partition)

    def _contradict(self, outbox: Outbox, partition: Partition, sender: MemberId) -> None:
        """A member has the segment that is to be opened: then the record has moved on, or the coordinator went back.

        Another group must not be tried: the number would be used twice. A read that begins now shows which it is.
        """
        no = self.segment_no + 1
        if self.contradicted:
            why = f"{sender.broker} holds segment {no} of partition {partition.id}, which its record does not have"
            behind.begin(outbox, partition.id, why, no)
            self._wait_for_writes(outbox, partition)
        elif partition.reading:
            self._pause(outbox, partition)  # that read began before
        else:
            self.contradicted = True
            self.begin(outbox, partition)

    # ---- step 5: the transaction ------------------------------------------------------------------------

    def _write(self, outbox: Outbox, partition: Partition) -> None:
        """The transaction, unless the coordinator is known to be behind by now.

        Rule `behind-ends-switch` (I7). Without it: (1) a switcher reads the older copy and fences; (2) a member tells
        it that the segment was sealed long ago, so it reads again, and knows that the coordinator went back; (3) the
        answers that it waits for come all the same, and it opens the lost number again on another group.
        """
        if outbox.behind:
            self._refused(outbox, partition)
            return
        opening = Opening(
            self.attempt,
            self.group,
            self.members,
            self.prepared[self.members[0]],
            not self.table_complete,
            candidates.send_chain(outbox, self.chain, self.group) if self.chain is not None else (),
        )
        floor_ms = self._append_floor_ms(partition)
        # `opened_at` is not below the floor for the sake of masters of older versions.
        now_ms = max(outbox.now.wall_ms, floor_ms)
        self.phase = Phase.WRITING
        if self.genesis is not None:
            g = self.genesis
            chain = create(partition.id, g.topic, g.number, g.flush, g.send_chain, opening, now_ms, g.width)
            partition.revision = 0
            attempts.sent(outbox, partition, self.attempt)
            partition.write_chain(outbox, "switch", chain)
            return
        attempts.sent(outbox, partition, self.attempt)
        self.chain = partition.chain
        assert self.chain is not None
        old = self.chain.open_segment
        assert old.no == self.segment_no
        if self.source is None:
            chain = open_over(self.chain, opening, now_ms, floor_ms)
            partition.write_chain(outbox, "switch", chain, certificate=self.certificate)
            return
        folds = folding.is_understood(outbox)
        chain = seal_and_open(self.chain, self._seal(old), opening, now_ms, floor_ms, folds=folds)
        partition.write_chain(outbox, "switch", chain)

    def _append_floor_ms(self, partition: Partition) -> int:
        """The append time at which the next segment begins: what was appended last goes on in the chain.

        Where what is sealed has a batch, the time of its last one counts even if it is lower than the floor before: the
        master set append time back. With the older floor, producers that sent a moment ago would seem idle for as long
        as the clocks differ, be forgotten, and store a batch twice that they resend (I9). A batch above the sealed
        length sets nothing back: it is gone.

        A member that tells no length (it is suspect, or its table is too large) may know more than the record, or less:
        it answers 0 if it restarted and has no batch. So the newest of both counts.
        """
        sealed = self.answers[self.source] if self.source is not None else None
        if sealed is not None and sealed.length:
            return sealed.last_append_ms
        floor_ms = partition.chain.open_segment.append_floor_ms if partition.chain is not None else 0
        no_length_ms = [answer.last_append_ms for answer in self.answers.values() if answer.length is None]
        return max((floor_ms, *no_length_ms))

    def _seal(self, old: Segment) -> Seal:
        assert self.source is not None
        answer = self.answers[self.source]
        length = answer.length
        assert length is not None
        holders = [member for member, other in self.answers.items() if other.length is not None and _has(other, length)]
        server = old.server if old.server in holders else self.source
        tail = self.tail()
        return Seal(
            length=length,
            checksum=answer.checksum,
            server=server,
            eligible=tuple(sorted(holders, key=old.members.index)),
            tail_from=tail.from_index if tail is not None else None,
            tail_copies=self.members if tail is not None else (),
            size_bytes=answer.size_bytes,
        )

    def on_written(self, outbox: Outbox, partition: Partition, outcome: WriteOutcome) -> None:
        """Done: everybody concerned hears of it. Lost, or not known: read before anything else.

        Refused: the read that is under way says whether the record has it all the same; if not, try again later.
        """
        if outcome is WriteOutcome.REFUSED and self.phase is Phase.WRITING:
            self._refused(outbox, partition)
        elif outcome is not WriteOutcome.DONE and self.phase is Phase.WRITING:
            if self.genesis is not None:
                self.genesis.refused = outcome is WriteOutcome.CONFLICT  # somebody made, or deleted, it meanwhile
            self.phase = Phase.READING  # the read is under way
            self._renew(outbox)

    def _refused(self, outbox: Outbox, partition: Partition) -> None:
        if self.kind is Kind.PLANNED:  # the master is fenced already, so this must come to an end
            self._become_failover(outbox, partition, "the coordinator refused to write")
        else:
            self._wait_for_writes(outbox, partition)


def _has(answer: FenceAnswer, length: int) -> bool:
    """Whether the member holds all below `length`: an unbroken master at least up to its commit."""
    return answer.length is not None and answer.length >= length


# ---- how a switch comes about ---------------------------------------------------------------------------


def begin_failover(outbox: Outbox, partition: Partition, reason: str, segment_no: int) -> None:
    """Run the switch of this segment, unless it is under way."""
    running = partition.switch
    if running is not None and running.segment_no >= segment_no and not running.is_planned:
        running.hurry(outbox, partition)
        return
    if partition.chain is not None and partition.chain.open_segment.no > segment_no:
        return
    if running is not None:
        running.give_up(outbox, partition, errors.UnavailableError("a member failed meanwhile"))
    partition.switch = Switch(Kind.FAILOVER, reason, segment_no, None)
    partition.switch.begin(outbox, partition)


def begin_planned(outbox: Outbox, partition: Partition, event: PlanSwitch) -> None:
    """Move the open segment, everyone alive, unless a switch is under way."""
    if partition.switch is not None:
        error = errors.UnavailableError("another switch of this partition is under way", retry_after_ms=100)
        outbox.emit(Resolved(event.request, partition.route(), error))
        return
    reason = "moved to a chosen place" if event.target_group else "planned"
    partition.switch = Switch(Kind.PLANNED, reason, 0, event.request)
    partition.switch.target_group = event.target_group
    partition.switch.target_master = event.target_master
    partition.switch.begin(outbox, partition)


def begin_move(outbox: Outbox, partition: Partition, reason: str = "group cordoned", target_group: str = "") -> None:
    """Move the open segment away from its group, as planned; nobody waits for the answer."""
    assert partition.switch is None
    partition.switch = Switch(Kind.PLANNED, reason, 0, None)
    partition.switch.target_group = target_group
    partition.switch.begin(outbox, partition)


def begin_genesis(outbox: Outbox, partition: Partition, event: CreatePartition) -> None:
    """Make the partition, with its first segment; one that is there already is no error."""
    if partition.chain is not None or partition.switch is not None:
        busy = errors.UnavailableError("the partition is being made", retry_after_ms=100)
        known = partition.chain is not None
        outbox.emit(Resolved(event.request, partition.route(), None if known else busy))
        return
    partition.switch = Switch(Kind.GENESIS, "created", 0, event.request)
    partition.switch.genesis = Genesis(event.topic, event.number, event.flush, event.send_chain, event.width)
    partition.switch.begin(outbox, partition)
