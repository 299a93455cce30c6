"""Which forms of messages and records the other brokers read. In a rolling upgrade some are of older versions."""

from __future__ import annotations

from seriatim_api.ids import MemberId

from ..state.broker import BrokerState


def reads(broker: BrokerState, member: MemberId, form: int) -> bool:
    """Whether a member reads messages of that form (`messages.FORM_*`), as its broker said when it was linked."""
    link = broker.links.by_broker.get(member.broker)
    return member == broker.member or (link is not None and bool(link.forms & form))


def all_linked_read(broker: BrokerState, form: int) -> bool:
    """Whether every broker that was linked to this one in this member run reads messages of that form."""
    return all(link.forms & form for link in broker.links.by_broker.values() if link.member is not None)


def all_read(broker: BrokerState, form: int) -> bool:
    """Whether every registered broker reads records of that form: only then may the chain record have it.

    Linked brokers count too, because this broker may not have read yet what they registered.
    """
    return bool(broker.directory.forms_of_all & form) and all_linked_read(broker, form)
