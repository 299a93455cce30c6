"""The core's times and limits, in one frozen object."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

ADOPTED_BYTES_MIN: Final = 16 << 10
"""A smaller body is written again where it is published: to look for it costs more than to write it (measured: at 2 KiB
a quarter more processor time, at 5 KiB about the same)."""


@dataclass(frozen=True, slots=True)
class BrokerConfig:
    """Durations are microseconds of the monotonic clock; sizes are bytes.

    Attributes:
        heartbeat_us: Between heartbeats to brokers that share an open segment or a serving right.
        slow_heartbeat_us: Between heartbeats to all other linked brokers.
        silence_us: A watched broker that was silent for so long is taken for dead. Wrong costs a switch. A broker
            process takes the value from its setting `silence_ms` (500 by default, see `BrokerSettings.core_config`).
            The default here counts only for a core that is made without settings: in tests, and in the small model.
        lane_probe_us: If a peer has not received anything on a link's data lane for so long, a probe is sent there.
        lane_stall_us: One lane of a link that carried nothing for so long counts as silence of the peer, although
            another lane carries. Longer than the largest message takes (32 MiB at `switch_bytes_per_s`: 1.7 s),
            because nothing behind it arrives before it, and longer than the hang of a disk that is noticed; a lane
            that is stalled delays what is sent on it for at most this and `lane_probe_us`.
        probe_us: A master that a client finds silent is asked; without an answer in this time it is taken for dead.
        restless_us: A partition that was opened twice within this is restless: a client's complaint alone does not move
            it at once, see `patience_us`.
        patience_us: How old the open segment of a restless partition must be for a complaint to end it though its
            master answers; four times as old from the third opening on. 0: complaints are always believed.
        vain_patience_us_max: The same for a partition that clients moved around all its groups twice, and in which no
            segment since got a message: clients reach no broker. It begins with eight times `patience_us` and doubles
            with each empty segment up to this, because empty segments stay in the chain.
        disk_hang_us: A member whose disk completed no write for so long, although one waits, counts as silent. Above
            the longest pause of a disk that works (a network volume that fails over: about 1 s), because wrong costs a
            switch of every segment there; below the time that client deadlines wait.
        disk_full_grace_us: A master goes on accepting for so long while it moves a head away from a full disk. The
            reserve must hold what is written in this time.
        second_member_us: After both members of a segment went down, a length is not decided by the disk of the one that
            is back first before the other one had so long to come back and say what it knows.
        resume_us: A broken connection between two live members may be resumed within this.
        serve_lease_us: A server delivers only while every other eligible member answered a heartbeat sent less than
            this ago.
        session_poll_us: How often a group with standbys is looked at for a silent active consumer.
        session_ms_max: The longest session that a consumer may ask for.
        serve_margin_us: What a new server waits on top, for clocks that run at slightly different speeds.
        fenced_us: A fenced member that sees no newer chain for so long runs the switch itself.
        planned_switch_us: How long a planned switch may keep new batches waiting.
        fence_wait_us: How long a switch waits for more answers once it has one that will do.
        fence_timeout_us: How long a switch waits for a first answer.
        fence_turn_bytes: Switchers that ask a member for a table of so many bytes have their turns, one after another:
            two at once that carry the same table to the same members take twice as long.
        fence_turn_us: How long the others wait for theirs, at most.
        prepare_timeout_us: How long a switch waits for the members of one group.
        switch_bytes_per_s: What a fenced member or a preparing one is given time for beyond the two timeouts: bytes of
            producer table and tail a second, from one process over the link onto the other's disk.
        patience_doublings_max: Each time that a failover finds no group, it gives members twice the time, this often.
        tidy_ms: A producer table is tidied once in so much append time.
        producer_idle_ms: Of a producer without a batch for so long, only the newest batch is remembered.
        producer_expiry_ms: A producer without a batch for so long is forgotten. By append time.
        producer_evict_ms: The same while there are too many; longer than any client tries to deliver a batch.
        producer_count_max: Producers that a partition remembers. Above it a new one is refused until one can be
            forgotten.
        window_rows_at_once: So many producers of a table that a segment was opened with get their windows in one go.
        window_pause_us: Between two such goes. With both, 100,000 producers take about 0.2 s.
        window_delay_us: When the first of several goes comes: what waited for the switch is served before it.
        idle_block_rows: So many idle producers are kept as one block, and travel as one.
        block_pause_us: Between two looks at what idle blocks there are to write, to drop and to get ahead of a switch.
        block_offer_us: Between two offers of a master's idle blocks to the members of the next group.
        block_timeout_us: How long a member waits for idle blocks before it asks again.
        block_keep_us: How long after a start idle blocks stay on the disk that nothing names any more. Who named them
            is starting too, perhaps, and will offer them again.
        blocks_asked_max: Idle blocks asked for at once while a switch waits; ahead of a switch it is one.
        table_timeout_us: How long a switch waits for tables to merge before it passes the mark on.
        spelled_out_bytes_max: Bytes of a producer table that is sent without names of idle blocks, because a switch may
            have to merge it or a broker of 0.2.0 is linked; and of one that was merged. A broker of 0.2.0 takes frames
            of 32 MiB, and its form of a table is up to a third larger.
        before_tables_bytes_max: Bytes of producer tables, as they are at rest, that a partition keeps for readers
            behind segments that were unsettled; in memory they take about five times as much. Beyond it those that
            were not used for longest are forgotten, and asked for again when they are needed. One is always kept.
        table_bytes_max: Bytes of any producer table in a message, which goes in parts to brokers that take these.
        retry_us: First pause before a failed switch, settlement or copy is tried again; doubles up to `retry_us_max`.
        retry_us_max: The longest such pause.
        refused_us: First pause of a partition after the coordinator refused a write of it; doubles with each refusal in
            a row, up to `refused_us_max`.
        refused_us_max: The longest such pause.
        behind_read_us: While the coordinator lacks what this broker knows of a partition, its record is read so often.
        attempts_max: Attempts to open a segment that a switcher remembers. What it remembers it opens under the same
            id again, and tells members which of them they may forget.
        commit_idle_us: A commit that no frame carries to the other members goes alone after this.
        flapping_us: A group whose segment was taken away is passed over for so long while another will do.
        whole_chain_segments_max: A chain record of more segments is told to other members as what changed in it.
        told_segments_max: How many changed segments such an update tells of, beside the last two: about 4 KB. Who has
            missed more reads the coordinator.
        min_copies: The fewest members that a segment is opened on.
        reservation_messages: Step of the durable "may have been delivered below" of a consumer group.
        deliver_bytes: Bytes that are read for one delivery.
        copy_bytes: Bytes of one answer to a copying member.
        ack_sync_us: Acknowledgements are made durable on the other eligible members at most this late.
        append_time_ahead_ms_max: How far, in milliseconds, the append time of a partition may be ahead of the wall
            clock of the member that appends. Below it append time stands still until the clock has caught up. Above it
            the member does not believe the time before: append time goes back to the member's clock, once, and the
            event `append_time_set_back` says by how much. Two hours, so that a clock that is off by one hour (a time
            zone, summer time) sets nothing back.
        queued_appends_max: Batches that a partition holds back during a planned switch.
        adopted_bytes_min: Of a staged body: a smaller one is sent to followers, and written again, where it is
            published.
        unflushed_bytes_max: Bytes of an open segment that its master holds and that not every member is known to have
            flushed. A switch copies them in one frame, so they stay well below the largest gRPC message (32 MiB). The
            master refuses a batch above it as overloaded, with 20 ms to wait.
    """

    heartbeat_us: int = 100_000
    slow_heartbeat_us: int = 500_000
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
    tidy_ms: int = 1_000
    producer_idle_ms: int = 5 * 60_000
    producer_expiry_ms: int = 7 * 86_400_000
    producer_evict_ms: int = 3_600_000
    producer_count_max: int = 1_000_000
    window_rows_at_once: int = 2_048
    window_pause_us: int = 2_000
    window_delay_us: int = 100_000
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
    refused_us: int = 250_000
    refused_us_max: int = 10_000_000
    behind_read_us: int = 1_000_000
    attempts_max: int = 16
    commit_idle_us: int = 2_000
    flapping_us: int = 5_000_000
    whole_chain_segments_max: int = 64
    told_segments_max: int = 16
    min_copies: int = 2
    reservation_messages: int = 10_000
    deliver_bytes: int = 2048 * 1024
    copy_bytes: int = 1024 * 1024
    ack_sync_us: int = 20_000
    append_time_ahead_ms_max: int = 7_200_000
    queued_appends_max: int = 1_000
    adopted_bytes_min: int = ADOPTED_BYTES_MIN
    unflushed_bytes_max: int = 8 << 20

    def __post_init__(self) -> None:
        assert self.min_copies >= 2, "the promise needs two copies"
        assert self.switch_bytes_per_s > 0
        assert 0 < self.spelled_out_bytes_max <= self.table_bytes_max
        assert 0 < self.tidy_ms <= self.producer_idle_ms <= self.producer_evict_ms <= self.producer_expiry_ms
        assert self.window_rows_at_once > 0
        assert self.producer_count_max > self.idle_block_rows > 0
        assert self.heartbeat_us < self.serve_lease_us, "a lease outlives a heartbeat"

    def transfer_us(self, size_bytes: int) -> int:
        """How long a switch allows for so many bytes to reach a member and its disk."""
        return 1_000_000 * size_bytes // self.switch_bytes_per_s
