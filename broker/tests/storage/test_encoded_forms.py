"""What brokers send to each other has a form, and a form changes only as docs/contributing/formats.md says."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from seriatim_api.protocol import PROTOCOL
from seriatim_broker.core.values import messages as m
from seriatim_broker.interfaces import forms
from seriatim_broker.rpc.links import codec
from seriatim_broker.rpc.servicers import rebuild_reports

from .described_forms import described

FORMS = Path(__file__).parent / "forms" / f"{PROTOCOL}-{m.FORMS}.txt"
"""Of the present protocol and the forms that this version reads. So a change with a new form is a new file."""


def test_messages_between_brokers_are_as_their_forms_say() -> None:
    wires = [*(way.wire for way in codec.WAYS.values()), forms.way_of(rebuild_reports.KnownPartition).wire]
    written = "\n".join(dict.fromkeys(line for wire in wires for line in described(wire))) + "\n"
    if os.environ.get("REWRITE_FORMATS") == "1":
        FORMS.write_text(written, encoding="utf-8")
    told = FORMS.read_text(encoding="utf-8") if FORMS.exists() else ""
    assert written == told, (
        "what brokers send to each other has changed: read docs/contributing/formats.md, add a form or raise PROTOCOL, "
        "and run this test with REWRITE_FORMATS=1"
    )


@dataclass(frozen=True)
class Before:
    """A value of the version before."""

    index: int
    names: tuple[str, ...] = ()


@dataclass(frozen=True)
class Added:
    """The same value in a version that adds a field."""

    index: int
    names: tuple[str, ...] = ()
    limit: int = 7


@dataclass(frozen=True)
class Unused:
    """The same value in a version that does not write `names` any more, and keeps its place."""

    index: int
    names: tuple[str, ...] = field(default=(), repr=False)
    limit: int = 7


@dataclass(frozen=True)
class WithoutDefault:
    """A field that was added wrongly."""

    index: int
    names: tuple[str, ...]
    limit: int


def test_a_field_is_added_and_dropped_in_a_rolling_upgrade() -> None:
    # Some brokers have the new version. They leave the field at its default while not all read the form.
    for old in (Before(5), Before(5, ("a",))):
        new = forms.decode(Added, forms.encode(old))
        assert new == Added(5, old.names, 7), "the field is as if it did not exist"
        assert forms.encode(new) == forms.encode(old), "the version before sees no difference"
    # All read the form: the field is used. A version that does not know it does not pass over it.
    used = forms.encode(Added(5, (), 8))
    assert forms.decode(Added, used) == Added(5, (), 8)
    with pytest.raises(forms.FormError, match="at most length 2"):
        forms.decode(Before, used)
    # A field that is not used any more keeps its place. After the last one that is used, nothing is written.
    assert forms.decode(Added, forms.encode(Unused(5, (), 8))) == Added(5, (), 8)
    assert forms.encode(Unused(5)) == forms.encode(Before(5))
    with pytest.raises(forms.FormError, match="at least length 3"):
        forms.decode(WithoutDefault, forms.encode(Before(5, ("a",))))
