"""Types of fields that several kinds use, with their limits and rules."""

from __future__ import annotations

from typing import Annotated, Final, Literal

from pydantic import BeforeValidator, Field

from .rules import IntegerOrText, Rule, immutable, matches

OBJECT_NAME_LENGTH_MAX: Final = 253
"""The longest name of a Kubernetes object."""

CLUSTER_NAME_LENGTH_MAX: Final = 40
"""With it, `<cluster>-g999-4-x7k2` and `<cluster>-operator-tls` are short enough for a label (63 characters)."""

BROKER_NAME_LENGTH_MAX: Final = 249
"""The longest name among the brokers: the same number as `seriatim_api.ids.NAME_LENGTH_MAX`."""

DeletionPolicy = Literal["Retain", "Delete"]

ClusterName = Annotated[
    str,
    Field(min_length=1, max_length=CLUSTER_NAME_LENGTH_MAX),
    immutable("make a new object for the other cluster"),
]
"""The BrokerCluster that an object belongs to, in the same namespace."""

BrokerGroupName = Annotated[
    str,
    Field(min_length=2, max_length=8),
    matches("^g(0|[1-9][0-9]*)$", "a broker group is called g0, g1 and so on"),
    immutable("a broker group keeps its name"),
]

LegalName = Annotated[
    str,
    Field(min_length=1, max_length=BROKER_NAME_LENGTH_MAX),
    matches("^[A-Za-z0-9_][A-Za-z0-9._-]*$", "a name has letters, digits, dots, _ and -, and begins with no dot or -"),
    Rule("self != '_stage' && !self.startsWith('_seriatim')", "_stage and names that begin with _seriatim are taken"),
]
"""A name that the brokers accept for a topic or a consumer group."""

ObjectName = Annotated[
    str,
    Field(min_length=1, max_length=OBJECT_NAME_LENGTH_MAX),
    matches("^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$", "the name of a Kubernetes object: small letters, digits, - and ."),
]

QUALIFIED_NAME: Final = "([a-z0-9]([-a-z0-9.]*[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?"
"""A key that Kubernetes accepts for a label, an annotation, a taint or a resource."""

LabelKey = Annotated[
    str,
    Field(min_length=1, max_length=317),
    matches(f"^{QUALIFIED_NAME}$", "a key has letters, digits, -, _ and dots, after an optional prefix/"),
]

LabelValue = Annotated[
    str,
    Field(max_length=63),
    matches(
        "^([A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?)?$",
        "a label's value has letters, digits, -, _ and dots, and begins and ends with a letter or digit",
    ),
]

QUALIFIED_KEYS: Final = Rule(
    f"self.all(key, key.matches('^{QUALIFIED_NAME}$'))",
    "keys have letters, digits, -, _ and dots, after an optional prefix/",
)

Quantity = Annotated[
    str,
    Field(min_length=1, max_length=32),
    Rule("isQuantity(self)", "write a number with a unit, such as 100Gi, or 500m for processors"),
]

Amount = Annotated[
    str,
    BeforeValidator(str),
    IntegerOrText(32),
    Rule(
        "type(self) == int ? self >= 0 : isQuantity(string(self)) && !string(self).startsWith('-')",
        "write a number, or one with a unit, such as 2, 500m or 1Gi",
    ),
]
"""A quantity of a resource. `cpu: 2` is a number in YAML, so numbers are accepted as well as texts."""
