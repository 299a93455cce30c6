"""The end of a run: what is left to settle, to copy and to read, and how time passes until then."""

from __future__ import annotations

from seriatim_api.ids import MemberId, PartitionId
from seriatim_broker.core.values.chain import Chain
from seriatim_broker.core.values.segment import SegmentState
from seriatim_broker.testing.simulated_bodies import key_of

from ..basics.interfaces import Cluster
from ..basics.schedule import Violation
from ..basics.setting import Setting
from ..judge import Judge
from ..people.operations import People
from ..programs.delayed import Delayed
from ..programs.keyed_consumers import DELAYED_KEY
from ..programs.population import Population
from ..publishing.environment import Publishing
from .copies import Copies


class Draining:
    """Looks whether everything has come to its end, and says what has not."""

    def __init__(
        self,
        setting: Setting,
        cluster: Cluster,
        judge: Judge,
        copies: Copies,
        population: Population,
        people: People,
        publishing: Publishing,
        delayed: Delayed,
    ) -> None:
        self._setting = setting
        self._cluster = cluster
        self._judge = judge
        self._copies = copies
        self._population = population
        self._people = people
        self._publishing = publishing
        self._delayed = delayed
        self._sent_behind: set[tuple[PartitionId, int]] = set()  # open segments after gaps that got a message

    def run_until(self, until_us: int) -> None:
        """Let time pass. A violation, if there are too many events."""
        count_max = self._cluster.event_count_max
        if not self._setting.schedule.run_until(until_us, count_max):
            raise Violation("I13", f"{count_max} events: something turns in circles; {self.stuck()}")

    def flows(self) -> bool:
        """Whether every producer is done, and every group was given everything."""
        if not self._is_done():
            return False
        for partition in self._setting.partitions:
            chain = self._copies.chain(partition)
            if any(segment.state is SegmentState.UNSETTLED for segment in chain.segments):
                return False
            length = self._copies.open_length(chain)
            if any(self._lacks(group, partition, chain, length) for group in self._population.groups):
                return False
        return True

    def _is_done(self) -> bool:
        """Whether producers and administrators are done, and the coordinator lacks nothing."""
        if self._judge.seen.waits_for_rebuild or self._people.is_busy:
            return False
        return all(producer.is_done for producer in self._population.producers)

    def _lacks(self, group: str, partition: PartitionId, chain: Chain, open_length: int) -> bool:
        """Whether a group has not been given everything."""
        seen = len(self._judge.view(group, partition).firsts)
        return seen < self._judge.wanted(group, chain, open_length)

    def _keyed_lack(self, partition: PartitionId, chain: Chain, open_length: int) -> dict[str, list[int]]:
        """The messages that groups in which order is by key have not finished, by group."""
        order = self._judge.replay(chain, open_length) if self._population.keyed_groups else []
        if self._setting.options.keyed_delayed:
            order = [place for place in order if key_of(place[1]) != DELAYED_KEY]
        lacking = {
            group: self._judge.rules.keyed.lacks(group, partition, order) for group in self._population.keyed_groups
        }
        return {group: messages for group, messages in lacking.items() if messages}

    def _pending(self, chain: Chain, open_length: int) -> list[int]:
        """The delayed messages that are neither fired nor cancelled."""
        if not self._setting.options.delayed_share:
            return []
        rules = self._judge.rules
        order = self._judge.replay(chain, open_length)
        return rules.delayed.pending(chain.partition, rules.order.delayed(chain, open_length), order)

    def check_pending(self) -> None:
        """The run should be drained: what is acknowledged and pending would never be visible."""
        for partition in self._setting.partitions:
            chain = self._copies.chain(partition)
            if not any(segment.state is SegmentState.UNSETTLED for segment in chain.segments):
                self._judge.rules.delayed.never_fired(self._pending(chain, self._copies.open_length(chain)))

    def is_only_eligible(self, member: MemberId) -> bool:
        """Whether no other member may serve some segment: then only the certified end of its run helps."""
        return any(
            segment.eligible == (member,) and segment.state is not SegmentState.LOST
            for partition in self._setting.partitions
            for segment in self._copies.chain(partition).segments
        )

    def is_drained(self) -> bool:
        """Whether all is settled, copied and read."""
        if self._cluster.is_busy or not self._is_done() or not self._publishing.is_done or not self._delayed.is_done:
            return False
        for partition in self._setting.partitions:
            chain = self._copies.chain(partition)
            if any(segment.state is SegmentState.UNSETTLED for segment in chain.segments):
                return False
            if not self._copies.open_segment_is_quiet(chain):
                return False
            length = self._copies.open_length(chain)
            if any(self._lacks(group, partition, chain, length) for group in self._population.readers):
                return False
            if self._keyed_lack(partition, chain, length):
                return False
            if self._population.mode_lacks(partition, chain, length) or self._pending(chain, length):
                return False
            if not self._copies.has_all_copies(chain) or self._judge.untold(
                partition, [*self._population.readers, *self._population.keyed_groups]
            ):
                return False
        return self._copies.is_agreed() and not self._cluster.missing()

    def stuck(self) -> str:
        """The reasons why the run is not drained yet."""
        parts = [f"{producer.name} waits" for producer in self._population.producers if not producer.is_done]
        parts += ["an operation on a group is not done"] if self._people.is_busy else []
        parts += [] if self._publishing.is_done else [self._publishing.stuck]
        parts += [] if self._delayed.is_done else ["cancellations have no answer"]
        parts += [] if self._copies.is_agreed() else ["a disk that the chain contradicts has not read the record"]
        for partition in self._setting.partitions:
            chain = self._copies.chain(partition)
            if any(segment.state is SegmentState.UNSETTLED for segment in chain.segments):
                parts.append(f"partition {partition} is unsettled")
                continue
            if not self._copies.open_segment_is_quiet(chain):
                parts.append(f"the open segment of partition {partition} is not quiet")
            for group in self._population.readers:
                seen = len(self._judge.view(group, partition).firsts)
                wanted = self._judge.wanted(group, chain, self._copies.open_length(chain))
                if seen < wanted:
                    parts.append(f"{group} has {seen} of {wanted} in partition {partition}")
            lack_too = self._population.mode_lacks(partition, chain, self._copies.open_length(chain))
            if lack_too:
                parts.append(f"the shared group lacks {len(lack_too)} in partition {partition}: {lack_too[:5]}")
            pending = self._pending(chain, self._copies.open_length(chain))
            if pending:
                parts.append(f"{len(pending)} delayed messages wait in partition {partition}: {pending[:5]}")
            for group, lack in self._keyed_lack(partition, chain, self._copies.open_length(chain)).items():
                parts.append(f"{group} lacks {len(lack)} in partition {partition}: {lack[:5]}")
            if not self._copies.has_all_copies(chain):
                parts.append(f"partition {partition} has not all copies of everything")
            for group, no in self._judge.untold(partition, [*self._population.readers, *self._population.keyed_groups]):
                parts.append(f"{group} was not told that segment {no} of partition {partition} is lost")
        return "; ".join([*parts, *self._cluster.missing()])

    def send_behind_gaps(self) -> None:
        """A group with state of keys is notified of a lost segment by the server of the next one that has messages."""
        for partition in self._setting.partitions:
            opened = (partition, self._copies.chain(partition).open_segment.no)
            is_empty = self._copies.open_length(self._copies.chain(partition)) == 0
            if (
                is_empty
                and opened not in self._sent_behind
                and self._judge.untold(partition, self._population.keyed_groups)
            ):
                self._sent_behind.add(opened)
                self._population.start_producers(1, (partition,))
