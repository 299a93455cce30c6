"""The form of a value as text: what another version must know to read it."""

from __future__ import annotations

from collections.abc import Iterator

from msgspec import inspect


def described(wire: type) -> Iterator[str]:
    """A line for each array and each set of values that is in a form: names, types, limits and defaults, in order."""
    form = inspect.type_info(wire)
    assert isinstance(form, inspect.StructType)
    found: dict[str, None] = {}
    parts = ["" if form.tag is None else f"number {form.tag}"]
    for field in form.fields:
        default = f" = {field.default!r}" if not field.required else ""
        parts.append(f"{field.name} {_text(field.type, found)}{default}")
    yield from found
    yield f"{wire.__name__}: {', '.join(filter(None, parts))}"


def _text(kind: inspect.Type, found: dict[str, None]) -> str:
    match kind:
        case inspect.StructType(cls):
            found.update(dict.fromkeys(described(cls)))
            return cls.__name__
        case inspect.EnumType(cls):
            found[f"{cls.__name__}: {', '.join(repr(each.value) for each in cls)}"] = None
            return cls.__name__
        case inspect.VarTupleType(of):
            return f"[{_text(of, found)}, ...]"
        case inspect.TupleType(of):
            return f"[{', '.join(_text(each, found) for each in of)}]"
        case inspect.UnionType(types):
            return " or ".join(_text(each, found) for each in types)
        case inspect.IntType():
            return {(0, 2**32 - 1): "u32", (0, None): "u64"}.get((kind.ge, kind.le), "i64")
    return type(kind).__name__.removesuffix("Type").lower()
