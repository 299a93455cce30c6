"""Frames that are cut: only the first messages of what was granted at once have room in one frame."""

from __future__ import annotations

from .dispatcher import KeyedDispatcher
from .grants import Frame


def cut(keyed: KeyedDispatcher, frame: Frame, count: int) -> None:
    """Only the first messages of a frame, which was not given yet, are given now.

    The grants of the others end, and their keys are ready again, before all others.

    Rule `rest-is-ready` (J1): what a frame had no room for is granted later. Without it:
      1. k:5 and j:6 are granted, both of 2 MiB. The frame has room for k:5.
      2. k:5 is given. j has a grant that no consumer has heard of, and that has no end.
      3. All later messages of j wait for it.
    """
    kept = at = 0
    while at < len(frame.names) and kept < count:
        here = frame.counts[at] if frame.counts is not None and at < len(frame.counts) else 1
        if kept + here > count:
            _shorten(keyed, frame, at, count - kept)
        kept += here
        at += 1
    for place in reversed(range(at, len(frame.names))):
        token = frame.first_token + place
        if keyed.grants.singles.get(token) is frame:
            _end_single(keyed, frame, place)
        elif token in keyed.grants.by_token:
            grant = keyed.grants.by_token[token]
            keyed.end_grant(grant)
            keyed.line.put_first(grant.key)
    del frame.names[at:], frame.indexes[at:]
    if frame.counts is not None:
        del frame.counts[at:]
    if frame.attempts is not None:
        del frame.attempts[at:]
    frame.grants = [grant for grant in frame.grants if grant.token < frame.first_token + at]
    frame.offsets = frame.offsets[:count]


def _shorten(keyed: KeyedDispatcher, frame: Frame, at: int, count: int) -> None:
    """A run has only this many messages of those that it was to have."""
    assert frame.counts is not None
    grant = keyed.grants.by_token.get(frame.first_token + at)
    if grant is not None:
        grant.consumer.in_flight -= len(grant.offsets) - count
        grant.offsets = grant.offsets[:count]
    frame.counts[at] = count


def _end_single(keyed: KeyedDispatcher, frame: Frame, place: int) -> None:
    """The grant of a single that was not given ends, and its key is the first ready one."""
    name, index = frame.names[place], frame.indexes[place]
    del keyed.grants.singles[frame.first_token + place]
    frame.consumer.in_flight -= 1
    if index >= keyed.window.floor:
        keyed.line.singles[name] = index
        keyed.line.ready.appendleft(name)
    else:  # retention dropped it while it was read
        del keyed.line.singles[name]
        keyed.live_count -= 1
