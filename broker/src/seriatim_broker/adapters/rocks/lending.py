"""Staged bodies that another log may adopt. To *adopt* is to leave a body where it is, instead of writing it again.

A staged batch is written in two pieces: its body under a key of its own, and the rest under its place in the stage log.
A batch of a publication has the same body. So the log that takes this batch writes only its header and the place of the
body. While that log needs the body, its extent is not emptied, whatever happens to the stage log.

Rule `seen-here` (I12): a body is adopted only if this disk read its staged batch in this member run, and the stage log
was not cut since. Without it:

1. A batch is staged.
2. This disk loses the batch, and gets other batches in its place.
3. The log of the publication adopts the body that the manifest names, and does not write it. This disk has no such
   body, but the batch counts as stored here.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Final, NamedTuple

from seriatim_api.batch import FLAG_STAGED, BatchHeader

from .codec import BodyPlace
from .extents import ExtentLog
from .keys import body_key

SEEN_COUNT_MAX: Final = 4096
"""Limit for the staged batches that are remembered for adoption: about 3 MB of memory. If one is forgotten, its body is
written again."""


class _Seen(NamedTuple):
    header: BatchHeader
    log: ExtentLog
    cuts: int


class Lending:
    """The last `SEEN_COUNT_MAX` staged batches that this disk read. It knows the places of their bodies.

    It runs on the event loop.
    """

    def __init__(self, size_bytes_min: int) -> None:
        self._size_bytes_min = size_bytes_min
        self._seen: OrderedDict[tuple[int, int, int], _Seen] = OrderedDict()

    def note(self, log: ExtentLog, header: BatchHeader) -> None:
        """Note that a staged batch was read from this log."""
        place = (header.partition, header.segment, header.base_index)
        self._seen[place] = _Seen(header, log, log.cuts)
        self._seen.move_to_end(place)
        if len(self._seen) > SEEN_COUNT_MAX:
            self._seen.popitem(last=False)

    def is_apart(self, header: BatchHeader) -> bool:
        """Whether the body gets a key of its own. The body of a staged batch does, unless it is small."""
        return bool(header.flags & FLAG_STAGED) and header.body_length >= self._size_bytes_min

    def body_of(self, staged: BatchHeader, header: BatchHeader) -> BodyPlace | None:
        """The place of a staged body that the batch `header` may adopt; None if it is not certain. Ask once for each.

        Args:
            staged: The header of the staged batch.
            header: The header of the publication's batch.
        """
        place = (staged.partition, staged.segment, staged.base_index)
        seen = self._seen.pop(place, None)
        if seen is None or seen.header.raw != staged.raw or seen.log.cuts != seen.cuts:
            return None
        if (staged.body_crc, staged.body_length) != (header.body_crc, header.body_length):
            return None
        if not self.is_apart(staged):
            return None
        bodies = seen.log.runs[seen.log.run_at(staged.base_index)].bodies
        return BodyPlace(bodies, body_key(staged)) if bodies else None
