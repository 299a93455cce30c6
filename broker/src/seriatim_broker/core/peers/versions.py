"""Which forms of messages and records the other brokers read. In a rolling upgrade some are of the version before."""

from __future__ import annotations

from seriatim_api.ids import MemberId

from ..state.broker import BrokerState


def reads(broker: BrokerState, member: MemberId, form: int) -> bool:
    """Whether a member reads messages of that form (`messages.FORMS`), as its broker said when it was linked."""
    link = broker.links.by_broker.get(member.broker)
    return member == broker.member or (link is not None and link.forms & form == form)


def all_read(broker: BrokerState, form: int) -> bool:
    """Whether every registered broker reads that form: only then may a record, or what all brokers must do, have it.

    Linked brokers count too, because this broker may not have read yet what they registered.
    """
    linked = (link.forms for link in broker.links.by_broker.values() if link.member is not None)
    return all(forms & form == form for forms in (broker.directory.forms_of_all, *linked))
