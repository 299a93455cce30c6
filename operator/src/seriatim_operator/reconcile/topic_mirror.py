"""Keeps what the brokers of one cluster have reported about its topics. It is current while their stream is open."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, fields
from typing import Final, Literal

from seriatim_api.delay_limits import delay_limits_of
from seriatim_api.v1 import broker_pb2, records_pb2

from ..plan.chains import ChainCounts
from ..plan.topics import ChainView, Holders, TopicSettings, TopicView

_PHASES: Final[dict[int, Literal["CREATING", "READY", "DELETING"]]] = {
    records_pb2.TOPIC_STATE_CREATING: "CREATING",
    records_pb2.TOPIC_STATE_READY: "READY",
    records_pb2.TOPIC_STATE_DELETING: "DELETING",
}


class TopicMirror:
    """All topics of a cluster, as the brokers reported them.

    Attributes:
        topics: The newest view of each topic, by name.
        is_current: A stream is open and has reported all topics. Only then a topic that is missing here does not exist.
        counts: Counts over the chains of all topics.
    """

    def __init__(self) -> None:
        self.topics: dict[str, TopicView] = {}
        self.is_current = False
        self.counts = ChainCounts()
        self._told: set[str] = set()

    def begin(self) -> None:
        """Note that a new stream begins. It first reports all topics."""
        self.is_current = False
        self._told = set()

    def end(self) -> None:
        """Note that the stream has ended, so that the topics here may be old."""
        self.is_current = False

    def take(self, response: broker_pb2.WatchTopicsResponse) -> set[str]:
        """Take an answer of the stream. Returns the names of topics that changed."""
        changed = {summary.topic.name for summary in response.changed if self._put(summary)}
        for name in response.deleted:
            self._told.discard(name)
            if self._drop(name):
                changed.add(name)
        if response.is_whole:
            for name in self.topics.keys() - self._told:  # deleted while no stream was open
                self._drop(name)
                changed.add(name)
            self.is_current = True
        return changed

    def take_created(self, record: records_pb2.TopicRecord) -> None:
        """Take a topic that was just made, before the stream reports it, so that the next plan does not make it
        again."""
        if record.name not in self.topics:
            self._put(broker_pb2.TopicSummary(topic=record))

    def _put(self, summary: broker_pb2.TopicSummary) -> bool:
        record = summary.topic
        self._told.add(record.name)
        known = self.topics.get(record.name)
        is_same = known is not None and known.incarnation == record.incarnation
        chains = dict(known.chains) if known is not None and is_same else {}
        view = TopicView(
            name=record.name,
            incarnation=record.incarnation,
            phase=_PHASES.get(record.state, "CREATING"),
            settings=_settings(record.settings),
            partition_count=len(record.partition_ids),
            chains=_merged(chains, summary.chains),
        )
        self.topics[record.name] = view
        if view == known:
            return False
        self.counts.put(record.name, view)
        return True

    def _drop(self, name: str) -> bool:
        self.counts.put(name, None)
        return self.topics.pop(name, None) is not None


def _merged(chains: dict[int, ChainView], told: Iterable[broker_pb2.ChainSummary]) -> dict[int, ChainView]:
    """The chains with what was reported. A chain with a lower chain epoch than the known one is ignored."""
    for chain in told:
        known = chains.get(chain.partition)
        if known is not None and chain.epoch < known.epoch:
            continue
        chains[chain.partition] = ChainView(
            partition=chain.partition,
            epoch=chain.epoch,
            segment=chain.segment,
            group=chain.group,
            master=chain.master,
            segment_count=chain.segment_count,
            one_copy_count=chain.one_copy_count,
            unsettled_count=chain.unsettled_count,
            lost_count=chain.lost_count,
            sealed_messages=chain.sealed_messages,
            first_offset=chain.first_offset,
            dropped_messages=chain.dropped_messages if chain.HasField("dropped_messages") else None,
            copies={_holders(copies): copies.segment_count for copies in chain.copies},
        )
    return chains


def _holders(copies: broker_pb2.ChainSummary.Copies) -> Holders:
    """Who has segments, and which disks have them in full."""
    return Holders(tuple(copies.brokers), tuple(copies.in_sync))


def _settings(settings: records_pb2.TopicSettings) -> TopicSettings:
    values = {one.name: getattr(settings, one.name) for one in fields(TopicSettings)}
    limits = delay_limits_of(settings)._asdict()
    return TopicSettings(**{**values, **limits, "attributes": dict(settings.attributes)})


def settings_message(settings: TopicSettings) -> records_pb2.TopicSettings:
    """The settings as a message for the brokers."""
    return records_pb2.TopicSettings(**asdict(settings))
