"""The lag of a consumer group: one meaning for clients, commands, metrics and the operator."""

from __future__ import annotations


def lag_messages(messages_behind: int, passed_messages: int, aside_messages: int) -> int:
    """How many committed messages are not acknowledged on a partition.

    Messages that wait for a key that is parked, delayed or on its way to the dead-letter topic are not acknowledged. So
    they count, wherever the place of the consumer group is.

    Args:
        messages_behind: Messages from the place of the consumer group (the first one that is not done with) to the end.
        passed_messages: Those of them that are acknowledged one by one, or were set aside.
        aside_messages: Messages that were set aside, in the lists of keys that wait.
    """
    return max(messages_behind - passed_messages, 0) + aside_messages
