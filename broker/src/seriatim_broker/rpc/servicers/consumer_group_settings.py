"""Settings of consumer groups in requests: checked, and as values of the core."""

from __future__ import annotations

from seriatim_api.errors import BadRequestError, PreconditionError, UnsupportedModeError
from seriatim_api.retry import check_retry, dead_letter_topic_of
from seriatim_api.v1 import records_pb2

from ...core.values.keyed import SETTINGS_DEFAULT, ConsumerGroupSettings, Exhausted, RetryPolicy, WantedSettings
from ...interfaces.settings_records import mode_from_number, retry_from_proto
from ..calls.services import Services


def settings_from(written: records_pb2.GroupSettings, topic: str, group: str) -> ConsumerGroupSettings:
    """The settings of a new consumer group. What is not specified is as in `SETTINGS_DEFAULT`.

    Raises:
        BadRequestError: A value is out of its range, or an exclusive group would have a retry policy.
        IllegalNameError: The name of the dead-letter topic is illegal.
        UnsupportedModeError: This version does not know the mode.
    """
    wanted = wanted_from(written, topic, group)
    return WantedSettings(wanted.mode, wanted.retry, written.at_most_once, wanted.is_spread).over(SETTINGS_DEFAULT)


def wanted_from(written: records_pb2.GroupSettings, topic: str, group: str) -> WantedSettings:
    """A change of settings. What is not specified stays as it is; `at_most_once` counts only with a mode.

    Raises:
        BadRequestError: A value is out of its range.
        IllegalNameError: The name of the dead-letter topic is illegal.
        UnsupportedModeError: This version does not know the mode.
    """
    try:
        mode = mode_from_number(written.mode) if written.mode else None
    except ValueError as exc:
        raise UnsupportedModeError(f"this version does not know mode {written.mode} of consumer groups") from exc
    retry = _retry_from(written.retry, topic, group) if written.HasField("retry") else None
    is_spread = written.spread == records_pb2.SPREAD_EVEN if written.spread else None
    if written.spread not in records_pb2.Spread.values():
        raise BadRequestError(f"this version does not know spread {written.spread} of consumer groups")
    return WantedSettings(mode, retry, written.at_most_once if mode is not None else None, is_spread)


def _retry_from(written: records_pb2.RetryPolicy, topic: str, group: str) -> RetryPolicy:
    try:
        policy = retry_from_proto(written)
    except ValueError as exc:
        raise BadRequestError(f"this version does not know a value of the retry policy: {exc}") from exc
    check_retry(
        attempts_max=policy.attempts_max,
        back_off=policy.back_off.name.lower(),
        delays_ms=policy.delays_ms,
        jitter_percent=policy.jitter_percent,
        exhausted=policy.exhausted.name.lower(),
        dead_letter_topic=policy.dead_letter_topic,
        grant_ms=policy.grant_ms,
    )
    if policy.exhausted is not Exhausted.DEAD_LETTER:
        return policy
    name = policy.dead_letter_topic or dead_letter_topic_of(topic, group)
    if name == topic:
        raise BadRequestError(f"{topic} cannot be the topic of its own dead letters")
    return RetryPolicy(
        policy.attempts_max, policy.back_off, policy.delays_ms, policy.jitter_percent, policy.exhausted, name,
        policy.grant_ms,
    )  # fmt: skip


async def check_dead_letter_topic(services: Services, retry: RetryPolicy | None, partition_count: int) -> None:
    """Refuse a policy whose dead-letter topic is not there, or has fewer partitions than the source.

    Raises:
        UnknownTopicError: There is no such topic.
        PreconditionError: It has fewer partitions than the source.
    """
    if retry is None or retry.exhausted is not Exhausted.DEAD_LETTER:
        return
    topic = await services.topic(retry.dead_letter_topic)
    if len(topic.partition_ids) < partition_count:
        raise PreconditionError(
            f"dead letters of partition i go to partition i of {retry.dead_letter_topic}, which has only "
            f"{len(topic.partition_ids)} of {partition_count} partitions: nothing was changed; add partitions to it "
            "first"
        )
