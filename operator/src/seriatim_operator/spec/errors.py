"""What can be wrong with an object that was read, and with the text of a value.

    SpecError
    ├── InvalidManifestError      the object does not have the shape of its kind
    ├── InvalidQuantityError      not a Kubernetes quantity
    └── InvalidDurationError      not a duration

The API server refuses nearly all of it before the operator sees it; what is left are objects that an older definition
of the kind let in. They become a condition of that object, never the end of the operator.
"""

from __future__ import annotations


class SpecError(Exception):
    """Somebody wrote what this version cannot read."""


class InvalidManifestError(SpecError):
    """The object does not have the shape of its kind.

    Attributes:
        kind: The kind that was expected.
        namespace: Of the object, as far as it says.
        name: Of the object, as far as it says.
        problems: One line for each field, with its path.
    """

    def __init__(self, kind: str, namespace: str, name: str, problems: tuple[str, ...]) -> None:
        super().__init__(f"{kind} {namespace}/{name}: {'; '.join(problems)}")
        self.kind = kind
        self.namespace = namespace
        self.name = name
        self.problems = problems


class InvalidQuantityError(SpecError, ValueError):
    """The text is no quantity such as `100Gi`."""

    def __init__(self, text: str) -> None:
        super().__init__(f"{text!r} is no quantity: write a number with a unit, such as 100Gi or 500G")
        self.text = text


class InvalidDurationError(SpecError, ValueError):
    """The text is no duration such as `72h`."""

    def __init__(self, text: str) -> None:
        super().__init__(f"{text!r} is no duration: write numbers with units d, h, m or s, such as 72h or 1d12h")
        self.text = text
