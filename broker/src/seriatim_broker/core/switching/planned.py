"""A planned switch: see that the target can open the segment, then have the master come to rest."""

from __future__ import annotations

from seriatim_api import errors
from seriatim_api.ids import MemberId

from ..peers import candidates
from ..state.broker import BrokerState
from ..state.partition import Partition
from ..state.switching import Switch, SwitchPhase
from ..values.chain import Chain
from ..values.messages import QuiesceAnswer, QuiesceRequest
from ..values.producers import NO_TABLE
from . import opening, sealing, tries


def rehearse(broker: BrokerState, partition: Partition, switch: Switch, chain: Chain) -> None:
    """Have the target prepare the segment, with an empty table, while the master goes on accepting.

    Without it: (1) the master comes to rest and is fenced; (2) the target, which has died or whose disk takes
    nothing, does not prepare; (3) producers wait for a failover that nobody needed.
    """
    problem = _problem(broker, switch, chain)
    if problem is not None:
        tries.give_up(broker, partition, switch, problem)
        return
    switch.sealing.source = None
    switch.sealing.table = NO_TABLE
    switch.sealing.table_complete = False
    switch.opening.groups_left = [switch.target_group] if switch.target_group else opening.other_groups(broker, switch)
    opening.prepare_next(broker, partition, switch)


def quiesce(broker: BrokerState, partition: Partition, switch: Switch) -> None:
    assert switch.chain is not None
    old = switch.chain.open_segment
    switch.enter(SwitchPhase.QUIESCING)
    tries.set_deadline(broker, partition, switch, 2 * broker.config.planned_switch_us)
    broker.send(old.master, QuiesceRequest(partition.id, old.no, switch.id))


def _problem(broker: BrokerState, switch: Switch, chain: Chain) -> errors.SeriatimError | None:
    """Why a planned switch has nowhere to go; None if it has."""
    old, target = chain.open_segment, switch.target_group
    if not target:
        others = [group for group in candidates.in_order(broker, chain) if group != old.group]
        return None if others else errors.PreconditionError("no other group of the send chain is whole")
    members = broker.directory.groups.get(target, ())
    if switch.target_master and switch.target_master not in [member.broker for member in members]:
        return errors.PreconditionError(f"{switch.target_master} is no member of group {target!r}")
    if not candidates.is_whole(broker, target):
        for member in members:
            broker.connect(member.broker)  # whoever asks again may find it whole
        return errors.UnavailableError(f"group {target!r} is not whole, as far as is known here")
    if target == old.group and switch.target_master in ("", old.master.broker):
        return errors.PreconditionError(f"the open segment is there: {old.master.broker} is its master")
    return None


def on_quiesced(broker: BrokerState, partition: Partition, sender: MemberId, message: QuiesceAnswer) -> None:
    """The master rests, or goes on."""
    switch = partition.switch
    if switch is None:
        return
    if switch.phase is not SwitchPhase.QUIESCING or message.switch != switch.id:
        return
    if not message.quiet:
        tries.give_up(broker, partition, switch, errors.UnavailableError("the master did not come to rest in time"))
        return
    assert switch.chain is not None
    sealing.fence(broker, partition, switch, switch.chain.open_segment.members[:1])
