"""Administrators who look at keys that wait, release them, and skip messages, while everything else goes wrong.

An administrator asks the server of the consumer group, or another broker. The administrator remembers what the last
list said, and operates on keys of it, also long after it. A request is sometimes sent twice. When the faults are over,
administrators release every key that a list shows.
"""

from __future__ import annotations

import random
from typing import Any

from seriatim_api.ids import PartitionId
from seriatim_api.key_names import name_of_key
from seriatim_broker.core.values.events import Event, ListKeys, OperateKeys
from seriatim_broker.core.values.keyed import KeyOperation, KeyPhase, SeenKey
from seriatim_broker.testing.simulated_bodies import KEYS

from ..basics.interfaces import Cluster
from ..basics.setting import Setting
from ..judge import Judge
from ..judge.excuses import Excuse
from ..programs.clients import Clients

LOOK_US = 25_000
"""Mean time between two requests on a partition."""

REMEMBERED_MAX = 30
"""An administrator operates on one of the keys that were listed last."""


class KeyPeople:
    """All administrators of a world who care for parked keys of one consumer group."""

    def __init__(self, setting: Setting, cluster: Cluster, judge: Judge, clients: Clients, group: str) -> None:
        self._setting = setting
        self._schedule = setting.schedule
        self._cluster = cluster
        self._judge = judge
        self._clients = clients
        self._group = group
        self._seen: dict[PartitionId, list[SeenKey]] = {}
        self._is_over = self._has_begun = False

    def begin(self) -> None:
        """Begin to ask, on each partition."""
        self._has_begun = True
        for partition in self._setting.partitions:
            self.begin_on(partition)

    def begin_on(self, partition: PartitionId) -> None:
        """Begin to ask about a partition."""
        if self._has_begun:
            self._schedule.after(LOOK_US, self._act, partition)

    def end(self) -> None:
        """The faults are over: release what waits, and pass over nothing more."""
        self._is_over = True
        if not self._has_begun:
            self.begin()

    def _act(self, partition: PartitionId) -> None:
        rng = self._schedule.rng
        self._schedule.after(rng.randint(LOOK_US // 2, LOOK_US * 2), self._act, partition)
        known = self._seen.get(partition, [])
        if not known or rng.random() < 0.4:
            self._list(partition, rng)
        elif self._is_over:
            self._operate(partition, KeyOperation.RELEASE, tuple(known), rng)
            self._seen[partition] = []
        else:
            operation = rng.choice((KeyOperation.RELEASE, KeyOperation.RELEASE, KeyOperation.SKIP))
            self._operate(partition, operation, tuple(rng.sample(known, rng.randint(1, min(3, len(known))))), rng)

    def _server(self, partition: PartitionId, rng: random.Random) -> str:
        records = self._cluster.coordinator.records
        record, chain = records.cursor(partition, self._group)[0], records.chain(partition)[0]
        if record is not None and chain is not None and rng.random() < 0.9:
            return (chain.from_no(record.segment_no) or chain.open_segment).server.broker
        return rng.choice(sorted(self._cluster.brokers))

    def _epoch(self, partition: PartitionId) -> int:
        record = self._cluster.coordinator.records.cursor(partition, self._group)[0]
        return record.group_epoch if record is not None else 0

    def _list(self, partition: PartitionId, rng: random.Random) -> None:
        epoch, asked_us = self._epoch(partition), self._schedule.now_us
        phases = rng.choice(((KeyPhase.PARKED,), (KeyPhase.PARKED,), ()))
        name = self._one_name(rng) if self._setting.options.people_name_keys else None

        def make(request: int, deadline_us: int) -> Event:
            return ListKeys(request, partition, self._group, phases, b"", rng.choice((3, 100)), name, deadline_us)

        def answered(effect: Any) -> None:
            if effect is None or effect.error is not None:
                return
            self._judge.rules.keyed.parked.listed(self._group, name, [key.name for key in effect.keys])
            known = [
                SeenKey(key.name, key.turn, key.first_offset, key.group_epoch)
                for key in effect.keys
                if key.first_offset
            ]
            self._seen[partition] = (known + self._seen.get(partition, []))[:REMEMBERED_MAX]
            parked = [key for key in effect.keys if key.phase is KeyPhase.PARKED]
            if parked and self._epoch(partition) == epoch:
                self._judge.seen.states.add("a key was parked")
                for key in parked:
                    seen = SeenKey(key.name, key.turn, key.first_offset, key.group_epoch)
                    self._judge.rules.keyed.parked.said_parked(self._group, partition, epoch, seen, asked_us)

        self._clients.ask_at(self._server(partition, rng), make, answered)

    def _one_name(self, rng: random.Random) -> bytes | None:
        """Sometimes one key only: one of those that messages have, or the empty one, which no message has."""
        if rng.random() < 0.5:
            return None
        return name_of_key(rng.choice((b"", *(b"k%d" % number for number in range(KEYS)))))

    def _operate(
        self, partition: PartitionId, operation: KeyOperation, keys: tuple[SeenKey, ...], rng: random.Random
    ) -> None:
        epoch, seen = self._epoch(partition), self._judge.seen
        judge, may_be_older = self._judge.rules.keyed.parked, seen.waits_for_rebuild
        for key in keys:
            judge.person_asks(self._group, partition, key, is_skip=operation is KeyOperation.SKIP)

        def make(request: int, deadline_us: int) -> Event:
            return OperateKeys(request, partition, self._group, operation, keys, deadline_us)

        def answered(effect: Any) -> None:
            if effect is None or effect.error is not None:
                return
            for key, result in zip(keys, effect.results, strict=True):
                if not isinstance(result, bool):
                    seen.states.add("a key had changed")
                    continue
                seen.states.add(f"a key: {operation.name.lower()}{' again' * result}")
                if may_be_older or seen.waits_for_rebuild:
                    seen.excuse(Excuse.OLDER_CURSOR)  # a rebuild may bring back what was before
                    continue
                if not result and self._epoch(partition) == epoch:
                    judge.acted(self._group, partition, epoch, key, self._schedule.now_us)
                # A key that does not wait any more may have been moved to another group epoch, where it comes again.
                if operation is KeyOperation.SKIP and not result and self._epoch(partition) == epoch:
                    judge.was_skipped(self._group, partition, epoch, key.first_offset)

        server = self._server(partition, rng)
        self._schedule.tell("person", f"wants {operation.name} of {len(keys)} keys of {self._group} at {server}")
        self._clients.ask_at(server, make, answered)
        if rng.random() < 0.3:
            self._schedule.after(rng.randint(0, 300_000), self._clients.ask_at, server, make, answered)
