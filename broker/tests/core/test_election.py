"""The election of the owner of a name: random worlds of hosts, programs and partitions, and single stories."""

from __future__ import annotations

import random
from typing import Any, Final

import pytest
from seriatim_api.ids import PartitionId
from seriatim_broker.core.exclusive.election import Election
from seriatim_broker.core.values.owners import (
    AnnounceOwner,
    Claim,
    ListOwned,
    OwnerStanding,
    ReadClaim,
    TellCandidate,
    WriteClaim,
)

PROGRAMS: Final = tuple(bytes([number]) * 16 for number in range(3))
SESSION_US: Final = 2_000_000
SECOND: Final = 1_000_000


class World:
    """Two hosts at a time, a record, and partitions that keep the highest epoch or forget it. `bug`: see `lives`."""

    def __init__(self, seed: int, bug: str = "") -> None:
        self.random = random.Random(seed)
        self.bug, self.now = bug, 0
        self.claim: Claim | None = None
        self.revision = 0
        self.partitions = {0: 0, 1: 0}  # the epoch that each knows; 0: it knows none, and reads the record
        self.hosts: list[Election] = []
        self.under_way: list[tuple[Election, Any]] = []
        self.epochs = dict.fromkeys(PROGRAMS, 0)  # that each program was told
        self.owners: dict[int, bytes] = {}
        self.listed_early: dict[int, tuple[PartitionId, ...]] = {}
        self.begin()

    def begin(self) -> None:
        host = Election(self.now)
        self.hosts = [*self.hosts[-1:], host]
        for program, epoch in self.epochs.items():
            if self.random.random() < 0.8:
                host.came(program, "", SESSION_US, told_epoch=epoch)
        self.collect(host)

    def collect(self, host: Election) -> None:
        for effect in host.take():
            if isinstance(effect, TellCandidate):
                self.tell(effect)
            else:
                self.under_way.append((host, effect))

    def carry(self) -> None:
        if not self.under_way:
            return
        host, effect = self.under_way.pop(self.random.randrange(len(self.under_way)))
        if isinstance(effect, ReadClaim):
            host.read(self.claim, self.revision, failed=self.random.random() < 0.1)
        elif isinstance(effect, WriteClaim):
            if self.bug == "partitions-after-raise":
                self.listed_early[effect.claim.epoch] = self.all_partitions()
                self.bug = "partitions-after-raise, now"
                self.under_way.append((host, effect))
                return
            self.bug = self.bug.removesuffix(", now")
            done = effect.revision == self.revision or self.bug == "nocas"
            if done:
                self.claim, self.revision = effect.claim, self.revision + 1
            host.written(None if self.random.random() < 0.2 else done, effect.claim, self.revision)
        elif isinstance(effect, ListOwned):
            found = self.listed_early.get(effect.epoch) or self.all_partitions()
            host.listed(effect.epoch, found[:1] if self.bug == "onepart" else found)
        else:
            self.announce(host, effect)
        self.collect(host)

    def all_partitions(self) -> tuple[PartitionId, ...]:
        return tuple(PartitionId(number) for number in self.partitions)

    def announce(self, host: Election, effect: AnnounceOwner) -> None:
        number, partition, epoch = effect.number, effect.partition, effect.epoch
        known = self.partitions[number]
        recorded = self.claim.epoch if self.claim is not None else 0
        if epoch < known or (not known and epoch != recorded):
            host.announced(number, partition, epoch, known_epoch=known or recorded)
            return
        self.partitions[number] = epoch
        host.announced(number, partition, epoch, reason="no answer" if self.random.random() < 0.2 else "")

    def tell(self, effect: TellCandidate) -> None:
        epoch = effect.standing.epoch
        if effect.standing.kind is OwnerStanding.OWNED:
            assert all(known == 0 or known >= epoch for known in self.partitions.values()), "E3"
            assert self.owners.setdefault(epoch, effect.owner) == effect.owner, "E2"
            self.epochs[effect.owner] = max(epoch, self.epochs[effect.owner])
        elif effect.standing.kind is OwnerStanding.LOST:
            self.epochs[effect.owner] = 0  # it begins again

    def send(self) -> None:
        epoch = self.random.choice([*self.owners, 0])  # also programs that do not know that they lost
        number = self.random.choice(list(self.partitions))
        known = self.partitions[number]
        recorded = self.claim.epoch if self.claim is not None else 0
        if not epoch or epoch != (known or recorded):
            return
        self.partitions[number] = epoch
        assert epoch >= max(self.owners), "E4"

    def step(self) -> None:
        self.now += self.random.randint(1000, 400_000)
        act, host, program = self.random.random(), self.hosts[-1], self.random.choice(PROGRAMS)
        if act < 0.5:
            self.carry()
        elif act < 0.7:
            self.send()
        elif act < 0.8:
            for one in self.hosts:
                for owner in PROGRAMS:
                    if self.random.random() < 0.7:
                        one.heard(owner)
                one.tick(self.now)
                self.collect(one)
        elif act < 0.85:
            host.came(program, "", SESSION_US, told_epoch=self.epochs[program], takes_over=self.random.random() < 0.3)
            self.collect(host)
        elif act < 0.88:
            host.gone(program, is_released=self.random.random() < 0.5)
            self.collect(host)
        elif act < 0.91:
            self.begin()
        elif act < 0.93 and len(self.partitions) < 5:
            self.partitions[len(self.partitions)] = 0
        elif act < 0.95:
            self.partitions[self.random.choice(list(self.partitions))] = 0
        elif act < 0.96:
            host.released()
            self.collect(host)


def lives(seeds: range, bug: str = "") -> int:
    """How many owners there were in worlds in which the rule `bug` is left out."""
    owners = 0
    for seed in seeds:
        world = World(seed, bug)
        for _ in range(300):
            world.step()
        owners += len(world.owners)
    return owners


def test_random_elections_keep_all_rules() -> None:
    assert lives(range(200)) > 300


@pytest.mark.parametrize(
    ("bug", "rule", "seeds"), [("nocas", "E2", 300), ("onepart", "E3", 50), ("partitions-after-raise", "E", 600)]
)
def test_random_elections_miss_each_rule(bug: str, rule: str, seeds: int) -> None:
    with pytest.raises(AssertionError, match=rule):
        lives(range(seeds), bug)
