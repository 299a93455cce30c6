"""A stream that is struck again and again, at moments that a seed chooses. SEEDS=200 runs as many, from SEED=1 on."""

from __future__ import annotations

import os
import random
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from seriatim import sync

from e2e.spark_faults.striking import MOMENTS, ask, register

from .conftest import Brokers
from .filling import Filled
from .test_sink import content, rows_of, target

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FIRST = int(os.environ.get("SEED", "1"))
SEEDS = range(FIRST, FIRST + int(os.environ.get("SEEDS", "2")))
BATCHES = 6
ROWS = 150
STARTS_MAX = 40
WAIT_S = 120.0


class Striker:
    """Asks for a kill at one moment after another, and kills brokers."""

    def __init__(self, seed: int, asked: Path, brokers: Brokers, client: sync.Client, topic: str) -> None:
        self._random = random.Random(seed)
        self._asked = asked
        self._brokers = brokers
        self._client = client
        self._topic = topic
        self._left = 6
        self.strikes: list[str] = []

    def ask(self) -> None:
        """For strikes at some moments, each in any micro-batch, while there are some left."""
        for moment in self._random.sample(MOMENTS, self._random.randint(1, len(MOMENTS))):
            if self._left and not (self._asked / moment).exists():
                self._left -= 1
                batch = self._random.randrange(BATCHES)
                ask(self._asked, moment, batch)
                self.strikes.append(f"{moment} of {batch}")

    def strike_broker(self) -> None:
        """Kill the master of a partition of the target, and start it again."""
        self._brokers.whole()
        chain = self._client.admin().describe_chain(self._topic, self._random.randrange(2))
        victim = chain.segments[-1].members[self._random.randrange(2)]
        self._brokers.kill(victim)
        self.strikes.append(victim)


@pytest.mark.parametrize("seed", SEEDS)
def test_whatever_is_killed_every_row_is_there_once_and_in_order(
    spark: SparkSession, client: sync.Client, brokers: Brokers, tmp_path: Path, seed: int
) -> None:
    topic = Filled(client, brokers.bootstrap, f"seed-{seed}", 2)
    chance = random.Random(seed)
    topic.send([chance.randint(1, BATCHES * ROWS), chance.randint(1, BATCHES * ROWS)], size=chance.choice([0, 2_000]))
    options = target(client, brokers, f"struck-{seed}")
    kind = register(spark, tmp_path)
    striker = Striker(seed, tmp_path, brokers, client, options["topic"])
    rows: Any = rows_of(spark, topic, maxRowsPerTrigger=str(max(1, topic.rows // BATCHES)))
    try:
        for start in range(STARTS_MAX):
            striker.ask()
            if start == 1:
                striker.strike_broker()
            writer = rows.writeStream.format(kind).options(**options)
            query = writer.option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(availableNow=True).start()
            try:
                assert query.awaitTermination(WAIT_S)
            except Exception as exc:
                if "worker" not in str(exc):
                    raise
            else:
                break
        else:
            raise AssertionError(f"started {STARTS_MAX} times: {striker.strikes}")
    finally:
        brokers.whole()
    assert content(client, options["topic"]) == topic.values, striker.strikes
