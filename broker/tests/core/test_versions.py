"""Which forms of messages and records the others read: a broker asks its links, and what all have registered."""

from __future__ import annotations

import pytest
from seriatim_broker.core.peers import versions
from seriatim_broker.core.values import events as ev

from .support import M00, M01, M10, Bench


def linked(forms: int, of_all: int) -> Bench:
    """A broker with a link to M01, and what the coordinator says that all brokers read."""
    bench = Bench(M00)
    bench.do(ev.DirectoryChanged((), forms=of_all))
    bench.do(ev.LinkUp(M01.broker, M01, 1, 9, forms))
    return bench


@pytest.mark.parametrize(("forms", "reads"), [(0, False), (1, False), (2, True), (3, True)])
def test_member_reads_what_it_said_when_it_was_linked(forms: int, reads: bool) -> None:
    bench = linked(forms, 0)
    assert versions.reads(bench.core.state, M01, 2) is reads
    assert versions.reads(bench.core.state, M00, 2), "this broker itself"
    assert not versions.reads(bench.core.state, M10, 1), "not linked"


@pytest.mark.parametrize(("forms", "of_all", "read"), [(2, 2, True), (2, 0, False), (1, 2, False), (3, 6, True)])
def test_form_is_for_all_if_registered_and_linked_brokers_read_it(forms: int, of_all: int, read: bool) -> None:
    """A linked broker counts too, because this one may not have read yet what it registered."""
    assert versions.all_read(linked(forms, of_all).core.state, 2) is read
