"""What the API server checks beyond types: rules in its expression language, each with a message that says what to do.

A rule stands beside the field in the model (`Annotated[str, immutable("...")]`) or, where it compares fields, in the
class that holds them (`RULES`). `crd.schema` carries both into the definitions.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from pydantic import GetJsonSchemaHandler
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

VALIDATIONS: Final = "x-kubernetes-validations"
INTEGER_OR_TEXT: Final = "x-kubernetes-int-or-string"
LIST_TYPE: Final = "x-kubernetes-list-type"
LIST_MAP_KEYS: Final = "x-kubernetes-list-map-keys"

KEEPS_PRESENCE: Final = "keeps-presence"
"""Our own mark, with the message: taken out again where the holder's rules are made."""


@dataclass(frozen=True)
class Rule:
    """One rule, in the Common Expression Language.

    Attributes:
        cel: True for what is right; `self` is the value, `oldSelf` what it was.
        message: Shown to whoever is refused: what is expected, and what to do.
        keeps_presence: An optional field may neither be added nor taken away later.
    """

    cel: str
    message: str
    keeps_presence: bool = False

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        """The field's schema, with this rule."""
        return with_rules(handler(schema), (self,))


def with_rules(schema: JsonSchemaValue, rules: tuple[Rule, ...]) -> JsonSchemaValue:
    """The schema, with more rules; `KEEPS_PRESENCE` marks those that the holder has to keep as well."""
    if not rules:
        return schema
    entries = [{"rule": rule.cel, "message": rule.message} for rule in rules]
    kept = next((rule.message for rule in rules if rule.keeps_presence), None)
    marked = {**schema, VALIDATIONS: [*schema.get(VALIDATIONS, ()), *entries]}
    return marked if kept is None else {**marked, KEEPS_PRESENCE: kept}


@dataclass(frozen=True)
class ListKeys:
    """A list whose entries are told apart by these fields, so that several writers can own entries of it."""

    keys: tuple[str, ...]

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        """The list's schema, as a map."""
        return {**handler(schema), LIST_TYPE: "map", LIST_MAP_KEYS: list(self.keys)}


@dataclass(frozen=True)
class IntegerOrText:
    """A value that may be written as a number or as a text.

    Attributes:
        length_max: Of the text.
    """

    length_max: int

    def __get_pydantic_json_schema__(self, _schema: CoreSchema, _handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        """The schema that Kubernetes has for this."""
        return {
            INTEGER_OR_TEXT: True,
            "anyOf": [{"type": "integer"}, {"type": "string"}],
            "maxLength": self.length_max,
        }


def immutable(remedy: str) -> Rule:
    """The field never changes, and is neither added nor taken away later."""
    return Rule("self == oldSelf", f"cannot be changed: {remedy}", keeps_presence=True)


def matches(pattern: str, message: str) -> Rule:
    """A text of that form; instead of `pattern`, whose refusal shows the pattern and no advice."""
    assert "'" not in pattern
    return Rule(f"self.matches('{pattern}')", message)
