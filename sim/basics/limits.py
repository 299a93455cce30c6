"""The limits and times of the brokers of a world: shorter than in production, so that all of them are reached."""

from __future__ import annotations

import random
from dataclasses import fields, replace
from typing import Any

from seriatim_broker.core.values.config import BrokerConfig
from seriatim_broker.core.values.keyed import Exhausted, RetryPolicy

from ..faults import Options

WHOLE_CHAIN_SEGMENTS = (1, 1, 2, 64)
"""Of how many segments a record is reported in full, drawn for each world: with few, the changes of short chains are
reported."""

SIM_CONFIG = BrokerConfig(
    keys_at_once=2,
    adopted_bytes_min=0,
    heartbeat_us=100_000,
    slow_heartbeat_us=400_000,
    slow_silence_us=1_600_000,
    silence_us=250_000,
    lane_probe_us=200_000,
    lane_stall_us=1_500_000,  # longer than `slow_link` makes a link
    disk_hang_us=400_000,
    disk_full_grace_us=1_000_000,
    restless_us=500_000,
    patience_us=40_000,
    vain_patience_us_max=300_000,
    resume_us=120_000,
    serve_lease_us=160_000,
    serve_margin_us=15_000,
    fenced_us=150_000,
    planned_switch_us=80_000,
    fence_wait_us=10_000,
    fence_timeout_us=100_000,
    prepare_timeout_us=100_000,
    table_timeout_us=80_000,
    retry_us=30_000,
    retry_us_max=300_000,
    refused_us=30_000,
    refused_us_max=200_000,
    commit_idle_us=5_000,
    flapping_us=600_000,
    deliver_bytes=600,
    ack_replication_us=15_000,
    append_time_ahead_ms_max=2_000,
    spread_calm_us=80_000,
    spread_return_us=150_000,
    spread_yield_us=120_000,
    spread_retry_us=100_000,
    spread_retry_us_max=400_000,
)

IDLE_LIMITS: dict[str, Any] = {
    "producer_protect_us": 600_000,
    "idle_block_rows": 2,
    "before_tables_bytes_max": 500,
}
"""In worlds in which producers are forgotten: few are remembered, each for longer than it tries to deliver a batch."""


ASKED_LIMITS: dict[str, Any] = {"silence_us": 500_000, "probe_us": 60_000}
"""In worlds in which producers ask about silent masters: brokers ask the master and switch before its slave finds it
silent itself, as between real processes."""

KEYED_RETRY = RetryPolicy(delays_ms=(20, 400), grant_ms=1_000)

FORWARDED_RETRY = replace(KEYED_RETRY, exhausted=Exhausted.DEAD_LETTER, dead_letter_topic="dead")
"""A message goes to the dead-letter topic when the application says so."""

KEYED_LIMITS: dict[str, Any] = {
    "live_messages_max": 12,
    "window_indexes_max": 30,
    "aside_messages_max": 20,
    "waiting_keys_max": 5,
}
"""The limits of worlds in which they are reached all the time."""


DELAYED_LIMITS: dict[str, Any] = {**KEYED_LIMITS, "aside_messages_max": 1_000}
"""The limits of worlds in which one key waits all the time: its list has room for all its messages."""


def draw_limits(options: Options, updates: random.Random) -> BrokerConfig:
    """The limits of a world with these options. `updates` is a chance of its own."""
    config = replace(
        SIM_CONFIG,
        reservation_messages=options.reservation_messages,
        whole_chain_segments_max=updates.choice(WHOLE_CHAIN_SEGMENTS),
        copy_bytes=options.copy_bytes,
        second_member_us=options.second_member_us,
        told_segments_max=updates.choice((0, 1, 2, 16)),
    )
    if options.producers_max:
        config = replace(config, **IDLE_LIMITS, producers_max=options.producers_max)
    if options.keyed_consumers or options.mode_consumers:
        config = replace(config, retry=KEYED_RETRY)
    if options.keyed_limits:
        config = replace(config, **(DELAYED_LIMITS if options.keyed_delayed else KEYED_LIMITS))
    if options.frame_bytes:
        config = replace(config, deliver_bytes=options.frame_bytes, term_tokens_max=30)
    if options.keyed_attempts:
        parking = replace(KEYED_RETRY, attempts_max=options.keyed_attempts, exhausted=Exhausted.PARK_KEY)
        config = replace(config, retry=parking)
    if options.dead_letters:
        config = replace(config, retry=FORWARDED_RETRY)
    if options.suspicious_us:
        config = replace(config, **ASKED_LIMITS)
    if options.part_bytes:
        config = replace(config, fence_turn_bytes=options.part_bytes, fence_turn_us=40_000)
    return over_distances(config) if options.far_us_max else config


def over_distances(config: BrokerConfig) -> BrokerConfig:
    """The same limits, and all times as in production: those of other worlds are shorter than a long round trip."""
    production = BrokerConfig()
    times = {one.name: getattr(production, one.name) for one in fields(production) if "_us" in one.name}
    return replace(config, **times)
