"""A console of rich that shows no control character of a text that others wrote (`safe_text`).

This module needs rich, which the packages with commands install. No other module of this package imports it.
"""

from __future__ import annotations

from collections.abc import Iterable

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from .safe_text import safe_text


class SafeConsole(Console):
    """Escapes what a terminal might obey in all that it renders. Its own colours and cursor movements stay."""

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """Render as rich does, and make each text safe."""
        for segment in super().render(renderable, options):
            text, style, control = segment
            yield segment if control else Segment(safe_text(text), style)
