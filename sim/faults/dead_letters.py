"""Worlds in which messages go to a dead-letter topic."""

from __future__ import annotations

import random
from dataclasses import replace

from .chains import gaps
from .keyed import keyed, keyed_restored
from .options import Options


def dead_letters(rng: random.Random, options: Options) -> Options:
    """Consumers give messages up for good. Their dead letters go to another partition, under the faults of `keyed`."""
    return replace(keyed(rng, options), dead_letters=True, partition_count=2)


def letters_restored(rng: random.Random, options: Options) -> Options:
    """The coordinator goes back while messages are given up, so that an earlier server of a group forwards too."""
    drawn = keyed_restored(rng, options)
    return replace(
        drawn,
        kinds={"restore": 4, "complaint": 2, "plan": 5, "consumer_crash": 2, "crash": 1},
        group_count=rng.choice((2, 3)),
        fault_count=rng.choice((12, 18)),
        fault_span_us=2_400_000,
        batches_per_producer=40,
        send_gap_us=20_000,
        keyed_failures=0.4,
        dead_letters=True,
        partition_count=2,
    )


def letters_lost(rng: random.Random, options: Options) -> Options:
    """The dead-letter topic is away while disks are lost for good, and groups have no consumers for seconds."""
    drawn = gaps(rng, options)
    return replace(
        drawn,
        kinds={"lose_group": 3, "crash": 2, "plan": 4, "consumer_crash": 6},
        fault_count=rng.choice((9, 14)),
        fault_span_us=1_200_000,
        batches_per_producer=50,  # some come after the last switch: a group that forwards does not cross before
        send_gap_us=60_000,
        consumer_away_us_max=2_000_000,
        keyed_consumers=rng.choice((1, 1, 2)),
        keyed_failures=0.3,
        dead_letters=True,
        letters_away=True,
        partition_count=2,
        certificate_never_share=0.0,
        drain_us=max(options.drain_us, 20_000_000),
    )
