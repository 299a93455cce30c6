"""Converts a model to the schema that Kubernetes accepts.

pydantic describes a model in JSON Schema. Kubernetes needs a *structural* schema of OpenAPI v3, which has no
references, no unions with null and no titles. This module makes the second from the first.
"""

from __future__ import annotations

from typing import Any, Final

from pydantic import BaseModel

from ..rules import INTEGER_OR_TEXT, KEEPS_PRESENCE, LIST_TYPE, VALIDATIONS

Schema = dict[str, Any]

_DROPPED: Final = ("title", "$defs")

_ORDER: Final = (
    "description",
    "type",
    "format",
    "enum",
    "default",
    "items",
    "additionalProperties",
    "properties",
    "required",
)
"""The order of the keys in a schema. Keys that are not in this list come after them."""


def structural_schema(model: type[BaseModel]) -> Schema:
    """The schema of a model's manifests.

    Raises:
        ValueError: A structural schema cannot express a field of the model.
    """
    whole = model.model_json_schema(by_alias=True)
    return _convert(whole, whole.get("$defs", {}))


def _convert(node: Schema, definitions: Schema) -> Schema:
    """Convert one node of the schema and all nodes below it."""
    node = _without_references(node, definitions)
    node = _without_null(node, definitions)
    converted = {name: value for name, value in node.items() if name not in _DROPPED}
    if "const" in converted:
        converted |= {"enum": [converted.pop("const")], "type": "string"}
    if "exclusiveMinimum" in converted:
        converted |= {"minimum": converted["exclusiveMinimum"], "exclusiveMinimum": True}
    if converted.get("type") == "integer":
        converted["format"] = "int64"
    if converted.get("type") == "object":
        _convert_object(converted, definitions)
    if converted.get("type") == "array":
        converted["items"] = _convert(converted["items"], definitions)
        converted.setdefault(LIST_TYPE, "atomic")
    if "type" not in converted and INTEGER_OR_TEXT not in converted:
        raise ValueError(f"a structural schema cannot express {node}")
    if converted.get("default") in ("", []):
        del converted["default"]  # the same as without a default, which would be in every object
    return {name: converted[name] for name in sorted(converted, key=_rank)}


def _rank(name: str) -> int:
    return _ORDER.index(name) if name in _ORDER else len(_ORDER)


def _without_references(node: Schema, definitions: Schema) -> Schema:
    """The node with its reference resolved. A key beside the reference, such as a default, replaces the target's."""
    while "$ref" in node:
        target = definitions[node["$ref"].rpartition("/")[2]]
        node = {**target, **{name: value for name, value in node.items() if name != "$ref"}}
    return node


def _without_null(node: Schema, definitions: Schema) -> Schema:
    """The node without its choice of null: an optional field is left out and never written as null."""
    if "anyOf" not in node or node.get(INTEGER_OR_TEXT):
        return node
    (choice,) = (choice for choice in node["anyOf"] if choice.get("type") != "null")
    beside = {name: value for name, value in node.items() if name not in ("anyOf", "default")}
    return _without_null(_without_references({**choice, **beside}, definitions), definitions)


def _convert_object(node: Schema, definitions: Schema) -> None:
    """Convert the fields of an object, and add the rules that keep a field present or absent."""
    if isinstance(node.get("default"), dict):
        node["default"] = {}  # the fields of the object have the defaults: each default is written once
    if isinstance(node.get("additionalProperties"), dict):
        node["additionalProperties"] = _convert(node["additionalProperties"], definitions)
        return
    properties = {name: _convert(field, definitions) for name, field in node.get("properties", {}).items()}
    required = node.get("required", ())
    for name, field in properties.items():
        message = field.pop(KEEPS_PRESENCE, None)
        if message is not None and name not in required and "default" not in field:
            rules = node.get(VALIDATIONS, [])
            node[VALIDATIONS] = [*rules, _presence_rule(name, message)]
    node["properties"] = properties


def _presence_rule(name: str, message: str) -> Schema:
    """The rule that keeps an optional field present or absent.

    Without it, a user could remove a field that never changes and add it again with another value.
    """
    return {
        "rule": f"has(self.{name}) == has(oldSelf.{name})",
        "message": f"{message} (and neither adding nor removing it is possible)",
        "fieldPath": f".{name}",
    }
