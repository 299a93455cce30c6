# ruff: noqa: SLF001 - a mutant replaces steps that no other code may touch
"""Rules of the runtime, removed one at a time: worlds of whole brokers must find each of these mutants.

The core believes the runtime in things that it cannot see: that a write is durable, that a message belongs to the
session that it names, that a transaction made its comparisons, that a member run is new and an earlier one has ended.
Each mutant lies to the core in one of these.

Two lies that no world noticed, because the core does not depend on them: messages of a broken connection are treated as
those of the next session (what a living member says of its disk stays true), and no answer is treated as a conflict
(the core reads again in both cases).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from seriatim_api.errors import UnavailableError
from seriatim_api.ids import RunId
from seriatim_broker.core.state.broker import BrokerState
from seriatim_broker.core.values.effects import WriteChain
from seriatim_broker.core.values.events import WriteOutcome
from seriatim_broker.interfaces.coordinator import Compare, Coordinator, Operation
from seriatim_broker.runtime import membership, watermarks
from seriatim_broker.runtime.coordination import WRITE_DEADLINE_S, CoordinatorWork
from seriatim_broker.runtime.driver import Driver
from seriatim_broker.runtime.keys import Keys
from seriatim_broker.testing.simulated_directory import SimulatedDirectory

from .mutation import Mutation, Patch, nothing

_LOSS = ("I1", "I2", "I5", "I6", "I7", "I9", "I10", "I12", "RT", "COPY", "CORE", "TABLE", "CERT")


def _durable_when_submitted() -> list[Patch]:
    submit = Driver._submit

    def early(self: Driver) -> None:
        submit(self)
        if self._tickets:
            self._durable(self._tickets[-1][0])

    return [(Driver, "_submit", early)]


def _any_ticket_covers_all() -> list[Patch]:
    durable = Driver._durable

    def all_of_it(self: Driver, ticket: int) -> None:
        durable(self, self._tickets[-1][0] if self._tickets else ticket)

    return [(Driver, "_durable", all_of_it)]


def _unknown_is_done() -> list[Patch]:
    async def transact(
        self: CoordinatorWork, compares: Sequence[Compare], operations: Sequence[Operation]
    ) -> tuple[WriteOutcome, int]:
        try:
            result = await self._coordinator.txn(compares, operations, deadline_s=WRITE_DEADLINE_S)
        except UnavailableError:
            return WriteOutcome.DONE, max(compare.operand for compare in compares if isinstance(compare.operand, int))
        return (WriteOutcome.DONE, result.revision) if result.succeeded else (WriteOutcome.CONFLICT, 0)

    return [(CoordinatorWork, "_transact", transact)]


def _conflict_is_done() -> list[Patch]:
    transact = CoordinatorWork._transact

    async def done(
        self: CoordinatorWork, compares: Sequence[Compare], operations: Sequence[Operation]
    ) -> tuple[WriteOutcome, int]:
        outcome, revision = await transact(self, compares, operations)
        return (WriteOutcome.DONE, revision) if outcome is WriteOutcome.CONFLICT else (outcome, revision)

    return [(CoordinatorWork, "_transact", done)]


def _chain_is_not_compared() -> list[Patch]:
    prepare = CoordinatorWork._prepare

    def unconditional(self: CoordinatorWork, effect: WriteChain) -> Any:
        return replace(prepare(self, effect), compares=())

    return [(CoordinatorWork, "_prepare", unconditional)]


def _certificate_is_not_compared() -> list[Patch]:
    prepare = CoordinatorWork._prepare

    def trusting(self: CoordinatorWork, effect: WriteChain) -> Any:
        return prepare(self, replace(effect, certificate=None))

    def found(self: CoordinatorWork, effect: Any) -> None:
        from seriatim_broker.core.values.events import CertificateRead

        self._report(CertificateRead(effect.partition, effect.member_run, True))

    return [(CoordinatorWork, "_prepare", trusting), (CoordinatorWork, "read_certificate", found)]


def _run_is_not_raised() -> list[Patch]:
    raise_run = SimulatedDirectory.raise_run

    def same(self: SimulatedDirectory) -> int:
        return raise_run(self) if self.run == 0 else self.run

    return [(SimulatedDirectory, "raise_run", same)]


def _own_run_is_certified() -> list[Patch]:
    certify = membership._certify_earlier_runs

    async def too_many(coordinator: Coordinator, keys: Keys, run: RunId) -> None:
        await certify(coordinator, keys, RunId(run.member, run.run + 1))

    return [(membership, "_certify_earlier_runs", too_many)]


def _nothing_is_asked() -> list[Patch]:
    async def trust(*_arguments: Any) -> None:
        """A process that has the directory is believed to be the only one."""

    return [(membership, "_refuse_a_copy", trust)]


def _watermark_is_not_read() -> list[Patch]:
    return [(watermarks, "check", nothing)]


MUTATIONS: dict[str, Mutation] = {
    "below-the-watermark": Mutation(
        "a disk that ends below its watermark is refused",
        _watermark_is_not_read,
        ("I14",),
        "recent-copies",
        world="brokers",
        layer="runtime",
    ),
    "ask-the-address": Mutation(
        "a start asks whether the run in its record still answers",
        _nothing_is_asked,
        ("CERT",),
        "started-copies",
        world="brokers",
        layer="runtime",
        batch_count=100,
    ),
    "later-run": Mutation(
        "a member run that sees a later run of its disk ends",
        lambda: [(BrokerState, "end_member_run", nothing)],
        ("TWO",),
        "started-copies",
        world="brokers",
        batch_count=100,
    ),
    "durable-early": Mutation(
        "only what the storage reported counts as durable",
        _durable_when_submitted,
        _LOSS,
        world="brokers",
        layer="runtime",
    ),
    "unknown-done": Mutation(
        "a missing answer does not count as success",
        _unknown_is_done,
        _LOSS,
        "switchers-race",
        world="brokers",
        layer="runtime",
    ),
    "chain-compare": Mutation(
        "a write of a chain record compares its revision",
        _chain_is_not_compared,
        _LOSS,
        "switchers-race",
        world="brokers",
        layer="runtime",
    ),
    "certificate-compare": Mutation(
        "a death certificate is read, and compared in the transaction",
        _certificate_is_not_compared,
        ("I7",),
        "groups-die",
        world="brokers",
        layer="runtime",
    ),
    "run-raised": Mutation(
        "each start is a new member run",
        _run_is_not_raised,
        (*_LOSS, "ALARM"),  # the coordinator had confirmed that run before
        "groups-die",
        world="brokers",
        layer="runtime",
    ),
    "own-certificate": Mutation(
        "a start certifies the runs before it, not its own",
        _own_run_is_certified,
        _LOSS,
        "groups-die",
        world="brokers",
        layer="runtime",
    ),
    "conflict-done": Mutation(
        "a transaction whose comparison failed counts as not written",
        _conflict_is_done,
        _LOSS,
        "switchers-race",
        world="brokers",
        layer="runtime",
    ),
    "durable-latest": Mutation(
        "a report of the storage covers only the writes up to its ticket",
        _any_ticket_covers_all,
        _LOSS,
        world="brokers",
        layer="runtime",
    ),
}
"""By name."""
