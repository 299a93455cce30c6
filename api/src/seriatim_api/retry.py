"""Retry policies of consumer groups: which ones are legal. Clients and brokers check the same."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from seriatim_api.errors import BadRequestError
from seriatim_api.ids import check_name, is_legal_name

ATTEMPTS_MAX: Final = 1_000
DELAY_MS_MAX: Final = 7 * 86_400_000
DELAY_COUNT_MAX: Final = 32
GRANT_MS_MIN: Final = 1_000
GRANT_MS_MAX: Final = 86_400_000

AT_MOST_ONCE_HAS_NO_RETRY: Final = (
    "a group with at-most-once delivery has no retry: a message that fails is lost, and never tried again. Leave out "
    "attempts, back-off, delays, jitter and what is done after the last attempt (only the time of a grant counts), or "
    "choose at-least-once delivery"
)
"""The text of the refusal, in clients and brokers."""

SHARED_PARKS_NO_KEY: Final = (
    "a group that is shared parks no key, because each of its messages is on its own and holds up nothing: after the "
    "last attempt choose dead_letter or block, or choose the mode key_ordered"
)
"""The text of the refusal, in clients and brokers."""

_DELAY_COUNTS: Final = {"fixed": (1, 1), "exponential": (2, 2), "list": (1, DELAY_COUNT_MAX)}
_EXHAUSTED: Final = ("block", "park_key", "dead_letter")


def check_retry(
    *,
    attempts_max: int,
    back_off: str,
    delays_ms: Sequence[int],
    jitter_percent: int,
    exhausted: str,
    dead_letter_topic: str,
    grant_ms: int,
) -> None:
    """Refuse a retry policy that no broker can keep.

    Args:
        attempts_max: How many attempts a message has; 0: there is no limit.
        back_off: `fixed`, `exponential` or `list`.
        delays_ms: Fixed: one delay. Exponential: the first and the longest one. List: 1 to 32 delays.
        jitter_percent: 0 to 100.
        exhausted: `block`, `park_key` or `dead_letter`.
        dead_letter_topic: Only with `dead_letter`; empty: the default name.
        grant_ms: 1 s to 24 h.

    Raises:
        BadRequestError: A value is out of its range. The text names the range.
        IllegalNameError: The name of the dead-letter topic is illegal.
    """
    if not 0 <= attempts_max <= ATTEMPTS_MAX:
        raise BadRequestError(f"a message has at most {ATTEMPTS_MAX:,} attempts (0: no limit), not {attempts_max:,}")
    if back_off not in _DELAY_COUNTS:
        raise BadRequestError(f"there is no back-off {back_off!r}: it is {', '.join(_DELAY_COUNTS)}")
    least, most = _DELAY_COUNTS[back_off]
    if not least <= len(delays_ms) <= most:
        needs = {"fixed": "one delay", "exponential": "two delays: the first and the longest one"}
        wanted = needs.get(back_off, f"1 to {most} delays")
        others = f"fixed has one delay, list has 1 to {DELAY_COUNT_MAX}, exponential (the default) two"
        raise BadRequestError(f"the back-off {back_off} has {wanted}; given: {len(delays_ms)}. ({others})")
    for delay_ms in delays_ms:
        if not 1 <= delay_ms <= DELAY_MS_MAX:
            raise BadRequestError(f"a delay is 1 ms to {DELAY_MS_MAX:,} ms (7 days), not {delay_ms:,} ms")
    if back_off == "exponential" and delays_ms[0] > delays_ms[1]:
        raise BadRequestError(
            f"the longest delay ({delays_ms[1]:,} ms) is shorter than the first one ({delays_ms[0]:,} ms)"
        )
    if not 0 <= jitter_percent <= 100:
        raise BadRequestError(f"jitter is 0 to 100 percent, not {jitter_percent}")
    if exhausted not in _EXHAUSTED:
        raise BadRequestError(f"after the last attempt a group can {', '.join(_EXHAUSTED)}, not {exhausted!r}")
    if dead_letter_topic and exhausted != "dead_letter":
        text = f"a policy that does {exhausted} has no dead-letter topic: choose dead_letter, or name no topic"
        raise BadRequestError(text)
    if dead_letter_topic:
        check_name(dead_letter_topic, "dead-letter topic")
    if not GRANT_MS_MIN <= grant_ms <= GRANT_MS_MAX:
        raise BadRequestError(f"a grant lasts 1 s to 24 h, not {grant_ms:,} ms")


DEAD_LETTER_END: Final = ".dead"
"""The end of the default names of dead-letter topics."""


def dead_letter_topic_of(topic: str, group: str) -> str:
    """The default name of the topic with the dead letters of a consumer group.

    Raises:
        BadRequestError: The names are too long for that: the policy must name a topic.
    """
    name = f"{topic}.{group}{DEAD_LETTER_END}"
    if not is_legal_name(name):
        raise BadRequestError(f"{name[:60]!r}... is too long for a topic: name the dead-letter topic yourself")
    return name
