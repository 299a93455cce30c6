"""One try of a switch after another: it begins, pauses, waits, and ends."""

from __future__ import annotations

from seriatim_api import errors

from ..peers import behind
from ..state.broker import BrokerState
from ..state.partition import Partition
from ..state.switching import Switch, SwitchKind, SwitchPhase
from ..values.effects import Resolved
from ..values.kinds import SwitchReason, TimerKind


def begin(broker: BrokerState, partition: Partition, switch: Switch) -> None:
    """Step 1: read the chain. Not while the coordinator refuses writes: the switch would fence, and not end."""
    if not switch.started_us:
        switch.started_us = broker.now.mono_us
    if partition.write_wait_us(broker):
        wait_for_writes(broker, partition, switch)
        return
    switch.enter(SwitchPhase.READING)
    renew(broker, switch)
    partition.read_chain(broker)


def renew(broker: BrokerState, switch: Switch) -> None:
    """Answers to an earlier reading of the chain say nothing about the next one."""
    switch.id = broker.new_id()
    switch.sealing.renew()


def hurry(broker: BrokerState, partition: Partition) -> None:
    """There is a new reason: do not sit out a pause."""
    switch = partition.switch
    if switch is None:
        return
    if switch.phase is SwitchPhase.PAUSED:
        begin(broker, partition, switch)


def give_up(broker: BrokerState, partition: Partition, switch: Switch, error: errors.SeriatimError) -> None:
    """A planned switch is dropped; the segment goes on where it is."""
    if switch.request is not None:
        broker.out.emit(Resolved(switch.request, partition.route(), error))
    if partition.switch is switch:
        partition.switch = None


def finish(broker: BrokerState, partition: Partition, switch: Switch) -> None:
    """The chain is past the segment, by this switch or another."""
    if switch.request is not None:
        broker.out.emit(Resolved(switch.request, partition.route(), None))
    partition.switch = None


def pause(broker: BrokerState, partition: Partition, switch: Switch) -> None:
    """Nothing more can be done now: try again after a while, or when something changes."""
    if switch.kind is SwitchKind.PLANNED and switch.fenced:
        become_failover(broker, partition, switch, SwitchReason.PLAN_TARGET_DIED)
        return
    if switch.kind is not SwitchKind.FAILOVER:
        give_up(broker, partition, switch, errors.UnavailableError("the members needed did not answer in time"))
        return
    config = broker.config
    switch.enter(SwitchPhase.PAUSED)
    switch.tries = min(switch.tries + 1, config.patience_doublings_max)
    switch.pause_us = min(max(2 * switch.pause_us, config.retry_us), config.retry_us_max)
    set_deadline(broker, partition, switch, switch.pause_us)


def wait_for_writes(broker: BrokerState, partition: Partition, switch: Switch) -> None:
    """The coordinator refused a write: a switch that nobody waits for goes on later, another one ends here."""
    if switch.kind is not SwitchKind.FAILOVER:
        error: errors.SeriatimError = errors.CoordinatorRefusedError(
            "the coordinator refuses to write, so this cannot be done now. Messages are safe. Remedy: see the log "
            "of the broker for the reason, e.g. etcd's quota is used up; then ask again"
        )
        if broker.coordinator.behind:
            error = errors.CoordinatorBehindError(behind.reason(broker))
        give_up(broker, partition, switch, error)
        return
    if switch.phase is SwitchPhase.PAUSED and switch.deadline_us > broker.now.mono_us:
        return
    switch.enter(SwitchPhase.PAUSED)
    set_deadline(broker, partition, switch, partition.write_wait_us(broker))


def set_deadline(broker: BrokerState, partition: Partition, switch: Switch, after_us: int) -> None:
    switch.deadline_us = broker.now.mono_us + after_us
    broker.wake(switch.deadline_us, TimerKind.SWITCH, partition.id)


def become_failover(broker: BrokerState, partition: Partition, switch: Switch, reason: SwitchReason) -> None:
    """The master came to rest and the plan cannot be followed: it is over, and all members are asked."""
    if switch.request is not None:
        broker.out.emit(Resolved(switch.request, partition.route(), errors.UnavailableError(str(reason))))
    switch.request = None
    switch.kind = SwitchKind.FAILOVER
    switch.reason = reason
    begin(broker, partition, switch)
