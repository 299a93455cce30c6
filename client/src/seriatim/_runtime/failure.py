"""Failures of the client's own code: the first one ends the producer or the consumer.

An unexpected exception is a bug. It may leave any state behind: a batch that is taken and not sent, or a reply that is
half read. A producer that continued after it could give a message the receipt of another one, or wait for ever. A
consumer could pass over a message.

So the first such exception ends the producer or the consumer. A producer settles as *unknown* all messages that it took
and that are not settled, and later sends fail at once. A consumer acknowledges nothing more, and each of its calls
raises. The log has the traceback.

The event loop, the transport and the application enter a producer or a consumer at methods marked with `@entry`, or at
methods that call `Failure.happened` or `raise_for` themselves.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, Concatenate, NoReturn, ParamSpec, Protocol, TypeVar

from seriatim_api.errors import ClientFailureError

from seriatim._runtime.logs import guarded

_log = guarded()


class Failure:
    """The first failure of one producer or consumer, which ends it.

    Args:
        what: The name of the producer or consumer, for humans.
        meaning: What a failure means for the messages, for humans.
        end: Ends the producer or consumer. Called once, with the error with which everything is settled.
    """

    def __init__(self, what: str, meaning: str, end: Callable[[ClientFailureError], None]) -> None:
        self._what = what
        self._meaning = meaning
        self._end = end
        self.error: ClientFailureError | None = None

    def happened(self, cause: BaseException) -> ClientFailureError:
        """End the producer or consumer, unless it has ended. Returns the error about its first failure."""
        if self.error is not None:
            return self.error
        self.error = ClientFailureError(
            f"{self._what} has ended, because the client's own code failed: {described(cause)}. "
            f"{self._meaning} This is a bug of Seriatim: please report it with the traceback in the log"
        )
        self.error.__cause__ = cause
        self._end(self.error)  # first: the log may fail
        _log.error("%s", self.error, exc_info=cause)
        return self.error

    def raise_for(self, cause: BaseException) -> NoReturn:
        """Note a failure in a call of the application, and raise an error for the application.

        Raises:
            ClientFailureError: `cause` is an `Exception`. Anything else, such as an interrupt, is raised unchanged.
        """
        error = self.happened(cause)
        if isinstance(cause, Exception):
            raise error from cause
        raise cause


def described(error: BaseException) -> str:
    """The type and the text of an exception. The text of an application's exception may be unreadable."""
    try:
        return f"{type(error).__name__}: {error}"
    except Exception:
        return f"{type(error).__name__}, whose text cannot be read"


class Fallible(Protocol):
    """An object whose methods may be marked with `@entry`."""

    failure: Failure


F = TypeVar("F", bound=Fallible)
P = ParamSpec("P")


def entry(method: Callable[Concatenate[F, P], None]) -> Callable[Concatenate[F, P], None]:
    """Marks a method that the event loop or the transport calls. It never raises, and does nothing after a failure.

    The method must not call another entry of the same object: if an inner step fails, the outer one must end too.
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
    """Do one step of ending a producer or consumer. If it fails, log that; the caller continues with the next step."""
    try:
        action(*args)
    except Exception:
        _log.exception("a step of ending a producer or consumer failed; the other steps are done all the same")
