"""Makes the CustomResourceDefinition of a kind."""

from __future__ import annotations

import hashlib
import json
from typing import Any, Final, cast

import yaml

from ..base import API_GROUP, API_VERSION, CATEGORY, Resource, Status
from ..columns import Column
from .schema import Schema, structural_schema

SCHEMA_HASH: Final = "seriatim.dev/schema-hash"
"""An annotation of a definition. If an operator finds another value than its own, it reports `DefinitionOutdated` and
continues."""

SIZE_BYTES_MAX: Final = 100_000
"""`kubectl apply` keeps a copy of the definition in an annotation, which has at most 262,144 bytes. This limit is far
below that."""

_NEVER: Final = "1970-01-01T00:00:00Z"

_API_VERSION_TEXT: Final = "The version of this object's schema."
_KIND_TEXT: Final = "The kind of this object."


def definition(kind: type[Resource]) -> dict[str, Any]:
    """The definition of a kind as a manifest."""
    body = _body(kind)
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {
            "name": definition_name(kind),
            "labels": {"app.kubernetes.io/name": "seriatim", "app.kubernetes.io/part-of": "seriatim"},
            "annotations": {SCHEMA_HASH: _hash_of(body)},
        },
        "spec": body,
    }


def schema_hash(kind: type[Resource]) -> str:
    """A hash of the definition as this version of the operator has it, without the descriptions."""
    return _hash_of(_body(kind))


def _hash_of(body: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(_without_words(body), sort_keys=True).encode()).hexdigest()[:16]


def _without_words(node: Any) -> Any:
    """The node without descriptions. Their wording changes between releases, and no code depends on it."""
    if isinstance(node, list):
        return [_without_words(item) for item in node]
    if not isinstance(node, dict):
        return node
    # A field may also be called "description". Then the value is its schema and not a text, and it stays.
    return {
        name: _without_words(value)
        for name, value in node.items()
        if not (name == "description" and isinstance(value, str))
    }


def _body(kind: type[Resource]) -> dict[str, Any]:
    return {
        "group": API_GROUP,
        "scope": "Namespaced",
        "names": {
            "kind": kind.KIND,
            "listKind": f"{kind.KIND}List",
            "plural": kind.PLURAL,
            "singular": kind.SINGULAR,
            "shortNames": [kind.SHORT_NAME],
            "categories": [CATEGORY],
        },
        "versions": [
            {
                "name": API_VERSION,
                "served": True,
                "storage": True,
                "subresources": _subresources(kind),
                "additionalPrinterColumns": [_column(column) for column in kind.COLUMNS],
                "schema": {"openAPIV3Schema": _root(kind)},
            }
        ],
    }


def definition_name(kind: type[Resource]) -> str:
    """The name of the definition, such as `topics.seriatim.dev`."""
    return f"{kind.PLURAL}.{API_GROUP}"


def file_name(kind: type[Resource]) -> str:
    """The name of the file that has the definition."""
    return f"{API_GROUP}_{kind.PLURAL}.yaml"


def definition_text(kind: type[Resource]) -> str:
    """The definition as YAML. The same models always give the same text."""
    text = yaml.safe_dump(definition(kind), sort_keys=False, width=120, allow_unicode=True)
    assert len(text.encode()) < SIZE_BYTES_MAX, f"the definition of {kind.KIND} has {len(text.encode())} bytes"
    return f"# Made by `make crds` from the models in operator/src/seriatim_operator/spec. Change those.\n{text}"


def _root(kind: type[Resource]) -> Schema:
    schema = structural_schema(kind)
    fields = schema["properties"]
    schema["properties"] = {
        "apiVersion": {"type": "string", "description": _API_VERSION_TEXT},
        "kind": {"type": "string", "description": _KIND_TEXT},
        "metadata": {"type": "object"},
        "spec": fields["spec"],
        "status": {**fields["status"], "default": {"conditions": _conditions(_status_of(kind))}},
    }
    schema["required"] = ["spec"]
    return schema


def _status_of(kind: type[Resource]) -> type[Status]:
    return cast(type[Status], kind.model_fields["status"].annotation)


def _conditions(status: type[Status]) -> list[dict[str, Any]]:
    """The conditions of a new object, so that `kubectl wait` works before the operator has seen the object."""
    return [
        {
            "type": condition,
            "status": "Unknown",
            "reason": "NotReconciled",
            "message": "Waiting for the operator",
            "lastTransitionTime": _NEVER,
            "observedGeneration": 0,
        }
        for condition in status.CONDITIONS
    ]


def _subresources(kind: type[Resource]) -> dict[str, Any]:
    if kind.SCALE is None:
        return {"status": {}}
    scale = {
        "specReplicasPath": kind.SCALE.wanted,
        "statusReplicasPath": kind.SCALE.actual,
        "labelSelectorPath": kind.SCALE.selector,
    }
    return {"status": {}, "scale": scale}


def _column(column: Column) -> dict[str, Any]:
    made = {"name": column.name, "type": column.type, "jsonPath": column.path}
    return {**made, "priority": 1} if column.is_wide else made
