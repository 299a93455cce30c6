"""The columns that `kubectl get` shows of an object."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal


@dataclass(frozen=True)
class Column:
    """One column.

    Attributes:
        name: The heading of the column.
        path: The path of the value. If it leads to several values, the API server shows only the first.
        type: The type of the value, which decides how `kubectl` shows it.
        is_wide: Shown with `-o wide` only.
    """

    name: str
    path: str
    type: Literal["string", "integer", "number", "boolean", "date"] = "string"
    is_wide: bool = False


def condition_columns(kind: str = "Ready", message_title: str = "Status") -> tuple[Column, Column]:
    """Two columns: whether the condition is true, and (with `-o wide`) its message, which says why not."""
    at = f'.status.conditions[?(@.type=="{kind}")]'
    return Column(kind, f"{at}.status"), Column(message_title, f"{at}.message", is_wide=True)


AGE: Final = Column("Age", ".metadata.creationTimestamp", "date")
"""Kubernetes shows the age by itself only if a kind defines no columns."""
