"""What the API server checks beyond types: rules in its expression language, each with a message that says what to do.

A rule about one field is beside the field in the model (`Annotated[str, immutable("...")]`). A rule that compares
fields is in the class that has them (`RULES`). `crd.schema` copies both into the definitions.
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
"""Our own key in a field's schema, with the message. `crd.schema` removes it and gives a rule to the object that has
the field."""


@dataclass(frozen=True)
class Rule:
    """One rule, in the Common Expression Language.

    Attributes:
        cel: The expression, true for a valid value. `self` is the new value, `oldSelf` the value before.
        message: The API server shows it with its refusal. It says what is expected and what to do.
        keeps_presence: If the field is optional, it may neither be added nor removed later.
    """

    cel: str
    message: str
    keeps_presence: bool = False

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        """Give pydantic the field's schema with this rule."""
        return with_rules(handler(schema), (self,))


def with_rules(schema: JsonSchemaValue, rules: tuple[Rule, ...]) -> JsonSchemaValue:
    """The schema with more rules. `KEEPS_PRESENCE` is set if the object that has the field needs a rule too."""
    if not rules:
        return schema
    entries = [{"rule": rule.cel, "message": rule.message} for rule in rules]
    kept = next((rule.message for rule in rules if rule.keeps_presence), None)
    marked = {**schema, VALIDATIONS: [*schema.get(VALIDATIONS, ()), *entries]}
    return marked if kept is None else {**marked, KEEPS_PRESENCE: kept}


@dataclass(frozen=True)
class ListKeys:
    """A list whose entries are distinguished by these fields, so that several writers can each own entries of it."""

    keys: tuple[str, ...]

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        """Give pydantic the list's schema, marked as a map with these keys."""
        return {**handler(schema), LIST_TYPE: "map", LIST_MAP_KEYS: list(self.keys)}


@dataclass(frozen=True)
class IntegerOrText:
    """A value that may be written as a number or as a text.

    Attributes:
        length_max: The longest text, in characters.
    """

    length_max: int

    def __get_pydantic_json_schema__(self, _schema: CoreSchema, _handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        """Give pydantic the schema that Kubernetes defines for such a value."""
        return {
            INTEGER_OR_TEXT: True,
            "anyOf": [{"type": "integer"}, {"type": "string"}],
            "maxLength": self.length_max,
        }


def immutable(remedy: str) -> Rule:
    """The rule for a field that never changes and is neither added nor removed later. `remedy` says what to do."""
    return Rule("self == oldSelf", f"cannot be changed: {remedy}", keeps_presence=True)


def matches(pattern: str, message: str) -> Rule:
    """The rule for a text that matches `pattern`.

    pydantic's own `pattern` is not used, because the API server's refusal would show the pattern and no advice.
    """
    assert "'" not in pattern
    return Rule(f"self.matches('{pattern}')", message)
