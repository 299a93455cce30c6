"""The keys in the coordinator: one function for each kind.

All keys of a cluster begin with `/seriatim/<cluster>/`. Names are legal in a key as they are
(`seriatim_api.ids.is_legal_name`). Partition ids are written with ten digits. So the order of keys is numeric, and a
listing can be divided into pages.
"""

from __future__ import annotations

from dataclasses import dataclass

from seriatim_api.ids import MemberId, PartitionId, RunId, is_legal_name

_PARTITION_DIGITS = 10  # of a 32-bit counter

CHAINS_PER_PAGE = 1000
"""A power of ten: partitions whose ids differ only in the last three digits have neighbouring keys. About 1 MB."""


@dataclass(frozen=True, slots=True)
class Keys:
    """The keys of one cluster."""

    cluster: str

    def __post_init__(self) -> None:
        assert is_legal_name(self.cluster), self.cluster

    @property
    def prefix(self) -> str:
        """The beginning of all keys of the cluster."""
        return f"/seriatim/{self.cluster}/"

    @property
    def cluster_record(self) -> str:
        """The cluster's identity."""
        return f"{self.prefix}cluster"

    @property
    def controller(self) -> str:
        """The election key of the controller, under a lease."""
        return f"{self.prefix}controller"

    @property
    def partition_counter(self) -> str:
        """The next partition id."""
        return f"{self.prefix}counters/partition"

    @property
    def group_epoch(self) -> str:
        """The floor of group epochs: a consumer group without a cursor begins above it."""
        return f"{self.prefix}counters/group-epoch"

    @property
    def members(self) -> str:
        """Prefix of the member records."""
        return f"{self.prefix}members/"

    def member(self, broker: str) -> str:
        """The incarnation that holds a slot."""
        return f"{self.members}{broker}"

    def watermark(self, broker: str) -> str:
        """How far the disk of a slot was durable when its broker noted it last."""
        return f"{self.prefix}watermarks/{broker}"

    @property
    def broker_group_specs(self) -> str:
        """Prefix of the intents and weights of broker groups."""
        return f"{self.prefix}spec/groups/"

    def broker_group_spec(self, group: str) -> str:
        """Intent and weight of a broker group."""
        return f"{self.broker_group_specs}{group}"

    @property
    def operator(self) -> str:
        """The highest epoch of an operator's Lease that was seen."""
        return f"{self.prefix}spec/operator"

    @property
    def lives(self) -> str:
        """Prefix of the live keys."""
        return f"{self.prefix}live/"

    def live(self, broker: str) -> str:
        """A hint that the broker runs, under a lease."""
        return f"{self.lives}{broker}"

    def probe(self, broker: str) -> str:
        """A broker writes this key to find out whether the coordinator takes writes."""
        return f"{self.prefix}probe/{broker}"

    @property
    def certificates(self) -> str:
        """Prefix of the death certificates."""
        return f"{self.prefix}certificates/"

    def certificates_of(self, member: MemberId) -> str:
        """Prefix of the death certificates of one incarnation."""
        return f"{self.certificates}{member.incarnation}/"

    def certificate(self, run: RunId) -> str:
        """The death certificate of a run."""
        return f"{self.certificates_of(run.member)}{run.run}"

    @property
    def topics(self) -> str:
        """Prefix of the topic records."""
        return f"{self.prefix}topics/"

    def topic(self, name: str) -> str:
        """A topic's record."""
        return f"{self.topics}{name}"

    @property
    def chains(self) -> str:
        """Prefix of the chain records."""
        return f"{self.prefix}chains/"

    def chain(self, partition: PartitionId) -> str:
        """A partition's chain record."""
        return f"{self.chains}{partition:0{_PARTITION_DIGITS}d}"

    def chains_page(self, partition: PartitionId) -> str:
        """Prefix of the chain records of the `CHAINS_PER_PAGE` partitions around `partition`."""
        return self.chain(partition)[: -len(str(CHAINS_PER_PAGE - 1))]

    def pages_of(self, partition: PartitionId) -> str:
        """Prefix of the pages with the older segments of a long chain."""
        return f"{self.prefix}pages/{partition:0{_PARTITION_DIGITS}d}/"

    def page(self, partition: PartitionId, number: int) -> str:
        """A page of a long chain."""
        return f"{self.pages_of(partition)}{number}"

    @property
    def cursors(self) -> str:
        """Prefix of all cursors."""
        return f"{self.prefix}cursors/"

    def cursors_of(self, partition: PartitionId) -> str:
        """Prefix of the cursors of a partition."""
        return f"{self.cursors}{partition:0{_PARTITION_DIGITS}d}/"

    def cursor(self, partition: PartitionId, group: str) -> str:
        """A consumer group's cursor in a partition."""
        return f"{self.cursors_of(partition)}{group}"

    def cursors_made(self, topic: str) -> str:
        """Written with each new cursor of a topic, so that a topic that grows sees all of its consumer groups."""
        return f"{self.prefix}cursors-made/{topic}"

    def lost_disk(self, member: MemberId) -> str:
        """An administrator's declaration that a disk is lost for good."""
        return f"{self.prefix}lost-disks/{member.broker}/{member.incarnation}"

    @property
    def tombstones(self) -> str:
        """Prefix of the tombstones of deleted partitions."""
        return f"{self.prefix}tombstones/"

    def tombstone(self, partition: PartitionId) -> str:
        """The tombstone of a deleted partition."""
        return f"{self.tombstones}{partition:0{_PARTITION_DIGITS}d}"

    @property
    def deleted_partitions(self) -> str:
        """Ranges of deleted partitions, in place of their tombstones."""
        return f"{self.prefix}deleted-partitions"

    @property
    def writers(self) -> str:
        """Prefix of the writer records."""
        return f"{self.prefix}writers/"

    def writers_of(self, incarnation: str) -> str:
        """Prefix of the writer records of a topic."""
        return f"{self.writers}{incarnation}/"

    def writer(self, incarnation: str, writer: str) -> str:
        """A writer's record."""
        return f"{self.writers_of(incarnation)}{writer}"

    def lost_writers(self, incarnation: str, name_digest: bytes) -> str:
        """Prefix of the records that were rebuilt for a writer whose name only its program knows.

        No writer's name begins with `~`.
        """
        return f"{self.writers_of(incarnation)}~{name_digest.hex()}-"

    def lost_writer(self, incarnation: str, producer: bytes, name_bytes: int) -> str:
        """The record that was rebuilt for the writer with this producer id."""
        return self.lost_writers(incarnation, producer[:name_bytes]) + producer[name_bytes:8].hex()

    @property
    def owners(self) -> str:
        """Prefix of the records of owners."""
        return f"{self.prefix}owners/"

    def owner(self, producer: bytes) -> str:
        """The record of the owner of an exclusive producer."""
        return f"{self.owners}{producer.hex()}"

    @property
    def stage_floors(self) -> str:
        """Prefix of the floors of staged data."""
        return f"{self.prefix}stage/floors/"

    def stage_floor(self, partition: PartitionId) -> str:
        """The offset in a partition of the stage topic below which data may be gone."""
        return f"{self.stage_floors}{partition:0{_PARTITION_DIGITS}d}"


def group_of(key: str) -> str:
    """The consumer group of a cursor's key. In broadcast mode its name has a `/`."""
    return key.split("/", 5)[5]


def partition_of(key: str) -> PartitionId:
    """The partition at the end of a chain's or tombstone's key."""
    return PartitionId(int(key.rpartition("/")[2]))
