"""The errors of a send whose outcome is not `ok`. All other errors are in `seriatim_api.errors`."""

from __future__ import annotations

from seriatim_api.errors import SeriatimError


class SendError(SeriatimError):
    """The outcome of a send is not `ok`. `__cause__` says why the client gave up.

    Attributes:
        outcome: `failed` or `unknown`.
        cause_number: The number of the last error in the error catalogue; 0 if there was none.
        details: Names and values for programs, as strings, such as `partition`.
    """

    outcome = "unknown"
    outcome_known = False

    def __init__(self, message: str, *, cause_number: int = 0, **details: object) -> None:
        super().__init__(message)
        self.details = {name: str(value) for name, value in details.items()}
        self.cause_number = cause_number

    def __str__(self) -> str:
        return f"[{self.cause_number}] {self.outcome}: {self.message}"


class SendFailedError(SendError):
    """The message is provably not stored and is never delivered. The program may send it again as a new message."""

    outcome = "failed"
    outcome_known = True


class SendUnknownError(SendError):
    """The message may be stored once, or not at all. If it is sent again as a new one, it may be delivered twice."""
