"""The error that ends a command with a sentence instead of a traceback."""

from __future__ import annotations


class PluginError(Exception):
    """The command cannot do its work. The text says why and what to do."""
