"""Staged bodies that another log may adopt: it leaves them where they are, instead of writing them again.

A staged batch is written in two pieces: its body under a key of its own, and the rest of it under its place in the
stage log. A batch of a publication has the same body. So the log that takes it up writes its header, and where the body
is; and the extent with the body is not emptied while that log needs it, whatever becomes of the stage log.

Rule `seen-here`: a body is adopted only if its staged batch was read here, in this run, and its log was not cut
since. Without it: (1) a batch is staged; (2) this disk loses it, and gets other batches in its place; (3) a log adopts
what the manifest says should be there, and never writes the body.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Final, NamedTuple

from seriatim_api.batch import FLAG_STAGED, BatchHeader

from .codec import BodyPlace
from .extents import ExtentLog
from .keys import body_key

SEEN_COUNT_MAX: Final = 4096
"""Staged batches that were read and may be adopted soon: some 3 MB of memory. The body of one that is forgotten is
written again."""


class _Seen(NamedTuple):
    header: BatchHeader
    log: ExtentLog
    cuts: int


class Lending:
    """What was read of stage logs lately, and where a body that is adopted stands. On the event loop."""

    def __init__(self, size_bytes_min: int) -> None:
        self._size_bytes_min = size_bytes_min
        self._seen: OrderedDict[tuple[int, int, int], _Seen] = OrderedDict()

    def note(self, log: ExtentLog, header: BatchHeader) -> None:
        """A staged batch was read, and is in that log."""
        place = (header.partition, header.segment, header.base_index)
        self._seen[place] = _Seen(header, log, log.cuts)
        self._seen.move_to_end(place)
        if len(self._seen) > SEEN_COUNT_MAX:
            self._seen.popitem(last=False)

    def is_apart(self, header: BatchHeader) -> bool:
        """Whether the body gets a key of its own: that of a staged batch does, unless it is small."""
        return bool(header.flags & FLAG_STAGED) and header.body_length >= self._size_bytes_min

    def body_of(self, staged: BatchHeader, header: BatchHeader) -> BodyPlace | None:
        """Where the body of a staged batch stands, which is also the body of the batch `header`.

        None if that is not certain. Each is asked for once.
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
