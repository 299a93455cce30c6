"""Writes `reference/crds.md` from the models of our Kubernetes kinds.

The page says what a definition in `crds/` says, in a form that users read; both are made from the models in
`operator/src/seriatim_operator/spec`, and the reasons of conditions from the operator's closed lists.

    python docs/generate_crds.py           writes the page
    python docs/generate_crds.py --check   writes nothing; exit status 1 if the page is not current
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

from seriatim_operator.spec import KINDS, Broker, BrokerCluster, BrokerGroup, ConsumerGroup, Resource, Topic
from seriatim_operator.spec.base import API_GROUP, API_VERSION
from seriatim_operator.spec.crd.schema import structural_schema
from seriatim_operator.spec.rules import INTEGER_OR_TEXT, VALIDATIONS
from seriatim_operator.spec.settings import SETTINGS_RULES, USER_SETTINGS
from seriatim_operator.status import reasons

PAGE: Final = Path(__file__).resolve().parent / "reference" / "crds.md"

_INTRODUCTION: Final = f"""\
<!-- Made by docs/generate_crds.py from the models of the operator. Change those, not this page. -->

# Kubernetes kinds

All are `{API_GROUP}/{API_VERSION}`, live in a namespace, and belong to the category `seriatim`: `kubectl get seriatim`
lists them all. There are [samples](../samples) of the kinds that users write. They can be applied as they are, beside
the cluster that the chart makes. Only the operator makes BrokerGroups and Brokers: an admission policy of the chart
refuses those that others make. What a field may not be is refused by the API server with a message that says what to
do; what it cannot know (a class that does not exist, a name that is taken) becomes a condition of the object.

Commands on these pages use the short names (`stopic`, `sbroker`), because other products have kinds called `topics` and
`brokers` too, and `kubectl get topics` may show theirs.

*never changes* stands for: neither changed, nor added or taken away later. A field that is neither required nor has a
default may be left out.
"""

_REASONS: Final[Mapping[type[Resource], Mapping[str, Mapping[str, str]]]] = {
    BrokerCluster: reasons.CLUSTER,
    BrokerGroup: reasons.GROUP,
    Broker: reasons.BROKER,
    Topic: reasons.TOPIC,
    ConsumerGroup: reasons.CONSUMER_GROUP,
}
_EVENTS: Final[Mapping[type[Resource], Mapping[str, str]]] = {
    BrokerCluster: {**reasons.CLUSTER_EVENTS, **reasons.CLUSTER_TOPIC_EVENTS},
    Topic: reasons.TOPIC_EVENTS,
    ConsumerGroup: reasons.CONSUMER_GROUP_EVENTS,
}
_CONDITIONS_FIELD: Final = "status.conditions"


class Row(NamedTuple):
    """One field."""

    path: str
    schema: Mapping[str, Any]
    is_required: bool


def render() -> str:
    """The whole page."""
    return _INTRODUCTION + "".join(_kind(kind) for kind in KINDS)


def _kind(kind: type[Resource]) -> str:
    schema = structural_schema(kind)
    rows = list(_rows("", schema))
    spec = [row for row in rows if row.path.startswith("spec.")]
    status = [row for row in rows if row.path.startswith("status.") and not row.path.startswith(_CONDITIONS_FIELD)]
    parts = [
        f"\n## {kind.KIND}\n\n{schema['description']} Short name `{kind.SHORT_NAME}`, plural `{kind.PLURAL}`.\n",
        "".join(f"\n- {_rule_text(rule)}" for rule in schema.get(VALIDATIONS, ())),
        "\n" if schema.get(VALIDATIONS) else "",
        "\n### Spec\n\n| field | type | default | what it says | rules |\n|---|---|---|---|---|\n",
        *(_spec_row(row) for row in spec),
        "\n### Status\n\n| field | type | what it says |\n|---|---|---|\n",
        *(f"| `{_short(row)}` | {_type(row.schema)} | {_text(row)} |\n" for row in status),
        "\n### Conditions\n\n| condition | reason | meaning |\n|---|---|---|\n",
        *_condition_rows(_REASONS[kind]),
    ]
    if kind is BrokerCluster:
        parts.append("\n### Settings\n\n| name in `spec.settings` | value, as text |\n|---|---|\n")
        parts += [f"| `{name}` | {allowed.words()} |\n" for name, allowed in sorted(USER_SETTINGS.items())]
        parts.append(f"\nAlso, {SETTINGS_RULES[-1].message}.\n")
    if kind in _EVENTS:
        parts.append("\n### Events\n\n| reason | meaning |\n|---|---|\n")
        parts += [f"| `{reason}` | {meaning} |\n" for reason, meaning in _EVENTS[kind].items()]
    return "".join(parts)


def _rows(path: str, schema: Mapping[str, Any]) -> Iterator[Row]:
    """The fields below a schema, depth first, in the order of the model."""
    required = schema.get("required", ())
    for name, field in schema.get("properties", {}).items():
        below = f"{path}.{name}" if path else name
        yield Row(below, field, name in required)
        yield from _rows(below, field)
        if field.get("type") == "array":
            yield from _rows(f"{below}[]", field["items"])


def _spec_row(row: Row) -> str:
    if row.is_required:
        default = "*required*"
    elif "default" in row.schema and row.schema["default"] != {}:
        default = f"`{_yaml(row.schema['default'])}`"
    else:
        default = ""
    return f"| `{_short(row)}` | {_type(row.schema)} | {default} | {_text(row)} | {_rules(row.schema)} |\n"


def _short(row: Row) -> str:
    return row.path.partition(".")[2]


def _text(row: Row) -> str:
    text = row.schema.get("description", "")
    return " ".join(text.split()).replace("|", "\\|")


def _yaml(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _type(schema: Mapping[str, Any]) -> str:
    if schema.get(INTEGER_OR_TEXT):
        return "integer or string"
    if "enum" in schema:
        return " or ".join(f"`{value}`" for value in schema["enum"])
    kind = schema["type"]
    if kind == "array":
        return f"list of {_type(schema['items'])}"
    if kind == "object" and "additionalProperties" in schema:
        return f"map of {_type(schema['additionalProperties'])}"
    return "time" if schema.get("format") == "date-time" else str(kind)


def _rules(schema: Mapping[str, Any]) -> str:
    """Bounds and rules of a field and of what it holds."""
    said = list(_bounds(schema))
    rules = [_rule_text(rule) for rule in schema.get(VALIDATIONS, ())]
    said += ["names and values of the table below"] if rules[:1] == [SETTINGS_RULES[0].message] else rules
    inner = schema.get("items") or schema.get("additionalProperties")
    if isinstance(inner, Mapping) and not inner.get("properties"):
        said += [f"each: {text}" for text in (*_bounds(inner), *map(_rule_text, inner.get(VALIDATIONS, ())))]
    return "; ".join(said).replace("|", "\\|")


def _bounds(schema: Mapping[str, Any]) -> Iterator[str]:
    low, high = schema.get("minimum"), schema.get("maximum")
    if low is not None and schema.get("exclusiveMinimum"):
        yield f"above {low:g}, at most {high:g}" if high is not None else f"above {low:g}"
    elif low is not None or high is not None:
        yield f"{low} to {high}" if low is not None and high is not None else f"at least {low}"
    for name, what in (("Length", "characters"), ("Items", "entries"), ("Properties", "entries")):
        if f"max{name}" in schema:
            yield f"at most {schema[f'max{name}']} {what}"


def _rule_text(rule: Mapping[str, str]) -> str:
    message = rule["message"]
    if message.startswith("cannot be changed: "):
        return f"*never changes* ({message.removeprefix('cannot be changed: ')})"
    return message


def _condition_rows(table: Mapping[str, Mapping[str, str]]) -> Iterator[str]:
    for condition, meanings in table.items():
        for reason, meaning in meanings.items():
            yield f"| {condition} | `{reason}` | {meaning} |\n"


def main(arguments: list[str]) -> int:
    """Write or check the page; the exit status."""
    if arguments not in ([], ["--check"]):
        sys.stderr.write("usage: generate_crds.py [--check]\n")
        return 2
    page = render()
    if arguments == ["--check"]:
        current = PAGE.read_text(encoding="utf-8") if PAGE.exists() else ""
        if current != page:
            sys.stderr.write(f"{PAGE.name} is not current: run make crds\n")
            return 1
        return 0
    PAGE.write_text(page, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
