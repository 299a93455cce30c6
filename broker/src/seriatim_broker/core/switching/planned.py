"""A planned switch: check that the target can open the segment, then have the master come to rest."""

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
    """Have the target prepare the segment, with an empty table, while the master keeps accepting.

    Without it:
      1. The master comes to rest and is fenced.
      2. The target does not prepare, because it has died or its disk takes no write.
      3. Producers wait for a failover, although the old master was well.
    """
    problem = _problem(broker, switch, chain)
    if problem is not None:
        tries.give_up(broker, partition, switch, problem)
        return
    switch.sealing.source = None
    switch.sealing.table = NO_TABLE
    switch.sealing.table_complete = False
    switch.opening.broker_groups_left = (
        [switch.target_broker_group] if switch.target_broker_group else opening.other_broker_groups(broker, switch)
    )
    opening.prepare_next(broker, partition, switch)


def quiesce(broker: BrokerState, partition: Partition, switch: Switch) -> None:
    """The target has rehearsed: ask the master to hold back new batches until all others are committed."""
    assert switch.chain is not None
    old = switch.chain.open_segment
    switch.enter(SwitchPhase.QUIESCING)
    tries.set_deadline(broker, partition, switch, 2 * broker.config.planned_switch_us)
    broker.send(old.master, QuiesceRequest(partition.id, old.no, switch.id))


def _problem(broker: BrokerState, switch: Switch, chain: Chain) -> errors.SeriatimError | None:
    """Why the planned switch cannot go to its target; None if it can."""
    old, target = chain.open_segment, switch.target_broker_group
    if not target:
        others = [group for group in candidates.in_order(broker, chain) if group != old.broker_group]
        return None if others else errors.PreconditionError("no other broker group of the send chain is complete")
    members = broker.directory.broker_groups.get(target, ())
    if switch.target_master and switch.target_master not in [member.broker for member in members]:
        return errors.PreconditionError(f"{switch.target_master} is not a member of broker group {target!r}")
    if not candidates.is_whole(broker, target):
        for member in members:
            broker.connect(member.broker)  # the next request may find the broker group whole
        return errors.UnavailableError(
            f"broker group {target!r} is not complete, as far as this broker knows; ask again"
        )
    if target == old.broker_group and switch.target_master in ("", old.master.broker):
        return errors.PreconditionError(f"the open segment is there already: {old.master.broker} is its master")
    return None


def on_quiesced(broker: BrokerState, partition: Partition, sender: MemberId, message: QuiesceAnswer) -> None:
    """The master says that it rests, or that it could not come to rest in time and continues."""
    switch = partition.switch
    if switch is None:
        return
    if switch.phase is not SwitchPhase.QUIESCING or message.switch != switch.id:
        return
    if not message.quiet:
        tries.give_up(
            broker,
            partition,
            switch,
            errors.UnavailableError("the master did not come to rest in time; the open segment stays where it is"),
        )
        return
    assert switch.chain is not None
    # Rule `rest-is-enough` (I6): a master that rests is fenced all the same. `fencing.fence_and_answer` has the story.
    sealing.fence(broker, partition, switch, switch.chain.open_segment.members[:1])
