"""Worlds in which messages go to a dead-letter topic."""

from __future__ import annotations

import random
from dataclasses import replace

from .keyed import keyed
from .options import Options


def dead_letters(rng: random.Random, options: Options) -> Options:
    """Consumers give messages up for good. Their dead letters go to another partition, under the faults of `keyed`."""
    return replace(keyed(rng, options), dead_letters=True, partition_count=2)
