"""Rules of producer tables: what they keep of idle producers and how long, and how a large table travels."""

from __future__ import annotations

from typing import Any

from seriatim_broker.rpc.links import codec, peer_frames

from .mutation import LOSS, Mutation, Patch
from .rows import mutations


def _parts_mixed() -> list[Patch]:
    """Parts of all links are kept in one place and not checked: those of two preparations become one."""
    together: list[bytes] = []

    def take_part(self: Any, part: bytes, parts_left: int, **_kind: bool) -> list[Any]:
        together.append(part)
        if parts_left:
            return []
        whole = b"".join(together)
        together.clear()
        return [codec.decode(whole)]

    return [(peer_frames.ControlReader, "_take_part", take_part)]


MUTATIONS: dict[str, Mutation] = mutations("""
[TABLE I9 idle-producers]
gone-when-committed [TABLE GAP I9 LOSS]: a producer is forgotten when the batch that pushes it out is committed
@ core.values.producers.ProducerTable.add
  self._add(_Pending(header.producer, entry, header.append_time_ms, offset, header.spared))
+ self.fold(1 << 62)
limit-in-the-record: how many producers a segment remembers stands in its record
@ core.writing.admission.begin
  log.led_from_us = broker.now.mono_us
+ log.live_table.limit += 3
protected: a new producer pushes out none that was heard lately
@ core.writing.admission.spared
+ return 0
protected-from-opening: to a master, the time before it opened the segment counts as nothing
@ core.writing.admission.begin
+ log.led_from_us = broker.now.mono_us - (1 << 40)
start-folds [TABLE GAP I1 I9]: a start takes up the committed batches whose windows are not on the disk yet
@ core.state.segment_log.SegmentLog.recovered
- return log
+ log.live_table.cut(0)
+ return log
row-hides-window [TABLE GAP I1 I9 CORE]: a producer that came back is known by its window, not by its row in a block
@ core.values.producers.Room.window
- window = self.windows.get(producer)
+ found = ((block, block.find(producer)) for block in reversed(self.blocks))
+ window = next((block.window(at) for block, at in found if at >= 0), None) or self.windows.get(producer)
block-missing [TABLE CORE]: a preparation is written only with all idle blocks that it names
@ core.values.producers.ProducerTable.__init__
- named = [blocks[name.id] for name in table.blocks]
+ named = [blocks[name.id] for name in table.blocks if name.id in blocks]
@ core.switching.idle_blocks.missing
+ return ()
part-missing [I13 LOSS tables-in-parts]: a message in parts is complete only with its last part
@ rpc.links.peer_frames.ControlReader._take_part
- if self._parts_read and (parts_left
+ if not parts_left and not self._parts:
+     return []
+ parts_left = 0 if parts_left == 1 else parts_left
+ if self._parts_read and (parts_left
""") | {
    "parts-mixed": Mutation(
        "a message is put together from the parts of one link only", _parts_mixed, ("I13", *LOSS), "tables-in-parts"
    ),
}
"""By name."""
