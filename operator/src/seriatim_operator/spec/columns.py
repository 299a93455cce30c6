"""What `kubectl get` shows of an object."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal


@dataclass(frozen=True)
class Column:
    """One column.

    Attributes:
        name: Its head.
        path: Where its value stands. One value: of a path that leads to several, the API server shows the first only.
        type: How it is shown.
        is_wide: Shown with `-o wide` only.
    """

    name: str
    path: str
    type: Literal["string", "integer", "number", "boolean", "date"] = "string"
    is_wide: bool = False


def condition_columns(kind: str = "Ready", message_head: str = "Status") -> tuple[Column, Column]:
    """Whether the condition holds, and its message: the column that people read when it does not."""
    at = f'.status.conditions[?(@.type=="{kind}")]'
    return Column(kind, f"{at}.status"), Column(message_head, f"{at}.message", is_wide=True)


AGE: Final = Column("Age", ".metadata.creationTimestamp", "date")
"""Kubernetes shows it by itself only where a kind has no columns of its own."""
