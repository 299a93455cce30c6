"""Rules of the core about empty segments that leave the record of a chain."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from seriatim_broker.core.consumers import serving
from seriatim_broker.core.values import chain as chains
from seriatim_broker.core.values.segment import SegmentState

from .mutation import Mutation, Patch, nothing


def _folds_any_sealed() -> list[Patch]:
    real = chains.may_fold

    def may_fold(segment: Any, before: Any, marks: Any) -> bool:
        """A length that is known is as good as none."""
        emptied = replace(segment, sealed_len=0) if segment.sealed_len else segment
        return real(emptied, before, marks)

    return [(chains, "may_fold", may_fold), (chains, "_check_around", nothing)]


def _folds_unsettled() -> list[Patch]:
    real = chains.may_fold

    def may_fold(segment: Any, before: Any, marks: Any) -> bool:
        """A segment whose length is not known yet is treated as empty."""
        if segment.state is SegmentState.UNSETTLED:
            segment = replace(segment, state=SegmentState.SEALED, sealed_len=0)
        return real(segment, before, marks)

    return [(chains, "may_fold", may_fold), (chains, "_check_around", nothing)]


def _folds_with_tail() -> list[Patch]:
    real = chains.may_fold
    return [(chains, "may_fold", lambda segment, before, marks: real(segment, before and _tailless(before), marks))]


def _tailless(segment: Any) -> Any:
    return replace(segment, tail_from=None)


def _folds_with_table() -> list[Patch]:
    real = chains.may_fold
    return [(chains, "may_fold", lambda segment, before, marks: real(segment, before, (False, False)))]


def _stays_in_folded() -> list[Patch]:
    return [(serving, "_pass_over_folded", nothing)]


MUTATIONS: dict[str, Mutation] = {
    "folds-any-sealed": Mutation("only an empty segment is folded", _folds_any_sealed, ("I8", "CORE"), "chatty"),
    "folds-unsettled": Mutation("only a settled segment is folded", _folds_unsettled, ("I8", "CORE"), "chatty"),
    "folds-with-tail": Mutation(
        "a segment whose members keep the tail of the one before stays",
        _folds_with_tail,
        ("COPY", "I12"),
        "torn-and-chatty",
    ),
    "folds-with-table": Mutation(
        "a segment before an incomplete one stays", _folds_with_table, ("I9", "TABLE", "I13"), "chatty"
    ),
    "stays-in-folded": Mutation(
        "a consumer group whose cursor is in a folded segment goes on", _stays_in_folded, ("I13",), "chatty"
    ),
}
