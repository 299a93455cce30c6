"""Settings of consumer groups as protobuf messages, and back: for records of the coordinator, and for clients."""

from __future__ import annotations

from functools import lru_cache

from seriatim_api.v1 import records_pb2

from ..core.values.keyed import RETRY_DEFAULT, BackOff, ConsumerGroupSettings, ConsumerMode, Exhausted, RetryPolicy

SHARED_COUNT_MAX = 4096
"""Limit for the retry policies that messages share."""


def mode_to_number(mode: ConsumerMode) -> records_pb2.ConsumerMode.ValueType:
    """A mode as records and clients have it."""
    return records_pb2.ConsumerMode.ValueType(mode)


def mode_from_number(number: int) -> ConsumerMode:
    """The mode with that number; unspecified is exclusive.

    Raises:
        ValueError: There is no such mode.
    """
    return ConsumerMode(number or ConsumerMode.EXCLUSIVE)


def spread_to_number(is_spread: bool) -> records_pb2.Spread.ValueType:
    """The spread as records and clients have it: unspecified for the default."""
    return records_pb2.SPREAD_UNSPECIFIED if is_spread else records_pb2.SPREAD_NONE


def retry_to_proto(policy: RetryPolicy) -> records_pb2.RetryPolicy:
    """A retry policy as records and clients have it."""
    return records_pb2.RetryPolicy(
        attempts_max=policy.attempts_max,
        back_off=records_pb2.BackOff.ValueType(policy.back_off),
        delays_ms=policy.delays_ms,
        jitter_percent=policy.jitter_percent,
        exhausted=records_pb2.Exhausted.ValueType(policy.exhausted),
        dead_letter_topic=policy.dead_letter_topic,
        grant_ms=policy.grant_ms,
    )


def retry_from_proto(written: records_pb2.RetryPolicy) -> RetryPolicy:
    """The retry policy in a message. What is not specified is as in the default policy.

    Raises:
        ValueError: A number names nothing that this version knows.
    """
    return RetryPolicy(
        written.attempts_max,
        BackOff(written.back_off or RETRY_DEFAULT.back_off),
        tuple(written.delays_ms) or RETRY_DEFAULT.delays_ms,
        written.jitter_percent,
        Exhausted(written.exhausted or RETRY_DEFAULT.exhausted),
        written.dead_letter_topic,
        written.grant_ms or RETRY_DEFAULT.grant_ms,
    )


def settings_to_proto(settings: ConsumerGroupSettings) -> records_pb2.GroupSettings:
    """The settings of a consumer group as clients have them. An exclusive one has no retry policy."""
    written = records_pb2.GroupSettings(
        mode=mode_to_number(settings.mode),
        at_most_once=settings.at_most_once,
        spread=spread_to_number(settings.is_spread),
    )
    if settings.mode is not ConsumerMode.EXCLUSIVE:
        written.retry.CopyFrom(_shared_policy(settings.retry))
    return written


@lru_cache(SHARED_COUNT_MAX)
def _shared_policy(policy: RetryPolicy) -> records_pb2.RetryPolicy:
    return retry_to_proto(policy)
