"""Planted bugs that only `make test-slow` looks for: all others show in less than half a second of processor time."""

from __future__ import annotations

from typing import Final

_NAMES: Final = """
    amends-together aside-is-reserved back-is-flagged begun-first blind-goes-back chain-compare comer-is-told
    conflict-done delay-ends-with-message dirty-stays drop-is-no-ack dropped-behind-loss dropped-stays-dropped
    drops-told-once durable-latest epoch-compare expires-without-range first-reads folds-unsettled folds-with-table
    folds-with-tail forward-ends-with-message forwards-are-wanted frames-by-size full-first further-waits
    gate-asks-nobody gone-is-noted gone-lists-are-passed granted-and-gone in-order-of-numbers jump-is-noted
    jump-tells-drop keys-said-when-durable last-confirms later-run lease-from-receipt loss-hides-no-drop loss-told-once
    lost-behind-others lost-is-noted missing-is-noted new-mode-is-flagged new-mode-keeps-note not-into-the-empty
    not-registered-again note-is-durable numbered-is-durable older-server one-count one-entry-a-key only-masters-publish
    only-the-asked own-death parts-mixed passed-is-noted passed-is-stored passes-over-what-is-lost range-parts
    read-is-told rebuilt-goes-back record-if-unknown refusals-stay reserved-by-one rest-is-ready run-refused
    settings-on-disks storage-cut-in-memory storage-damage-is-end tails-forgotten taken-up
    under-way-stays unknown-done untold-not-taken-up
"""

SLOW: Final = frozenset(_NAMES.split())
"""Two worlds of complete brokers or with large key tables; or, if the world of the page does not show the bug any more,
a search of minutes."""
