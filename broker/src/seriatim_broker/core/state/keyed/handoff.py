"""The handoff of the keys from server to server: what is read in at the beginning, and what is frozen at the end."""

from __future__ import annotations

from dataclasses import dataclass, field

from seriatim_api.ids import MemberId

from ...values.effects import WriteCursor
from ...values.events import ConsumerAcks, ConsumerExtend, ConsumerNack
from ...values.ledger_rows import CarriedGrant
from ...values.log import HandOverState
from ...values.states import State
from ..dispatcher import Consumer


@dataclass(slots=True, eq=False)
class OutgoingHandoff(State):
    """The state of the keys on its way to the server of the next segment.

    Attributes:
        handoff: What is handed over.
        oldest: The oldest offset in it.
        to: The server to which it was sent.
        asked_us: When it was sent last.
        is_kept: Every member that must keep it has it.
        sent: The transaction that moves the cursor, as long as its outcome is not known; None: none is under way.
        is_unknown: A try of it had no answer. So a later try that is refused does not say that it is not carried out.
        has_conflict: It found that the cursor or the chain had changed. Only a read of the cursor that begins from then
            on counts: one that is under way may have found the cursor before an earlier try was carried out.
    """

    handoff: HandOverState
    oldest: int
    to: MemberId
    asked_us: int = 0
    is_kept: bool = False
    sent: WriteCursor | None = None
    is_unknown: bool = False
    has_conflict: bool = False


@dataclass(slots=True, eq=False)
class UnreadRows(State):
    """Rows of keys that are read into the dispatcher step by step.

    Attributes:
        rows: The rows, those of lists before those of keys.
        at: How many of them were read.
        chunks: Chunks of lists whose key was not read yet.
        grants: Grants that continue when all is read.
    """

    rows: tuple[tuple[bytes, bytes], ...]
    at: int = 0
    chunks: dict[bytes, dict[int, list[int]]] = field(default_factory=dict)
    grants: tuple[CarriedGrant, ...] = ()


@dataclass(slots=True, eq=False)
class Handoff(State):
    """How far this server has taken over the state of the keys, and how far it has given it to the next one.

    While `frozen` is not None, nothing of the keys changes. That is so until `unread` is None and `is_begun` is true,
    and as long as `outgoing` is not None.

    Attributes:
        unread: Rows of keys that are not read yet; None: all are.
        handed: The rows that were handed over, until the first control record has them; None: it has.
        is_begun: Every eligible member knows that this server continues from what was handed over.
        is_common: Every eligible member has a control record of this dispatcher.
        absent: Consumers with grants that were handed over, and that have not joined here, by name.
        frozen: What consumers sent while nothing may change; None: it may.
        frozen_rows: How many rows that has.
        outgoing: What is handed over to the next segment; None: nothing is.
        rests_until_us: While it is frozen: when it is given up. Else: no handoff begins before.
    """

    unread: UnreadRows | None = None
    handed: tuple[tuple[bytes, bytes], ...] | None = None
    is_begun: bool = True
    is_common: bool = False
    absent: dict[str, Consumer] = field(default_factory=dict)
    frozen: list[ConsumerAcks | ConsumerNack | ConsumerExtend] | None = None
    frozen_rows: int = 0
    outgoing: OutgoingHandoff | None = None
    rests_until_us: int = 0

    def keep(self, event: ConsumerAcks | ConsumerNack | ConsumerExtend, rows: int) -> None:
        """What a consumer sent waits until the state may change."""
        assert self.frozen is not None
        self.frozen.append(event)
        self.frozen_rows += rows

    def thaw(self) -> list[ConsumerAcks | ConsumerNack | ConsumerExtend]:
        """The state may change. Returns what consumers sent meanwhile."""
        waiting, self.frozen, self.frozen_rows = self.frozen, None, 0
        return waiting or []
