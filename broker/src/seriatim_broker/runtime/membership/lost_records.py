"""Looking back: whether the coordinator still has what it had.

Signs of an older copy of the coordinator are an outage, a lower revision, and older member records. So this duty reads
the broker's own record every 2 s and looks at all three. Two things prove that the coordinator went back: a record
below the broker's own run, and a revision below the highest that was seen. They prove nothing if the coordinator was
rebuilt since: the rebuild writes its time into the cluster's record, and revisions start over.

The core is notified of a rebuild too, because it may not have noticed that anything was lost. So are the copies of the
coordinator's records, which are listed again. The disk keeps the highest
revision, noted once a minute, and before a decided publication is carried out. After an outage the core also compares
the chain records of its partitions.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace

import structlog
from seriatim_api.errors import CoordinatorUnavailableError, SeriatimError, StorageError
from seriatim_api.v1 import records_pb2

from ...core.values.events import CompareChains, CoordinatorRebuilt, Event, OwnRecordSeen
from ...interfaces.coordinator import Coordinator, Get
from ..coordinator.keys import Keys
from .registration import Identity, Seen

LOOK_S = 2.0
LOOK_DEADLINE_S = 2.0
"""If a read gets no answer within this time, it counts as an outage."""

NOTE_LOOKS = 30
"""After this many reads the highest revision is noted on the disk, if it has grown: once a minute."""

NOTE_DEADLINE_S = 2.0
"""A decision waits for its note at most twice this long. A disk that hangs is the concern of others."""

Remember = Callable[[Seen], Awaitable[None]]
"""`remember(seen)`: keep it on the disk. Raises `StorageError` if that fails."""

_log = structlog.get_logger(__name__)


class LostRecords:
    """The duty of one broker."""

    def __init__(
        self,
        coordinator: Coordinator,
        keys: Keys,
        identity: Identity,
        emit: Callable[[Event], None],
        remember: Remember,
        rebuilt: Callable[[], None],
    ) -> None:
        self._coordinator = coordinator
        self._key = keys.member(identity.member.broker)
        self._cluster_key = keys.cluster_record
        self._identity = identity
        self._emit = emit
        self._remember = remember
        self._rebuilt = rebuilt
        self._seen = self._noted = identity.seen
        self._looks_until_note = 0
        self._was_away = False
        self._problem = ""
        self._writing = asyncio.Lock()
        self._keeping: asyncio.Task[None] | None = None

    @property
    def seen(self) -> Seen:
        """What was seen of the coordinator until now. `Seen.revision` is the highest since a rebuild."""
        return self._seen

    async def run(self) -> None:
        """Read every 2 s until cancelled."""
        while True:
            await self.look()
            await asyncio.sleep(LOOK_S)

    async def lost(self) -> str:
        """Look now, and say what proves that the coordinator went back; empty if nothing does.

        Raises:
            CoordinatorUnavailableError: The coordinator does not answer.
        """
        await self.look()
        if self._was_away:
            raise CoordinatorUnavailableError("the coordinator does not answer", retry_after_ms=int(LOOK_S * 1000))
        return self._problem

    async def look(self) -> None:
        """Read once, and tell the core what changed."""
        before = self._seen  # what is noted while the read is under way may be newer than what it gives
        try:
            result = await self._coordinator.txn(
                (), [Get(self._key), Get(self._cluster_key)], deadline_s=LOOK_DEADLINE_S
            )
        except SeriatimError:
            self._was_away = True
            return
        mine, cluster = (response.item for response in result.responses)
        record = records_pb2.ClusterRecord.FromString(cluster.value) if cluster is not None else None
        rebuilt_at_ms = record.rebuilt_at_ms if record is not None else 0
        problem = self._problem_of(mine.value if mine is not None else None) or self._fall(
            before, result.revision, rebuilt_at_ms
        )
        if self._was_away or problem not in ("", self._problem):
            self._emit(CompareChains())
        if problem != self._problem:
            self._problem = problem
            self._emit(OwnRecordSeen(problem))
        self._was_away = False
        if not problem:
            if rebuilt_at_ms > self._seen.rebuilt_at_ms:
                self._emit(CoordinatorRebuilt())
                self._rebuilt()
            begins_anew = rebuilt_at_ms > before.rebuilt_at_ms
            revision = result.revision if begins_anew else max(result.revision, self._seen.revision)
            self._seen = replace(
                self._seen, registered_run=self._identity.run, revision=revision, rebuilt_at_ms=rebuilt_at_ms
            )
            await self._note()

    async def note(self, revision: int) -> None:
        """Keep on the disk that the coordinator has come so far, before something rests on what it decided.

        If the disk does not take it, the log says so, and nothing else happens. The call takes at most 4 s.

        Rule `decision-noted` (ALARM): the disk knows the revision of a publication's decision. Without it:
          1. A publication is decided and carried out. All brokers are killed within the minute.
          2. The coordinator is restored as it was some seconds before the decision. No chain has changed since.
          3. The brokers start, and notice nothing. The program is sent the sequence before, and publishes other rows
             under the one that stands.
        """
        if self._problem:
            return
        self._seen = replace(self._seen, revision=max(revision, self._seen.revision))
        for _ in range(2):  # a write that is under way may have begun with a lower one
            if self._noted.revision >= revision:
                return
            if self._keeping is None or self._keeping.done():
                self._keeping = asyncio.create_task(self._keep(), name="revision")
            await asyncio.wait((self._keeping,), timeout=NOTE_DEADLINE_S)

    def _fall(self, seen: Seen, revision: int, rebuilt_at_ms: int) -> str:
        """How the coordinator's revision contradicts what was seen of it; empty if it does not.

        Rule `revision-floor` (ALARM). Without it: 1. An older copy of the coordinator is restored. 2. No chain record
        changed in between, but cursors, topics and certificates did. 3. Only the revision shows that they are lost.
        """
        if rebuilt_at_ms < seen.rebuilt_at_ms:
            return "it is a copy from before it was rebuilt"
        if rebuilt_at_ms == seen.rebuilt_at_ms and revision < seen.revision:
            return f"its revision is {revision}, and this broker has seen {seen.revision}"
        return ""

    async def _note(self) -> None:
        """Keep on the disk what was seen: a rebuild at once, a higher revision once a minute."""
        self._looks_until_note -= 1
        is_due = self._looks_until_note <= 0 or self._seen.rebuilt_at_ms != self._noted.rebuilt_at_ms
        if not is_due or self._seen == self._noted:
            return
        self._looks_until_note = NOTE_LOOKS
        await self._keep()

    async def _keep(self) -> None:
        async with self._writing:
            seen = self._seen
            if seen == self._noted:
                return
            try:
                await self._remember(seen)
            except StorageError as exc:
                _log.warning("coordinator_revision_not_noted", error=str(exc))  # an older floor proves less
                return
            self._noted = seen

    def _problem_of(self, value: bytes | None) -> str:
        me = self._identity
        if value is None:
            return f"it has no record of {me.member.broker}, which is registered and runs"
        record = records_pb2.MemberRecord.FromString(value)
        if record.member.incarnation == me.member.incarnation and record.run < me.run:
            return f"it knows run {record.run} of {me.member.broker}, which is in run {me.run}"
        return ""
