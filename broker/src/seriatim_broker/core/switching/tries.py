"""The tries of a switch: a try begins, pauses, waits until the coordinator takes writes, and ends."""

from __future__ import annotations

from seriatim_api import errors

from ..peers import lost_decisions
from ..state.broker import BrokerState
from ..state.partition import Partition
from ..state.switching import Switch, SwitchKind, SwitchPhase
from ..values.effects import Resolved
from ..values.kinds import SwitchReason, TimerKind


def begin(broker: BrokerState, partition: Partition, switch: Switch) -> None:
    """Step 1: read the chain record.

    Not while the coordinator refuses writes: the switch would fence the segment, and could not write its transaction.
    """
    if not switch.started_us:
        switch.started_us = broker.now.mono_us
    if partition.write_wait_us(broker):
        wait_for_writes(broker, partition, switch)
        return
    switch.enter(SwitchPhase.READING)
    renew(broker, switch)
    partition.read_chain(broker)


def renew(broker: BrokerState, switch: Switch) -> None:
    """Give the switch a new id, so that answers from before the next read of the chain record do not count."""
    switch.id = broker.new_id()
    switch.sealing.renew()


def hurry(broker: BrokerState, partition: Partition) -> None:
    """There is a new reason for the switch: end its pause now."""
    switch = partition.switch
    if switch is None:
        return
    if switch.phase is SwitchPhase.PAUSED:
        begin(broker, partition, switch)


def give_up(broker: BrokerState, partition: Partition, switch: Switch, error: errors.SeriatimError) -> None:
    """End a planned switch or a genesis without a transaction: the open segment stays where it is."""
    if switch.request is not None:
        broker.out.emit(Resolved(switch.request, partition.route(), error))
    if partition.switch is switch:
        partition.switch = None
        partition.amend_soon(broker)


def finish(broker: BrokerState, partition: Partition, switch: Switch) -> None:
    """End the switch: a later segment is open, by this switch or by another one."""
    if switch.request is not None:
        broker.out.emit(Resolved(switch.request, partition.route(), None))
    partition.switch = None
    partition.amend_soon(broker)


def pause(broker: BrokerState, partition: Partition, switch: Switch) -> None:
    """This try of the switch cannot continue: try again after a pause, or when a member is linked.

    The pause begins with `retry_us` and doubles up to `retry_us_max`. Only a failover tries again: a planned switch or
    a genesis is given up.
    """
    if switch.kind is SwitchKind.PLANNED and switch.fenced:
        become_failover(broker, partition, switch, SwitchReason.PLAN_TARGET_DIED)
        return
    if switch.kind is not SwitchKind.FAILOVER:
        give_up(
            broker,
            partition,
            switch,
            errors.UnavailableError("the members that are needed did not answer in time; nothing changed; ask again"),
        )
        return
    config = broker.config
    switch.enter(SwitchPhase.PAUSED)
    switch.tries = min(switch.tries + 1, config.patience_doublings_max)
    switch.pause_us = min(max(2 * switch.pause_us, config.retry_us), config.retry_us_max)
    set_deadline(broker, partition, switch, switch.pause_us)
    partition.amend_soon(broker)


def wait_for_writes(broker: BrokerState, partition: Partition, switch: Switch) -> None:
    """The coordinator refuses writes or has lost decisions: a failover waits, and any other switch is given up."""
    if switch.kind is not SwitchKind.FAILOVER:
        error: errors.SeriatimError = errors.CoordinatorRefusedError(
            "the coordinator refuses to write, so this cannot be done now. Acknowledged messages are safe. Remedy: the "
            "log of the broker has the reason, for example that etcd's quota is used up; mend that, then ask again"
        )
        if broker.coordinator.behind:
            error = errors.CoordinatorBehindError(lost_decisions.reason(broker))
        give_up(broker, partition, switch, error)
        return
    if switch.phase is SwitchPhase.PAUSED and switch.deadline_us > broker.now.mono_us:
        return
    switch.enter(SwitchPhase.PAUSED)
    set_deadline(broker, partition, switch, partition.write_wait_us(broker))


def set_deadline(broker: BrokerState, partition: Partition, switch: Switch, after_us: int) -> None:
    """Set the deadline of the present phase, and wake the switch then."""
    switch.deadline_us = broker.now.mono_us + after_us
    broker.wake(switch.deadline_us, TimerKind.SWITCH, partition.id)


def become_failover(broker: BrokerState, partition: Partition, switch: Switch, reason: SwitchReason) -> None:
    """A planned switch cannot continue, and may have fenced its master: begin again as a failover."""
    if switch.request is not None:
        broker.out.emit(Resolved(switch.request, partition.route(), errors.UnavailableError(str(reason))))
    switch.request = None
    switch.kind = SwitchKind.FAILOVER
    switch.reason = reason
    begin(broker, partition, switch)
