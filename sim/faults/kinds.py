"""The kinds of fault that may be drawn; each is a method `inject_<kind>` of an injector."""

from __future__ import annotations

KINDS: tuple[str, ...] = (
    "crash",
    "crash_group",
    "crash_torn",
    "freeze",
    "cut",
    "cut_one_way",
    "break",
    "slow_disk",
    "isolate",
    "coordinator_down",
    "complaint",
    "two_complaints",
    "race",
    "plan",
    "switch_away",
    "client_break",
    "lonely",
    "consumer_crash",
    "island",
    "fenced_apart",
    "prepared_restart",
    "two_servers",
    "coordinator_refuses",
    "restore",
)
"""The faults that may be drawn; each is a method `inject_<kind>` of `sim.injection.Injector`."""


RUNTIME_KINDS: tuple[str, ...] = (
    "starve",
    "disk_full",
    "compact",
    "leases_end",
    "older_copy",
    "bit_flip",
    "roll",
)
"""Those that only complete brokers can meet; methods of `sim.whole.injector.RuntimeInjector`."""


MORE_KINDS: tuple[str, ...] = (
    "producer_crash",
    "lose_group",
    "false_certificate",
    "clock_jump",
    "hung_disk",
    "full_disk",
    "older_disk",
    "contradicted",
    "held_frames",
    "started_copy",
    "recent_copy",
    "stalled_lane",
    "remake_topic",
    "remake_group",
    "grow_topic",
    "operate_group",
    "late_operation",
    "trim",
    "lose_server",
    "half_state",
    "needless_rebuild",
    "late_alone",
    "late_and_silent",
    "begun_alone",
    "freeze_master",
    "group_leaves",
    "change_mode",
)
"""Those that a world meets only if it has something more than an ordinary one (`with_something_more`)."""


DISK_KINDS: tuple[str, ...] = ("fsync_error",)
"""Those that only the storage adapter can meet; methods of `sim.whole.injector.DisksInjector`."""


SERVING_KINDS: tuple[str, ...] = (
    "slow_link",
    "cut_short",
    "slow_reads",
    "server_falls",
    "late_word",
    "told_first",
    "word_to_server",
)
"""Those that meet a server; methods of `sim.injection.servers.ServerFaults`."""


GROUP_KINDS: tuple[str, ...] = ("cordon", "drain", "activate", "older_operator", "add_group", "gated_roll")
"""Faults of an operator that changes what it wants of broker groups: methods of
`sim.whole.injector.BrokerGroupsInjector`."""
