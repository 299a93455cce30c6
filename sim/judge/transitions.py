"""I7: the records of a chain form one line, in which each segment goes through legal states, and only the last is OPEN.

TWICE: a segment with stored messages keeps its one switch attempt, even if the coordinator forgot it.
CERT: a member run that was certified dead has ended.
I8, COPY of a fold: a segment is folded only if it is empty for ever, and no other segment needs its members.
"""

from __future__ import annotations

from seriatim_api.ids import RunId
from seriatim_broker.core.values.chain import Chain
from seriatim_broker.core.values.segment import LEGAL_TRANSITIONS, Segment, SegmentState

from .losses import Place
from .seen import Seen

_FIXED = ("switch_attempt", "broker_group", "master_run", "incomplete_table", "opened_at_ms", "append_floor_ms")
"""What never changes in the record of a segment."""


class Transitions:
    """Compares each record of a chain with the one before."""

    def __init__(self, seen: Seen) -> None:
        self._seen = seen
        self._attempts: dict[Place, bytes] = {}

    def used_once(self, who: str, after: Chain) -> None:
        """TWICE: a record is written."""
        for segment in after.segments:
            first = self._attempts.setdefault((after.partition, segment.no), segment.switch_attempt)
            if first != segment.switch_attempt:
                if any(key[:2] == (after.partition, segment.no) for key in self._seen.placed):
                    self._seen.fail(
                        "TWICE", f"{who} opens {after.partition}:{segment.no} again, on {segment.broker_group}"
                    )
                self._attempts[after.partition, segment.no] = segment.switch_attempt

    def begun(self, after: Chain) -> None:
        """A chain's first record."""
        if after.epoch != 1:
            self._seen.fail("I7", f"a chain begins at epoch {after.epoch}")

    def followed(self, before: Chain, after: Chain) -> None:
        """A record follows another one: at most one segment came, at the end."""
        if after.epoch != before.epoch + 1:
            self._seen.fail("I7", f"epoch {before.epoch} is followed by {after.epoch}")
        opened = after.open_segment.no - before.open_segment.no
        if opened not in (0, 1) or any(before.segment(new.no) is None for new in after.segments[: -opened or None]):
            self._seen.fail("I7", f"segments came: {before} {after}")

    def changed(self, what: str, old: Segment, new: Segment) -> None:
        """The record of a segment changed."""
        if new.state is not old.state and new.state not in LEGAL_TRANSITIONS[old.state]:
            self._seen.fail("I7", f"{what} went from {old.state} to {new.state}")
        for name in _FIXED:
            if getattr(old, name) != getattr(new, name):
                self._seen.fail("I7", f"{what}: {name} changed from {getattr(old, name)} to {getattr(new, name)}")
        if old.state in (SegmentState.OPEN, SegmentState.UNSETTLED) and old.members != new.members:
            self._seen.fail("I7", f"{what}: members of an unsealed segment changed: {old.members} to {new.members}")

    def opens(self, before: Chain) -> None:
        """A segment is opened after another one."""
        if before.open_segment.state is not SegmentState.OPEN:
            self._seen.fail("I7", "opened after a segment that was not open")

    def opened_over(self, old: Segment, certificate: RunId | None) -> None:
        """A segment was opened after an unsettled one: the master's run has ended, and a certificate says so."""
        if not _proves(certificate, old) and not self._suspects(old):
            self._seen.fail("I7", f"{old.no} was opened over without the certificate of {old.master_run_id}")
        seen = self._seen
        if certificate is not None and certificate not in seen.certified_falsely and seen.runs(certificate):
            seen.fail("CERT", f"{old.no} was opened over with the certificate of {certificate}, which runs")

    def _suspects(self, segment: Segment) -> bool:
        brokers = self._seen.brokers
        return not self._seen.flush and any(brokers[member.broker].suspect_before_run for member in segment.members)

    def folded(self, before: Chain, after: Chain, old: Segment) -> None:
        """A segment leaves the record only if it is empty for ever, and no other segment needs its members."""
        seen = self._seen
        what = f"segment {old.no} of partition {after.partition} is folded"
        seen.states.add("folded")
        if not after.is_folded(old.no):
            seen.fail("I7", f"{what}, and the record does not say so: {after}")
        if old.state is not SegmentState.SEALED or old.sealed_len != 0:
            seen.fail("I8", f"{what}, and it is {old.state.value} with {old.sealed_len} messages")
        nearest = before.before(old.no)
        if nearest is None or nearest.tail_from is None or nearest.state is not SegmentState.SEALED:
            return
        whole = [m for m in nearest.members if seen.is_present(m) and seen.is_in_sync(after.partition, nearest, m)]
        if len(whole) < 2 and all(map(seen.is_present, nearest.members)):
            seen.fail(
                "COPY", f"{what}, and its members have the tail of {nearest.no}, which is complete on {whole} only"
            )

    def rebuilt(self, after: Chain) -> None:
        """An administrator rewrites a record after the coordinator lost it: no segment with a promise is missing.

        It may lack a transition that was written and that no broker was notified of, so it need not follow the last
        record.
        """
        for (partition, no), promised in self._seen.promised.items():
            has_left = any(left.no == no for left in self._seen.left.get(partition, ()))
            if partition == after.partition and promised and after.segment(no) is None and not has_left:
                what = f"the rebuild lacks segment {no} of partition {partition}"
                self._seen.fail("I7", f"{what}, and all below {promised} was promised")

    def certified(self, who: str, run: RunId) -> None:
        """CERT: if a certificate says that a run has ended, it has ended, unless the certificate itself is a fault."""
        if run not in self._seen.certified_falsely and self._seen.runs(run):
            self._seen.fail("CERT", f"{who} certifies the death of {run}, which runs")


def note_change(seen: Seen, old: Segment, new: Segment) -> None:
    """Count rare states."""
    if old.state is SegmentState.OPEN and new.state is SegmentState.UNSETTLED:
        seen.states.add("opened over")
    if old.state is SegmentState.UNSETTLED and new.state is SegmentState.SEALED:
        seen.states.add("settled")
    if old.state is SegmentState.OPEN and new.tail_copies:
        seen.states.add("tail copied")
    if new.server_epoch > old.server_epoch and old.state is new.state:
        seen.states.add("server taken")
    if len(new.members) > len(old.members) or set(new.members) - set(old.members):
        seen.states.add("copy listed")


def _proves(certificate: RunId | None, segment: Segment) -> bool:
    """Whether this certificate says that the run which the segment's master named has ended."""
    wanted = segment.master_run_id
    return certificate is not None and certificate.member == wanted.member and certificate.run >= wanted.run
