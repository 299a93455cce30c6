"""Checks of what a program passes: each refuses with one error that names the argument and says what it may be."""

from __future__ import annotations

import functools
import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from typing import Any, Final, TypeVar

from seriatim_api.errors import BadRequestError

T = TypeVar("T")

NUMBER_MAX: Final = 2**32 - 1
"""The highest number of a partition or a segment, and the highest partition id, that a request can carry."""

RUN_MAX: Final = 2**64 - 1
_OTHER_NAMES: Final = {
    "acks": "ack_level",
    "auto_offset_reset": "start",
    "batch_size": "batch_size_bytes",
    "buffer_memory": "buffer_size_bytes",
    "compression_type": "compression",
    "session_timeout_ms": "session_ms",
}
"""What Kafka's clients call some of the options."""


def check_whole(name: str, value: object, least: int, most: int | None = None) -> None:
    """Refuse what is not a whole number between two limits.

    Raises:
        BadRequestError: It is not.
    """
    if not isinstance(value, int) or isinstance(value, bool):
        raise BadRequestError(f"{name} is a whole number, not {value!r}")
    if value < least or (most is not None and value > most):
        limits = f"at least {least}" if most is None else f"between {least} and {most}"
        raise BadRequestError(f"{name} is {limits}, not {value}")


def check_text(name: str, value: object, meaning: str) -> None:
    """Refuse what is neither None nor a text with at least one letter.

    Args:
        name: The argument's name.
        value: What was given.
        meaning: What None means, for the error: "for all topics".

    Raises:
        BadRequestError: It is neither.
    """
    if value is not None and not (isinstance(value, str) and value):
        raise BadRequestError(f"{name} is a text that is not empty, not {value!r}: leave it out {meaning}")


def check_number(name: str, value: object, least: float, unit: str) -> None:
    """Refuse what is not a finite number of at least `least`.

    Raises:
        BadRequestError: It is not.
    """
    if not isinstance(value, int | float) or isinstance(value, bool) or not math.isfinite(value) or value < least:
        raise BadRequestError(f"{name} is a number of {unit}, at least {least:g}, not {value!r}")


def check_callback(name: str, callback: object) -> None:
    """Refuse what cannot be called, and functions that do nothing when they are called: coroutines and generators.

    Raises:
        BadRequestError: The text says what to do.
    """
    if callback is None:
        return
    if not callable(callback):
        raise BadRequestError(f"{name} is a function, not {callback!r}")
    for function in (callback, getattr(callback, "__call__", None)):  # noqa: B004 - an object may be called too
        if inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function):
            raise BadRequestError(
                f"{name} is called as a plain function, and an async def would never run: give a def. It may begin a "
                "task with asyncio.create_task"
            )
        if inspect.isgeneratorfunction(function):
            raise BadRequestError(f"{name} is a generator function, which does nothing when it is called: use no yield")


def call_back(name: str, callback: Callable[[T], object], told: T) -> None:
    """Call a callback of the application.

    Raises:
        BadRequestError: It returned a coroutine, so its work was not done.
        Exception: What the callback raised.
    """
    result = callback(told)
    if inspect.isawaitable(result) or inspect.isgenerator(result):
        if inspect.iscoroutine(result):
            result.close()
        raise BadRequestError(f"{name} returned a coroutine or a generator, so its work was not done: give a plain def")


def check_partitions(partitions: object) -> None:
    """Refuse what is neither None nor a sequence of partition numbers with at least one of them.

    Raises:
        BadRequestError: It is not.
    """
    if partitions is None:
        return
    if not isinstance(partitions, Sequence) or isinstance(partitions, str | bytes):
        raise BadRequestError(f"partitions is a list of partition numbers, or None for all, not {partitions!r}")
    if not partitions:
        raise BadRequestError("partitions names no partition: leave it out to get all of them")
    for number in partitions:
        check_whole("a partition's number", number, 0, NUMBER_MAX)


def settings_of(kind: type[T], options: Mapping[str, Any], what: str) -> T:
    """The settings with these options.

    Raises:
        BadRequestError: There is no option of that name, or the settings refuse a value.
    """
    _check_names(kind, options, what)
    return kind(**options)


def takes_options(what: str) -> Callable[[type[T]], type[T]]:
    """Make a dataclass refuse an unknown option by a `BadRequestError` that names the nearest right one.

    Python's own error is a TypeError that names none, and not one of ours.

    Args:
        what: Whose options they are, for the error.
    """

    def decorate(kind: type[T]) -> type[T]:
        plain = kind.__init__

        @functools.wraps(plain)
        def init(self: T, *args: Any, **options: Any) -> None:
            _check_names(kind, options, what)
            plain(self, *args, **options)

        kind.__init__ = init  # type: ignore[method-assign, assignment]
        return kind

    return decorate


def _check_names(kind: type, options: Mapping[str, Any], what: str) -> None:
    known = [field.name for field in fields(kind)]
    for name in options:
        if name not in known:
            import difflib  # only a mistake needs it

            meant = _OTHER_NAMES.get(name) or next(iter(difflib.get_close_matches(name, known, 1)), None)
            hint = f"did you mean {meant}?" if meant in known else f"the options are {', '.join(known)}"
            raise BadRequestError(f"{what} has no option {name}: {hint}")
