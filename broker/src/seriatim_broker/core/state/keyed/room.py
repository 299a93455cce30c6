"""Room for more messages: keys that are in the way of others are set aside, those that hold up most first."""

from __future__ import annotations

from itertools import islice
from typing import Final

from seriatim_api.ids import INDEX_MAX

from ...values.config import BrokerConfig
from .dispatcher import KeyedDispatcher
from .key import Key

_HOLDS_WINDOW, _WAITS, _HAS_MANY, _IS_GRANTED = 1, 2, 3, 4
"""Why a key is set aside: it holds the floor far behind, it waits for a time or for the forwarder, it has many
messages, or a consumer works on it while another one is idle."""

ASIDE_AT_ONCE_MAX: Final = 20_000
"""No more keys are set aside in a step that has set this many messages aside. One key has at most `live_messages_max`,
which are 100,000."""


def set_some_aside(keyed: KeyedDispatcher, count: int) -> bool:
    """The live messages of up to `count` keys go into their lists. Returns whether any key had live messages."""
    for name in list(islice(keyed.line.singles, count)):
        keyed.grants.weigh(name)
    chosen = list(islice((key for key in keyed.line.keys.values() if key.live), count))
    begun = keyed.live_count
    for key in chosen:
        keyed.set_aside(key)
        if begun - keyed.live_count >= ASIDE_AT_ONCE_MAX:
            break
    return bool(chosen)


def is_short(keyed: KeyedDispatcher, config: BrokerConfig) -> bool:
    """Whether no more messages may be read: too many are live, or the floor lies too far behind."""
    window = keyed.read_index - keyed.window.floor
    return keyed.live_count >= config.live_messages_max or window >= config.window_indexes_max


def make_room(keyed: KeyedDispatcher, config: BrokerConfig, count: int, *, is_consumer_idle: bool) -> bool:
    """Set keys aside until a tenth of the room is free, or the lists are full (`is_full`).

    A key that waits long, or is worked on for long, does not stop the others. Without it:
      1. A handler works on key k for an hour. Meanwhile a million messages of other keys are acknowledged.
      2. The window is full, because k holds the floor. All other keys wait for k.

    Keys that are ready wait for consumers. So they are set aside only if they have many messages.

    Rule `idle-gets-more` (J1): if all live messages are granted, and a consumer is idle, granted keys are set
    aside, the one that holds the floor first. Their grants continue. Without it:
      1. 100 consumers have 1,000 messages each, of keys of their own, and work on them for minutes.
      2. A consumer that has nothing to do joins. All live messages are granted, so no more are read.
      3. It gets nothing until the others acknowledge, although a million messages of other keys wait.
    Half of the lists are left for keys that fail.

    Args:
        config: How much may wait.
        count: Maximum number of keys that are set aside now.
        is_consumer_idle: A consumer has room, and no key is ready.

    Returns:
        Whether more could be set aside now.
    """
    if keyed.lists.is_full and keyed.lists.message_count < config.aside_messages_max * 9 // 10:
        keyed.lists.is_full = keyed.lists.is_full_noted = keyed.lists.is_full_of(config)
    window_begin = keyed.read_index - config.window_indexes_max * 9 // 10
    live_wanted = config.live_messages_max * 9 // 10
    if keyed.read_index - keyed.window.floor < config.window_indexes_max:
        window_begin = 0
    if keyed.live_count < config.live_messages_max:
        live_wanted = config.live_messages_max
        is_consumer_idle = False
    if is_consumer_idle:
        for token, frame in list(islice(keyed.grants.singles.items(), count)):
            keyed.grants.weigh(frame.names[token - frame.first_token])
    for token, frame in list(keyed.grants.singles.items()) if window_begin else ():
        if frame.indexes[token - frame.first_token] < window_begin:
            keyed.grants.weigh(frame.names[token - frame.first_token])
    victims = [
        (rank, key)
        for key in keyed.line.keys.values()
        if key.live and (rank := _rank(keyed, key, window_begin, config, is_consumer_idle=is_consumer_idle))
    ]
    begun = keyed.live_count
    for rank, key in sorted(victims, key=lambda victim: victim[0]):
        if rank[0] > _HOLDS_WINDOW and keyed.live_count < live_wanted:
            break
        if rank[0] == _IS_GRANTED and (
            keyed.lists.key_count >= config.waiting_keys_max // 2
            or keyed.line.waiting_bytes >= config.waiting_bytes_max // 2
            or keyed.lists.message_count >= config.aside_messages_max // 2
        ):
            break
        is_more = not key.aside and keyed.lists.has_enough(config)
        if is_more or keyed.lists.message_count + len(key.live) > config.aside_messages_max:
            keyed.lists.is_full = True
            break
        if not count or begun - keyed.live_count >= ASIDE_AT_ONCE_MAX:
            return True
        count -= 1
        keyed.set_aside(key)
    return False


def _rank(
    keyed: KeyedDispatcher, key: Key, window_begin: int, config: BrokerConfig, *, is_consumer_idle: bool
) -> tuple[int, int] | None:
    """Which keys are set aside first: (kind, order); None: the key stays."""
    grant = keyed.grants.by_token.get(key.token)
    first = key.live[0] if grant is None or grant.is_aside else grant.offsets[grant.done] & INDEX_MAX
    if first < window_begin and not key.is_queued:
        return _HOLDS_WINDOW, first
    if key.is_held or (key.ready_us and not key.token):
        return _WAITS, -key.ready_us
    if len(key.live) > max(config.live_messages_max // 100, 1):
        return _HAS_MANY, -len(key.live)
    if is_consumer_idle and key.token:
        return _IS_GRANTED, first
    return None
