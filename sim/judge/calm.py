"""CALM: in a world in which nothing fails, no broker is taken for silent, and no segment moves because of a failure.

Planned switches may meet there. Then one of them continues as a failover, because the chain record changed. In a world
in which only masters freeze, no broker is taken for silent unless it is frozen, or its first frame afterwards is on its
way.
"""

from __future__ import annotations

from seriatim_broker.core.values.effects import Note
from seriatim_broker.core.values.kinds import SwitchReason

from .seen import Seen

FAILURES = (
    SwitchReason.DISK_HANGS,
    SwitchReason.GROUP_LOST,
    SwitchReason.PEER_DEAD,
    SwitchReason.PLAN_MASTER_DIED,
    SwitchReason.SILENT_TO_A_CLIENT,
)
"""Reasons of switches that say that a broker or its disk failed."""


class Calm:
    """Looks at links that brokers cut, and at switches.

    Attributes:
        is_promised: Whether nothing fails in this world.
        only_frozen: Whether only masters freeze in this world.
    """

    def __init__(self, seen: Seen) -> None:
        self._seen = seen
        self.is_promised = False
        self.only_frozen = False
        self._heard_us: dict[str, int] = {}

    def thawed(self, who: str, heard_us: int) -> None:
        """A broker continues. By `heard_us` (virtual time) its first frame has reached every other one."""
        self._heard_us[who] = heard_us

    def cut(self, who: str, other: str, now_us: int) -> None:
        """A broker cuts its link to another one, at a virtual time."""
        if self.is_promised:
            self._seen.fail("CALM", f"{who} takes {other} for silent, and nothing has failed")
        process = self._seen.brokers[other].process
        is_mute = process is not None and (process.frozen or now_us < self._heard_us.get(other, 0))
        if self.only_frozen and process is not None and not is_mute:
            self._seen.fail("CALM", f"{who} takes {other} for silent, which is not frozen")

    def noted(self, note: Note) -> None:
        """A broker notes something."""
        if not self.is_promised or note.name != "switched":
            return
        fields = dict(note.fields)
        if fields["reason"] in FAILURES:
            self._seen.fail("CALM", f"segment {fields['segment']} opens ({fields['reason']}), and nothing has failed")
