"""The core's times and limits, in one frozen object."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class BrokerConfig:
    """Durations are microseconds of the monotonic clock; sizes are bytes.

    Attributes:
        heartbeat_us: Between heartbeats to brokers that share an open segment or a serving right.
        slow_heartbeat_us: Between heartbeats to all other linked brokers.
        silence_us: A watched broker that was silent for so long is taken for dead. Wrong costs a switch.
        probe_us: A master that a client finds silent is asked; without an answer in this time it is taken for dead.
        restless_us: A partition that was opened twice within this is restless: a client's complaint alone does not move
            it at once, see `patience_us`.
        patience_us: How old the open segment of a restless partition must be for a complaint to end it though its
            master answers; four times as old from the third opening on. 0: complaints are always believed.
        resume_us: A broken connection between two live members may be resumed within this.
        serve_lease_us: A server delivers only while every other eligible member answered a heartbeat sent less than
            this ago.
        serve_margin_us: What a new server waits on top, for clocks that run at slightly different speeds.
        fenced_us: A fenced member that sees no newer chain for so long runs the switch itself.
        planned_switch_us: How long a planned switch may keep new batches waiting.
        fence_wait_us: How long a switch waits for more answers once it has one that will do.
        fence_timeout_us: How long a switch waits for a first answer.
        prepare_timeout_us: How long a switch waits for the members of one group.
        table_timeout_us: How long a switch waits for tables to merge before it passes the mark on.
        retry_us: First pause before a failed switch, settlement or copy is tried again; doubles up to `retry_us_max`.
        retry_us_max: The longest such pause.
        commit_idle_us: A commit that no frame carries to the other members goes alone after this.
        flapping_us: A group whose segment was taken away is passed over for so long while another will do.
        min_copies: The fewest members that a segment is opened on.
        reservation_messages: Step of the durable "may have been delivered below" of a consumer group.
        deliver_bytes: Bytes that are read for one delivery.
        copy_bytes: Bytes of one answer to a copying member.
        ack_sync_us: Acknowledgements are made durable on the other eligible members at most this late.
        queued_appends_max: Batches that a partition holds back during a planned switch.
    """

    heartbeat_us: int = 100_000
    slow_heartbeat_us: int = 500_000
    silence_us: int = 600_000
    probe_us: int = 150_000
    restless_us: int = 10_000_000
    patience_us: int = 1_000_000
    resume_us: int = 200_000
    serve_lease_us: int = 300_000
    serve_margin_us: int = 30_000
    fenced_us: int = 200_000
    planned_switch_us: int = 200_000
    fence_wait_us: int = 20_000
    fence_timeout_us: int = 300_000
    prepare_timeout_us: int = 250_000
    table_timeout_us: int = 150_000
    retry_us: int = 50_000
    retry_us_max: int = 1_000_000
    commit_idle_us: int = 2_000
    flapping_us: int = 5_000_000
    min_copies: int = 2
    reservation_messages: int = 10_000
    deliver_bytes: int = 512 * 1024
    copy_bytes: int = 1024 * 1024
    ack_sync_us: int = 20_000
    queued_appends_max: int = 1_000

    def __post_init__(self) -> None:
        assert self.min_copies >= 2, "the promise needs two copies"
        assert self.heartbeat_us < self.serve_lease_us, "a lease outlives a heartbeat"
