"""Topics with known messages."""

from __future__ import annotations

from collections.abc import Iterable

from seriatim import TopicSettings, sync

BATCH = 100


class Filled:
    """A topic, and the values that each of its partitions was sent, in order."""

    def __init__(
        self, client: sync.Client, bootstrap: str, name: str, partitions: int = 1, settings: TopicSettings | None = None
    ) -> None:
        self.client = client
        self.name = name
        self.options = {"bootstrap": bootstrap, "topic": name}
        client.admin().create_topic(name, partitions, settings)
        self.values: dict[int, list[bytes]] = {number: [] for number in range(partitions)}

    def send(self, counts: Iterable[int], size: int = 0, headers: bool = False) -> None:
        """This many more to each partition."""
        with self.client.producer(self.name) as producer:
            for partition, count in enumerate(counts):
                sent = self.values.setdefault(partition, [])
                for first in range(0, count, BATCH):
                    rows = min(BATCH, count - first)
                    values = [b"%d" % (len(sent) + n) + bytes(size) for n in range(rows)]
                    keys = [b"key-%d" % (n % 7) for n in range(rows)]
                    given = [{"n": b"%d" % n} for n in range(rows)] if headers else None
                    producer.send_many(values, keys, partition, headers=given).result()
                    sent += values

    def switch(self, partition: int = 0) -> None:
        """Open the partition's next segment."""
        admin = self.client.admin()
        admin.switch_partition(admin.describe_chain(self.name, partition).partition_id)

    @property
    def rows(self) -> int:
        """All that was sent."""
        return sum(map(len, self.values.values()))
