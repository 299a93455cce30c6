"""What the client alone raises: the two ends of a send that are not ok. All else is in `seriatim_api.errors`."""

from __future__ import annotations

from seriatim_api.errors import SeriatimError


class SendError(SeriatimError):
    """A send did not end well; `outcome` says what is known of it, `__cause__` why the client gave up.

    Attributes:
        outcome: `failed` or `unknown`.
        cause_number: The number of the last error, 0 if there was none.
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
    """The message is provably not stored and will never be delivered: it may be sent again as a new one."""

    outcome = "failed"
    outcome_known = True


class SendUnknownError(SendError):
    """The message may or may not be stored, once. Sending it again as a new one may deliver it twice."""
