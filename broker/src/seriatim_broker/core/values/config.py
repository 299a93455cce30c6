"""The core's times and limits, in one frozen object."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from .keyed import RETRY_DEFAULT, RetryPolicy
from .segment import PRODUCERS_DEFAULT, PRODUCERS_MAX

ADOPTED_BYTES_MIN: Final = 16 << 10
"""Bytes of a staged body. A smaller one is written again when it is published, because to look for it costs more than
to write it (measured: at 2 KiB a quarter more processor time, at 5 KiB about the same)."""


@dataclass(frozen=True, slots=True)
class BrokerConfig:
    """The core's times and limits. `_us` are microseconds of the monotonic clock, `_ms` milliseconds, sizes are bytes.

    Attributes:
        heartbeat_us: Between heartbeats to brokers that share an open segment or a serving right.
        slow_heartbeat_us: Between heartbeats to all other linked brokers.
        slow_silence_us: A linked broker that is not watched, and was silent for this long, is taken for dead. If
            `silence_us` is longer, that counts.
        silence_us: A watched broker that was silent for this long is taken for dead. Wrong costs a switch. A broker
            process takes the value from its setting `silence_ms` (500 by default, see `BrokerSettings.core_config`).
            The default here counts only for a core that is made without settings: in tests, and in the small model.
        lane_probe_us: If a peer has not received anything on a link's data lane for this long, a probe is sent there.
            For a peer that is not watched it is `lane_stall_us`.
        lane_stall_us: One lane of a link (control with its heartbeats, or data) that carried nothing for this long
            counts as silence of the peer, although the other lane carries. Longer than the largest message takes (32
            MiB at `switch_bytes_per_s`: 1.7 s), because nothing after it arrives before it. Longer than the hang of a
            disk that is noticed. A lane that is stalled delays what is sent on it for at most this and `lane_probe_us`.
        probe_us: A master that a client finds silent is asked; without an answer in this time it is taken for dead.
        restless_us: A partition that was opened twice within this is restless: a client's complaint alone does not move
            it at once, see `patience_us`.
        patience_us: How old the open segment of a restless partition must be for a complaint to end it though its
            master answers; four times as old from the third opening on. 0: complaints are always believed.
        vain_patience_us_max: The same for a partition that clients moved around all its groups twice, and in which no
            segment since got a message: clients reach no broker. It begins with eight times `patience_us` and doubles
            with each empty segment up to this, because each of them takes a number of the chain for ever.
        disk_hang_us: A member whose disk completed no write for this long, although one waits, counts as silent. Above
            the longest pause of a disk that works (a network volume that fails over: about 1 s), because wrong costs a
            switch of every segment there; below the time that client deadlines wait.
        disk_full_grace_us: A master keeps accepting for this long while it moves an open segment away from a full disk.
            The reserve must hold what is written in this time.
        second_member_us: After both members of a segment went down, a length is not decided by the disk of the one that
            is back first before the other one had this long to come back and say what it knows.
        resume_us: A broken connection between two live members may be resumed within this.
        serve_lease_us: A server delivers only while every other eligible member answered a heartbeat sent less than
            this ago.
        session_poll_us: How often a group with standbys is looked at for a silent active consumer.
        session_ms_max: The longest session that a consumer may ask for.
        dropped_work_us: A consumer group stays in a segment whose end retention has dropped for this long, if its
            active consumer was sent messages from there and acknowledges none.
        spread_calm_us: Partitions are spread again this long after the last change of an exclusive group's consumers.
        spread_return_us: How long a new server waits for the consumer that was active, if all others were standbys.
        spread_yield_us: How long the active consumer may take to yield a partition. Then it continues with it.
        spread_retry_us: After that, it is asked again after this time; each further time after twice as long,
        spread_retry_us_max: and after this at most.
        serve_margin_us: What a new server waits on top, for clocks that run at slightly different speeds.
        fenced_us: A fenced member that sees no newer chain for this long runs the switch itself.
        planned_switch_us: How long a planned switch may keep new batches waiting.
        fence_wait_us: How long a switch waits for more answers once it has one that will do.
        fence_timeout_us: How long a switch waits for a first answer.
        fence_turn_bytes: From this size of a table on, a member answers one switcher after another, because two
            switchers that carry the same table to the same members at once take twice as long.
        fence_turn_us: The longest time for which a switcher waits for its turn.
        prepare_timeout_us: How long a switch waits for the members of one broker group.
        switch_bytes_per_s: How many bytes of producer table and tail a second a switch allows for, from one process
            over the link to the other one's disk, in addition to the two timeouts.
        patience_doublings_max: How often a failover doubles the time of the members, once for each time that it finds
            no broker group.
        producers_max: How many producers a segment remembers that this broker opens. It is written into the segment's
            record.
        producer_protect_us: A new producer is refused if it would push out one that was heard within this time, by the
            monotonic clock of the master. Not less than the longest delivery timeout of a client.
        producers_bytes_max: The memory of all producer tables of open segments, above which this broker admits no new
            producer.
        idle_block_rows: How many idle producers are one block.
        block_pause_us: Time between two checks for idle blocks to write, to drop, or to get before a switch.
        block_offer_us: Time between two offers of a master's idle blocks to the members of the next broker group.
        block_timeout_us: How long a member waits for idle blocks before it asks again.
        block_keep_us: How long after a start idle blocks stay on the disk although nothing names them. The master that
            named them may be starting too, and will offer them again.
        blocks_asked_max: How many idle blocks a member asks for at once while a switch waits; before a switch it is
            one.
        table_timeout_us: How long a switch waits for tables to merge; after that the next table stays incomplete.
        spelled_out_bytes_max: The largest producer table that is sent without names of idle blocks, because a switch
            may have to merge it; and the largest merged one.
        before_tables_bytes_max: Bytes of producer tables at rest that a partition keeps for readers after segments
            that were unsettled; in memory they take about five times as much. Above it, the tables that were not used
            for longest are forgotten, and asked for again when they are needed. One is always kept.
        table_bytes_max: The largest producer table in any message. It goes in parts.
        retry_us: The first pause before a failed switch, settlement or copy is tried again; it doubles up to
            `retry_us_max`.
        retry_us_max: The longest such pause.
        amend_pause_us: The shortest time between two transactions of this broker that change sealed segments of one
            partition, so that switches of other brokers come between. After a conflict it is `retry_us`, and doubles.
        amend_spread_us: Up to so much more, drawn each time, so that brokers do not keep in step.
        refused_us: The first pause of a partition after the coordinator refused a write of it; it doubles with each
            refusal in a row, up to `refused_us_max`.
        refused_us_max: The longest such pause.
        behind_read_us: How often the record of a partition is read while the coordinator lacks decisions about it.
        switch_attempts_max: How many switch attempts of a partition a switcher remembers. It uses the same id for the
            same content again, and tells members which attempts they may forget.
        commit_idle_us: A commit goes to the slaves alone if no frame carries it within this time, and a slave serves
            from it.
        commit_late_us: The same if no slave does. A stage partition's slave looks for a batch for 20 ms, so it counts
            as serving.
        flapping_us: A broker group that lost its segment is passed over for this time while another one can take it.
        whole_chain_segments_max: Of a longer chain record, other members are sent only the changes.
        told_segments_max: How many changed segments such an update has, in addition to the last two: about 4 KB. A
            member that has missed more reads the coordinator.
        min_copies: The fewest members on which a segment is opened.
        reservation_messages: How many messages one reservation of a consumer group covers.
        deliver_bytes: Bytes that are read for one delivery.
        grant_poll_us: How often grants are checked for deadlines that have passed.
        retry: The retry policy of consumer groups that a consumer makes by joining.
        live_messages_max: How many messages of a consumer group, in which order is by key, wait in memory on one
            partition.
        window_indexes_max: How far such a consumer group reads ahead of the first message that is not passed.
        aside_messages_max: How many offsets the lists of its keys have together.
        waiting_keys_max: How many of its keys may be delayed, or have lists, before reading stops.
        waiting_bytes_max: About how many bytes the rows of these keys may take, before reading stops. A full state and
            a handoff have all of them. Names of 40 bytes reach `waiting_keys_max` first, names of 1,000 bytes this.
        forwarding_bytes_max: Bytes of messages on their way to dead-letter topics that are in memory, over all consumer
            groups. Above it, no more are read until others are stored.
        term_tokens_max: When this many tokens were given in a term, the server takes the next one. A term has 2^32
            tokens or more. Those that are left last for hours if the coordinator is silent.
        handed_grants_max: Maximum number of grants under way with which a consumer group still crosses.
        keys_at_once: How many records of keys are read or changed in one step, so that none stops the broker for long.
        copy_bytes: Bytes of one answer to a member that copies.
        ack_replication_us: The longest delay before acknowledgements are made durable on the other eligible members.
        append_time_ahead_ms_max: How far the append time of a partition may be ahead of the wall clock of the member
            that appends. Up to this, append time stands still until the clock has caught up. Above it, the member does
            not believe it: append time goes back to the member's clock, once, and the event `append_time_set_back`
            says by how much. It is two hours, so a clock that is wrong by one hour (a time zone, summer time) sets
            nothing back.
        queued_appends_max: How many batches a partition holds back during a planned switch.
        adopted_bytes_min: A smaller staged body is sent to followers, and written again, when it is published.
        unflushed_bytes_max: How many bytes of an open segment may be unflushed on some member, as far as the master
            knows. A switch copies them. Above it the master refuses a batch as overloaded, and asks the producer to
            wait 20 ms. A producer far away has 16 batches of up to 1 MiB on their way.
    """

    heartbeat_us: int = 100_000
    slow_heartbeat_us: int = 1_000_000
    slow_silence_us: int = 2_500_000
    silence_us: int = 600_000
    lane_probe_us: int = 500_000
    lane_stall_us: int = 3_000_000
    probe_us: int = 150_000
    restless_us: int = 10_000_000
    patience_us: int = 1_000_000
    vain_patience_us_max: int = 300_000_000
    disk_hang_us: int = 2_000_000
    disk_full_grace_us: int = 5_000_000
    second_member_us: int = 3_000_000
    resume_us: int = 200_000
    serve_lease_us: int = 300_000
    session_poll_us: int = 1_000_000
    session_ms_max: int = 600_000
    dropped_work_us: int = 600_000_000
    spread_calm_us: int = 1_000_000
    spread_return_us: int = 1_000_000
    spread_yield_us: int = 10_000_000
    spread_retry_us: int = 10_000_000
    spread_retry_us_max: int = 600_000_000
    serve_margin_us: int = 30_000
    fenced_us: int = 200_000
    planned_switch_us: int = 200_000
    fence_wait_us: int = 20_000
    fence_timeout_us: int = 300_000
    fence_turn_bytes: int = 1 << 20
    fence_turn_us: int = 150_000
    prepare_timeout_us: int = 250_000
    switch_bytes_per_s: int = 20_000_000
    patience_doublings_max: int = 5
    producers_max: int = PRODUCERS_DEFAULT
    producer_protect_us: int = 600_000_000
    producers_bytes_max: int = 512 << 20
    idle_block_rows: int = 4_096
    block_pause_us: int = 50_000
    block_offer_us: int = 5_000_000
    block_timeout_us: int = 500_000
    block_keep_us: int = 600_000_000
    blocks_asked_max: int = 16
    table_timeout_us: int = 150_000
    spelled_out_bytes_max: int = 24 << 20
    before_tables_bytes_max: int = 32 << 20
    table_bytes_max: int = 192 << 20
    retry_us: int = 50_000
    retry_us_max: int = 1_000_000
    amend_pause_us: int = 20_000
    amend_spread_us: int = 30_000
    refused_us: int = 250_000
    refused_us_max: int = 10_000_000
    behind_read_us: int = 1_000_000
    switch_attempts_max: int = 16
    commit_idle_us: int = 2_000
    commit_late_us: int = 50_000
    flapping_us: int = 5_000_000
    whole_chain_segments_max: int = 64
    told_segments_max: int = 16
    min_copies: int = 2
    reservation_messages: int = 10_000
    deliver_bytes: int = 2048 * 1024
    grant_poll_us: int = 250_000
    retry: RetryPolicy = RETRY_DEFAULT
    live_messages_max: int = 100_000
    window_indexes_max: int = 1_000_000
    aside_messages_max: int = 1_000_000
    waiting_keys_max: int = 100_000
    waiting_bytes_max: int = 64 << 20
    forwarding_bytes_max: int = 64 << 20
    term_tokens_max: int = 1 << 31
    handed_grants_max: int = 10_000
    keys_at_once: int = 2_000
    copy_bytes: int = 1024 * 1024
    ack_replication_us: int = 20_000
    append_time_ahead_ms_max: int = 7_200_000
    queued_appends_max: int = 1_000
    adopted_bytes_min: int = ADOPTED_BYTES_MIN
    unflushed_bytes_max: int = 18 << 20

    def __post_init__(self) -> None:
        assert self.min_copies >= 2, "the promise needs two copies"
        assert self.switch_bytes_per_s > 0
        assert 0 < self.spelled_out_bytes_max <= self.table_bytes_max
        assert 0 < self.producers_max <= PRODUCERS_MAX
        assert self.idle_block_rows > 0
        assert self.commit_idle_us <= self.commit_late_us
        assert 2 * self.slow_heartbeat_us <= self.slow_silence_us
        assert self.heartbeat_us < self.serve_lease_us, "a lease outlives a heartbeat"

    def transfer_us(self, size_bytes: int) -> int:
        """The time in microseconds that a switch allows for this many bytes to reach a member and its disk."""
        return 1_000_000 * size_bytes // self.switch_bytes_per_s
