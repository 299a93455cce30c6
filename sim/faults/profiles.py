"""Each kind of mix by its name, and the draw of one for a seed.

A world in which everything fails all the time would reach few deep states, because faults interrupt it before. So each
seed draws its own mix.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, replace

from seriatim_broker.core.values.config import BrokerConfig

from . import chains, crossings, dead_letters, delayed, disks, keyed, links, ordinary, producers, retention, servers
from .kinds import RUNTIME_KINDS
from .options import Options


@dataclass(frozen=True)
class Only:
    """Something that not every kind of world simulates.

    Attributes:
        what: The words after "is about".
        worlds: The kinds of worlds that simulate it, the usual one first.
    """

    what: str
    worlds: tuple[str, ...]


@dataclass(frozen=True)
class Profile:
    """A kind of mix.

    Attributes:
        draw: Draws the options.
        weight: How often it is drawn.
        only: What it is about, if some kinds of worlds do not simulate that; there it would test something else.
        draw_whole: Draws the options for complete brokers, if those for bare cores would not do.
    """

    draw: Callable[[random.Random, Options], Options]
    weight: int
    only: Only | None = None
    draw_whole: Callable[[random.Random, Options], Options] | None = None

    def drawer(self, *, is_whole: bool) -> Callable[[random.Random, Options], Options]:
        """What draws the options for a world of complete brokers, or of bare cores."""
        return self.draw_whole if is_whole and self.draw_whole is not None else self.draw


WHOLE = ("brokers", "disks", "groups")
LATE_CURSORS = Only("writes of cursors that are carried out late", ("cores",))
LONG_PAST = Only("chains that begin with thousands of segments", ("cores",))
PARTS = Only("messages that travel in parts", ("cores",))
PUBLISHING = Only("publications", ("cores",))
MODES = Only("at-most-once groups, which an administrator makes", ("cores",))
YIELDS = Only("consumers over which partitions are spread", ("cores",))
LETTERS = Only("dead letters that go to another partition", ("cores",))
DELAYED = Only("delayed messages", ("cores",))
GROWTH = Only("open segments that get more members", ("cores",))
HALVES = Only("a member that joins again and gets half of a state", ("cores",))
REBUILDS = Only("rebuilds that are not needed", ("cores",))
BEGUN = Only("a server that ends before another member knows that it has begun", ("cores",))
PAGES = Only("chain records with pages", WHOLE)
SPREAD = Only("a controller that spreads open segments", WHOLE)
RECORD_LOST = Only("a coordinator that goes back when one broker alone knows what it wrote", WHOLE)
REVISIONS = Only("a coordinator that uses revisions again", WHOLE)
DAMAGED = Only("damage on disks", WHOLE)
DIRECTORIES = Only("copies of directories, and what the coordinator knows of them", WHOLE)
MADE_AGAIN = Only("topics and consumer groups that are deleted and made again", WHOLE)
DROPPED = Only("the brokers' own duty of retention", WHOLE)
GROWING = Only("topics that grow", WHOLE)
FLUSH_FAILS = Only("flushes that fail", ("disks",))
DISTANCES = Only("links that have a latency of their own", ("cores",))
OPERATORS = Only("an operator that changes broker groups", ("groups",))

PROFILES: dict[str, Profile] = {
    "anything": Profile(ordinary.as_it_is, 5),
    "groups-die": Profile(ordinary.groups_die, 2),
    "switchers-race": Profile(ordinary.switchers_race, 2),
    "restarts": Profile(ordinary.restarts, 2),
    "lost-disks": Profile(ordinary.disks_are_lost, 1),
    "islands": Profile(ordinary.islands, 0),
    "impatient": Profile(producers.impatient, 0),
    "suspects": Profile(producers.suspects, 0),
    "suspects-restart": Profile(producers.suspects_restart, 0),
    "frozen-masters": Profile(producers.frozen_masters, 0),
    "nothing-fails": Profile(chains.nothing_fails, 0),
    "mixed-levels": Profile(producers.mixed_levels, 0),
    "gaps": Profile(chains.gaps, 0),
    "long-chains": Profile(chains.long_chains, 0, PAGES),
    "thousands": Profile(chains.thousands, 0, LONG_PAST),
    "ranges": Profile(servers.ranges, 0),
    "ranges-left-behind": Profile(servers.groups_left_behind, 0),
    "chatty": Profile(chains.chatty, 0),
    "torn-and-chatty": Profile(chains.torn_and_chatty, 0),
    "producers-crash": Profile(producers.weak_levels, 0),
    "three-members": Profile(ordinary.three_members, 0),
    "growth": Profile(ordinary.growth, 0, GROWTH),
    "idle-producers": Profile(producers.idle_producers, 0),
    "idle-clocks": Profile(producers.idle_clocks, 0),
    "tables-in-parts": Profile(links.parts, 0, PARTS),
    "failing-disks": Profile(disks.failing_disks, 0, FLUSH_FAILS),
    "damage": Profile(disks.damage, 0, DAMAGED),
    "hung-disks": Profile(disks.hung_disks, 0),
    "full-disks": Profile(disks.full_disks, 0),
    "older-disks": Profile(disks.older_disks, 0),
    "contradicted": Profile(disks.contradicted, 0),
    "recent-copies": Profile(disks.recent_copies, 0, DIRECTORIES),
    "started-copies": Profile(disks.started_copies, 0, DIRECTORIES),
    "topics-again": Profile(retention.topics_again, 0, MADE_AGAIN),
    "groups-again": Profile(retention.groups_again, 0, MADE_AGAIN),
    "topics-grow": Profile(retention.topics_grow, 0, GROWING),
    "publications": Profile(producers.publications, 0, PUBLISHING),
    "late-publications": Profile(producers.late_publications, 0, PUBLISHING),
    "many-writers": Profile(producers.many_writers, 0, PUBLISHING),
    "lost-publications": Profile(producers.lost_publications, 0, PUBLISHING),
    "unflushed-publications": Profile(producers.unflushed_publications, 0, PUBLISHING),
    "group-operations": Profile(retention.group_operations, 0),
    "late-operations": Profile(retention.late_operations, 0, LATE_CURSORS),
    "keyed": Profile(keyed.keyed, 0),
    "modes": Profile(keyed.modes, 0, MODES),
    "modes-blind": Profile(keyed.modes_blind, 0, MODES),
    "yields": Profile(keyed.yields, 0, YIELDS),
    "keyed-parked": Profile(keyed.keyed_parked, 0),
    "keyed-rests": Profile(keyed.keyed_rests, 0),
    "dead-letters": Profile(dead_letters.dead_letters, 0, LETTERS),
    "letters-lost": Profile(dead_letters.letters_lost, 0, LETTERS),
    "letters-restored": Profile(dead_letters.letters_restored, 0, LETTERS),
    "delayed": Profile(delayed.delayed, 0, DELAYED),
    "delayed-retention": Profile(delayed.delayed_retention, 0, DELAYED),
    "delayed-blind": Profile(delayed.delayed_blind, 0, DELAYED),
    "delayed-three": Profile(delayed.delayed_three, 0, DELAYED),
    "keyed-moved": Profile(keyed.keyed_moved, 0),
    "keyed-dropped": Profile(keyed.keyed_dropped, 0),
    "keyed-gone": Profile(keyed.keyed_gone, 0),
    "keyed-waits": Profile(keyed.keyed_waits, 0),
    "keyed-lost": Profile(keyed.keyed_lost, 0),
    "keyed-full": Profile(keyed.keyed_full, 0),
    "keyed-delayed": Profile(keyed.keyed_delayed, 0),
    "keyed-frames": Profile(keyed.keyed_frames, 0),
    "keyed-halves": Profile(keyed.keyed_halves, 0, HALVES),
    "keyed-slow": Profile(keyed.keyed_slow, 0),
    "keyed-late": Profile(keyed.keyed_late, 0, REBUILDS),
    "keyed-left": Profile(keyed.keyed_left, 0, LATE_CURSORS),
    "keyed-silent": Profile(keyed.keyed_silent, 0, LATE_CURSORS),
    "keyed-begins": Profile(keyed.keyed_begins, 0, BEGUN),
    "keyed-words": Profile(keyed.keyed_words, 0),
    "keyed-further": Profile(keyed.keyed_further, 0),
    "keyed-restored": Profile(keyed.keyed_restored, 0),
    "dropped-restored": Profile(keyed.dropped_restored, 0),
    "fences": Profile(chains.fences, 0),
    "prepared": Profile(chains.prepared, 0),
    "two-servers": Profile(servers.two_servers, 0),
    "held-frames": Profile(servers.held_frames, 0),
    "refusing": Profile(links.refusing, 0),
    "restored": Profile(links.restored, 0),
    "revisions-again": Profile(links.revisions_again, 0, REVISIONS),
    "restored-alone": Profile(links.restored_alone, 0, RECORD_LOST),
    "restored-unanswered": Profile(links.restored_unanswered, 0),
    "clocks": Profile(links.clocks, 0),
    "broken-links": Profile(links.broken_links, 1),
    "stalled-lanes": Profile(links.stalled_lanes, 0),
    "slow-links": Profile(servers.slow_links, 0),
    "cut-short": Profile(servers.cut_short, 0),
    "slow-reads": Profile(servers.slow_reads, 0),
    "servers-fall": Profile(servers.servers_fall, 0),
    "half-copies": Profile(servers.half_copies, 0),
    "late-words": Profile(servers.late_words, 0),
    "told-first": Profile(servers.told_first, 0),
    "serving": Profile(servers.any_serving, 1),
    "groups-change": Profile(chains.groups_change, 0, OPERATORS),
    "false-certificates": Profile(links.false_certificates, 0),
    "balance": Profile(chains.balanced, 0, SPREAD),
    "retention": Profile(retention.retention, 0),
    "servers-lost": Profile(chains.servers_lost, 0),
    "stubs-copied": Profile(retention.stubs_copied, 0),
    "unread": Profile(retention.unread, 0),
    "unread-kept": Profile(retention.unread_kept, 0, DROPPED),
    "moved-and-dropped": Profile(retention.moved_and_dropped, 0),
    "distances": Profile(crossings.distances, 0, DISTANCES),
    "crossings": Profile(crossings.crossings, 0, draw_whole=crossings.whole_crossings),
}


class NotSimulatedError(ValueError):
    """The profile is about something that worlds of this kind do not simulate."""


def check_world(profile: str, world: str) -> None:
    """Raise an error that says what to do, if such a world does not have what the profile is about.

    Args:
        profile: A name of `PROFILES`, or empty for any, which only draws what every world has.
        world: A kind of world.

    Raises:
        NotSimulatedError: The world would test something else.
    """
    only = PROFILES[profile].only if profile else None
    if only is not None and world not in only.worlds:
        names = " or ".join(f"--world {name}" for name in only.worlds)
        raise NotSimulatedError(
            f"the profile {profile} is about {only.what}, and --world {world} does not simulate that: use {names}"
        )


MORE: tuple[str, ...] = (
    "suspects",
    "gaps",
    "producers-crash",
    "three-members",
    "long-chains",
    "refusing",
    "clocks",
    "hung-disks",
    "idle-producers",
    "full-disks",
    "stalled-lanes",
)
"""Profiles that may be drawn on top of another one; see `draw`."""


MORE_SHARE = 0.25
"""Of the seeds without a profile, this many have something more than an ordinary world."""


THREE_MEMBERS_SHARE = 0.2
"""Of the seeds without a profile, this many have groups of a master and two slaves."""


SECOND_MEMBER_US = BrokerConfig().second_member_us
"""How long the first of two started disks waits, as in production, in worlds of complete brokers: a start of a process
may take a second there. What a later disk knows does not count any more (ADR 0030)."""


BATCHES_A_RUN = (40, 150, 400, 800)
"""Batches of one run of complete brokers, unless the command line says how many. Short runs meet more beginnings, and
long runs meet more of what builds up."""


BALANCED_SHARE = 0.25
"""Of the seeds without a profile, this many worlds of complete brokers are balanced."""


def draw(
    rng: random.Random, profile: str = "", more: random.Random | None = None, *, is_whole: bool = False
) -> Options:
    """A mix for one seed: half of the seeds have everything, the others are made for what is rare otherwise.

    With `profile` (a name of `PROFILES`) the mix is of that kind. `more` is a source of chance of its own, by which a
    world without a profile gets something more. So the other draws are the same as without it.
    """
    chosen = profile or rng.choices(list(PROFILES), [profile.weight for profile in PROFILES.values()])[0]
    options = PROFILES[chosen].drawer(is_whole=is_whole)(rng, ordinary.anything(rng))
    if profile or more is None:
        return options
    if more.random() < MORE_SHARE:
        options = PROFILES[more.choice(MORE)].draw(more, options)
    return replace(options, member_count=3) if more.random() < THREE_MEMBERS_SHARE else options


def draw_for_brokers(
    rng: random.Random, profile: str = "", batch_count: int = 0, more: random.Random | None = None
) -> Options:
    """A mix for a world of complete brokers: more traffic, and faults for as long as it lasts."""
    options = draw(rng, profile, more, is_whole=True)
    if "older_disk" in options.kinds:
        options = replace(options, second_member_us=SECOND_MEMBER_US, readers_after_us=3 * SECOND_MEMBER_US)
    if not profile and more is not None and more.random() < BALANCED_SHARE:
        options = chains.balanced(more, options)
    batches = (batch_count or rng.choice(BATCHES_A_RUN)) // (options.producer_count * options.partition_count)
    gap_us = rng.choice((2_000, 2_000, 4_000, 8_000))
    long_kinds = {"started_copy", "remake_topic", "remake_group", "grow_topic", "restore"}
    is_long = bool(options.producers_max) or not long_kinds.isdisjoint(options.kinds)
    span_us = max(options.fault_span_us if is_long else 400_000, batches * gap_us)
    kinds = dict(options.kinds)
    kinds.pop("trim", None)  # it is the brokers' own duty here
    kinds.pop(
        "late_operation", None
    )  # bare cores only: in complete brokers, administrators move consumer groups in time
    if not profile or profile == "anything":
        for kind in ("island", "clock_jump", *RUNTIME_KINDS):
            if rng.random() < 0.4:
                kinds[kind] = rng.choice((1, 1, 2))
    return replace(
        options,
        kinds=kinds,
        batches_per_producer=max(1, batches),
        window_batches=rng.choice((1, 4, 6, 10, 10)),
        send_gap_us=gap_us,
        fault_span_us=span_us,
        fault_count=max(2, span_us // rng.choice((40_000, 60_000, 90_000))) * (3 if options.record_segments_max else 1),
        drain_us=60_000_000 if options.keyed_consumers else 30_000_000,  # one hand may fail again and again on one key
    )
