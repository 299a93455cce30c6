"""Errors of an object that the operator read, and of the text of a value.

    SpecError
    ├── InvalidManifestError      the object does not have the shape of its kind
    ├── InvalidQuantityError      not a Kubernetes quantity
    └── InvalidDurationError      not a duration

The API server refuses nearly all such objects before the operator sees them. It keeps those that it accepted under an
older definition of the kind. Such an object gets the condition `Ready=False` (InvalidSpec); the operator continues.
"""

from __future__ import annotations


class SpecError(Exception):
    """An object or a text cannot be read by this version of the operator."""


class InvalidManifestError(SpecError):
    """The object does not have the shape of its kind.

    Attributes:
        kind: The kind that was expected.
        namespace: The object's namespace; empty if the object has none.
        name: The object's name; empty if the object has none.
        problems: One line for each field, with its path.
    """

    def __init__(self, kind: str, namespace: str, name: str, problems: tuple[str, ...]) -> None:
        super().__init__(f"{kind} {namespace}/{name}: {'; '.join(problems)}")
        self.kind = kind
        self.namespace = namespace
        self.name = name
        self.problems = problems


class InvalidQuantityError(SpecError, ValueError):
    """The text is not a quantity such as `100Gi`."""

    def __init__(self, text: str) -> None:
        super().__init__(f"{text!r} is not a quantity: write a number with a unit, such as 100Gi or 500G")
        self.text = text


class InvalidDurationError(SpecError, ValueError):
    """The text is not a duration such as `72h`."""

    def __init__(self, text: str) -> None:
        super().__init__(f"{text!r} is not a duration: write numbers with units d, h, m or s, such as 72h or 1d12h")
        self.text = text
