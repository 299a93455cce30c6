"""Stamps: at which functions of the product the clock is read, and how.

No code of the product knows of it. `install` replaces each named function by one that notes the time and calls it. Each
name is checked first, so a function that is renamed, or a parameter that is gone, is an error with its name: the
timeline never loses a hop in silence.

All processes of a machine read the same monotonic clock, so their stamps can be compared.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

from e2e.bench.program import NotMeasuredError

Times = dict[str, list[int]]
"""The times of each stamp, in ns of the monotonic clock, in their order."""

_MESSAGES: Final = "seriatim_broker.core.values.messages"


@dataclass(frozen=True, slots=True)
class Place:
    """One function at which the clock is read.

    Attributes:
        stamp: What the time is called.
        target: `module:Class.function`.
        at: Whether the time is that of the call or of the return.
        parameter: Only calls count in which this argument is of the class `of`. Empty: all calls count.
        attribute: The class is that of this attribute of the argument; empty: of the argument itself.
        of: `module:Class`.
        inside: The class of arguments that have the attribute.
    """

    stamp: str
    target: str
    at: Literal["call", "return"] = "call"
    parameter: str = ""
    attribute: str = ""
    of: str = ""
    inside: str = ""


def _received(stamp: str, of: str) -> Place:
    """A message of another broker reaches the core."""
    return Place(
        stamp,
        "seriatim_broker.runtime.driver.driver:Driver.feed",
        parameter="event",
        attribute="message",
        of=f"{_MESSAGES}:{of}",
        inside="seriatim_broker.core.values.events:Received",
    )


def _sent(stamp: str, of: str) -> Place:
    """A message leaves for another broker."""
    return Place(stamp, "seriatim_broker.runtime.driver.links:Links.send", parameter="message", of=f"{_MESSAGES}:{of}")


REPLY_WRITTEN: Final = "reply written"

_STREAM: Final = "seriatim_broker.rpc.streams.append:AppendStream"

BROKER: Final = (
    Place("append taken", f"{_STREAM}.take"),
    _sent("batch sent", "Replicate"),
    _received("batch taken", "Replicate"),
    Place("submitted", "seriatim_broker.adapters.rocks.writer:Writer.submit"),
    Place("flush begun", "seriatim_broker.adapters.rocks.engine:Engine.flush_wal"),
    Place("flush ended", "seriatim_broker.adapters.rocks.engine:Engine.flush_wal", at="return"),
    _sent("answer sent", "ReplicateAck"),
    _received("answer taken", "ReplicateAck"),
    Place("reply made", f"{_STREAM}._replied"),
    Place(REPLY_WRITTEN, f"{_STREAM}.next_frame", at="return"),
)

CLIENT: Final = (
    Place("frame made", "seriatim._transport.append:AppendLink.next_frame", at="return"),
    Place("reply taken", "seriatim._transport.append:AppendLinks.dispatch"),
)


class PlaceGoneError(NotMeasuredError):
    """A function that the timeline stamps is not there any more, or has changed."""

    def __init__(self, target: str, why: str) -> None:
        super().__init__(
            f"the timeline reads the clock at {target}, but {why}. Name the function that has this work now in "
            "e2e/bench/timeline/stamps.py"
        )


@contextmanager
def installed(places: Sequence[Place]) -> Iterator[Times]:
    """Read the clock at these places until the block ends.

    Args:
        places: The functions.

    Raises:
        PlaceGoneError: A place is not there. Then nothing is changed.
    """
    times: Times = {place.stamp: [] for place in places}
    found = [(place, *_function(place.target), _filter(place)) for place in places]
    before: list[tuple[type, str, Any]] = []
    try:
        for place, owner, _, wanted in found:
            name = place.target.rpartition(".")[2]
            present = owner.__dict__[name]  # stamped already, if two places name one function
            before.append((owner, name, present))
            setattr(owner, name, _stamped(present, times[place.stamp].append, place.at, wanted))
        yield times
    finally:
        for owner, name, function in reversed(before):
            setattr(owner, name, function)


def check() -> None:
    """Check that all places are there.

    Raises:
        PlaceGoneError: One is not.
    """
    for places in (BROKER, CLIENT):
        with installed(places):
            pass


def write(times: Mapping[str, Sequence[int]], file: Path) -> None:
    """Write stamps to a file that appears when it is complete."""
    part = file.with_suffix(".part")
    part.write_text(json.dumps(times))
    part.rename(file)


def read(file: Path) -> Times:
    """Read stamps.

    Raises:
        NotMeasuredError: There are none, because the broker did not end by itself.
    """
    try:
        found: Times = json.loads(file.read_text())
    except FileNotFoundError as error:
        raise NotMeasuredError(f"{file.stem} left no stamps: its log says why it did not end as asked") from error
    return found


# ---- the functions --------------------------------------------------------------------------------------


def _thing(target: str, name: str) -> Any:
    module, _, path = name.partition(":")
    try:
        found: Any = importlib.import_module(module)
        for part in path.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError) as error:
        raise PlaceGoneError(target, str(error)) from error
    return found


def _function(target: str) -> tuple[type, Callable[..., Any]]:
    """The class, and the function that it defines itself."""
    path, _, name = target.rpartition(".")
    owner = _thing(target, path)
    function = vars(owner).get(name)
    if not inspect.isfunction(function):
        raise PlaceGoneError(target, f"{path} defines no function {name}")
    return owner, function


def _filter(place: Place) -> Callable[[tuple[Any, ...]], bool] | None:
    """Which calls count, by their arguments; None: all."""
    if not place.parameter:
        return None
    _, function = _function(place.target)
    parameters = list(inspect.signature(function).parameters)
    if place.parameter not in parameters:
        raise PlaceGoneError(place.target, f"it has no parameter {place.parameter!r}")
    number, wanted = parameters.index(place.parameter), _thing(place.target, place.of)
    if not place.attribute:
        return lambda arguments: type(arguments[number]) is wanted
    outer, attribute = _thing(place.target, place.inside), place.attribute
    if attribute not in getattr(outer, "__dataclass_fields__", {}):
        raise PlaceGoneError(place.target, f"{place.inside} has no field {attribute!r}")

    def is_wanted(arguments: tuple[Any, ...]) -> bool:
        argument = arguments[number]
        return type(argument) is outer and type(getattr(argument, attribute)) is wanted

    return is_wanted


def _stamped(
    function: Callable[..., Any],
    note: Callable[[int], None],
    at: Literal["call", "return"],
    wanted: Callable[[tuple[Any, ...]], bool] | None,
) -> Callable[..., Any]:
    """The function with a stamp. Of a generator, the time is that at which it was made."""
    now = time.monotonic_ns

    @functools.wraps(function)
    def at_call(*arguments: Any, **named: Any) -> Any:
        if wanted is None or wanted(arguments):
            note(now())
        return function(*arguments, **named)

    @functools.wraps(function)
    def at_return(*arguments: Any, **named: Any) -> Any:
        result = function(*arguments, **named)
        if wanted is None or wanted(arguments):
            note(now())
        return result

    return at_call if at == "call" else at_return
