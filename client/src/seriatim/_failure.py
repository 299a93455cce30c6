"""Failures of the client's own code: what they mean for a producer or a consumer, and that neither goes on behind one.

An exception that nothing here expects is a bug. It may have left any state behind: a batch taken and not sent, a reply
half read. A producer that goes on behind it can give a message the receipt of another one, or wait for ever; a consumer
can pass a message over. So the first such exception ends the producer (all that it took and that is not settled becomes
*unknown*, later sends fail at once) or the consumer (it acknowledges nothing more, and each call raises), and the log
has the traceback. Each place at which the event loop, the transport or the application enters them is an `entry`, or
calls `Failure.happened` or `raise_for` itself.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import wraps
from typing import Any, Concatenate, NoReturn, ParamSpec, Protocol, TypeVar

from seriatim_api.errors import ClientFailureError

_log = logging.getLogger("seriatim")


class Failure:
    """The first failure of one producer or consumer, which ends it.

    Args:
        what: Names the producer or consumer for people.
        meaning: What a failure means for the messages.
        end: Ends it; called once, with the error that everything is settled with.
    """

    def __init__(self, what: str, meaning: str, end: Callable[[ClientFailureError], None]) -> None:
        self._what = what
        self._meaning = meaning
        self._end = end
        self.error: ClientFailureError | None = None

    def happened(self, cause: BaseException) -> ClientFailureError:
        """End it, unless it has ended; returns the error that tells of the first failure."""
        if self.error is not None:
            return self.error
        self.error = ClientFailureError(
            f"{self._what} has ended, because the client's own code failed: {type(cause).__name__}: {cause}. "
            f"{self._meaning} This is a bug of Seriatim: please report it with the traceback in the log"
        )
        self.error.__cause__ = cause
        _log.error("%s", self.error, exc_info=cause)
        self._end(self.error)
        return self.error

    def raise_for(self, cause: BaseException) -> NoReturn:
        """To the application, whose call met the failure."""
        error = self.happened(cause)
        if isinstance(cause, Exception):
            raise error from cause
        raise cause


class Fallible(Protocol):
    """What has entries."""

    failure: Failure


F = TypeVar("F", bound=Fallible)
P = ParamSpec("P")


def entry(method: Callable[Concatenate[F, P], None]) -> Callable[Concatenate[F, P], None]:
    """A method that the event loop or the transport calls: it never raises, and does nothing behind a failure.

    What the method calls must not be an entry of the same object: the failure of an inner step must end the outer one.
    """

    @wraps(method)
    def enter(self: F, *args: P.args, **kwargs: P.kwargs) -> None:
        failure = self.failure
        if failure.error is not None:
            return
        try:
            method(self, *args, **kwargs)
        except BaseException as exc:
            failure.happened(exc)
            if not isinstance(exc, Exception):
                raise  # the program is interrupted

    return enter  # type: ignore[return-value]  # what `wraps` returns is a function, and becomes a method


def attempt(action: Callable[..., Any], *args: Any) -> None:
    """A step of an end that must be reached: if it fails, the log says so, and the next step is done."""
    try:
        action(*args)
    except Exception:
        _log.exception("a step of ending a producer or consumer failed; the others are done")
