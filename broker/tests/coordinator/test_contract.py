"""The contract of `Coordinator`: one suite over every implementation of it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any

import pytest
from seriatim_api.errors import BadRequestError, MessageTooLargeError
from seriatim_broker.interfaces.coordinator import (
    OPERATION_COUNT_MAX,
    REQUEST_SIZE_BYTES_MAX,
    CompactedError,
    Comparator,
    Compare,
    Coordinator,
    CoordinatorUnavailableError,
    Delete,
    DeletePrefix,
    Event,
    EventKind,
    Get,
    GetPrefix,
    KeyValue,
    LeaseNotFoundError,
    Operation,
    Put,
    Target,
    WatchBatch,
    absent,
    create_revision_is,
    mod_revision_is,
    present,
    unchanged_under,
    value_begins_with,
    value_is,
)

from .harness import Harness

WATCH_S_MAX = 20.0


async def put(coordinator: Coordinator, key: str, value: bytes = b"value", lease: int = 0) -> int:
    """Write a key; its revision."""
    result = await coordinator.txn((), [Put(key, value, lease)])
    assert result.succeeded
    return result.revision


async def revision_of(coordinator: Coordinator) -> int:
    """The revision now."""
    return (await coordinator.txn((), [Get("nothing")])).revision


async def holds(coordinator: Coordinator, *compares: Compare) -> bool:
    """Whether the compares hold now."""
    return (await coordinator.txn(compares, ())).succeeded


async def take(batches: AsyncGenerator[WatchBatch, None], count: int) -> list[Event]:
    """The next `count` events or more."""
    events: list[Event] = []
    async with asyncio.timeout(WATCH_S_MAX):
        while len(events) < count:
            batch = await anext(batches)
            assert batch.events
            assert batch.events[-1].item.mod_revision == batch.revision
            events += batch.events
    return events


# -- keys ----------------------------------------------------------------------------------------------------


async def test_key_that_is_not_there(coordinator: Coordinator, prefix: str) -> None:
    assert await coordinator.get(prefix + "a") is None
    listing = await coordinator.list(prefix)
    assert listing.items == ()
    assert listing.revision >= 1


async def test_revisions_of_a_key(coordinator: Coordinator, prefix: str) -> None:
    first = await put(coordinator, prefix + "a", b"1")
    assert await coordinator.get(prefix + "a") == KeyValue(prefix + "a", b"1", first, first, 1)
    second = await put(coordinator, prefix + "a", b"2")
    assert second == first + 1
    assert await coordinator.get(prefix + "a") == KeyValue(prefix + "a", b"2", first, second, 2)


async def test_deleted_key_begins_anew(coordinator: Coordinator, prefix: str) -> None:
    key = prefix + "a"
    await put(coordinator, key)
    await put(coordinator, key)
    deleted = await coordinator.txn((), [Delete(key)])
    assert await coordinator.get(key) is None
    assert await holds(coordinator, absent(key), mod_revision_is(key, 0))
    again = await put(coordinator, key, b"again")
    assert again == deleted.revision + 1
    assert await coordinator.get(key) == KeyValue(key, b"again", again, again, 1)


async def test_what_changes_nothing_has_no_revision(coordinator: Coordinator, prefix: str) -> None:
    before = await put(coordinator, prefix + "a")
    nothing = await coordinator.txn((), [Delete(prefix + "b"), DeletePrefix(prefix + "c"), Get(prefix + "a")])
    assert nothing.revision == before
    assert await revision_of(coordinator) == before


@pytest.mark.parametrize("value", [b"", b"\0", b"a\0b\0\0", bytes(range(256)), b"x" * 1_000_000])
async def test_any_bytes_are_a_value(coordinator: Coordinator, prefix: str, value: bytes) -> None:
    key = prefix + "a"
    await put(coordinator, key, value)
    found = await coordinator.get(key)
    assert found is not None
    assert found.value == value
    assert await holds(coordinator, value_is(key, value))


async def test_keys_beyond_ascii_sort_by_code_point(coordinator: Coordinator, prefix: str) -> None:
    keys = sorted(prefix + name for name in ("z", "é", "ß", "日本", "\U0001f600", "a b", "a\0b"))
    await coordinator.txn((), [Put(key, key.encode()) for key in reversed(keys)])
    listing = await coordinator.list(prefix)
    assert [item.key for item in listing.items] == keys
    assert [item.value for item in listing.items] == [key.encode() for key in keys]


async def test_too_large_a_value_writes_nothing(coordinator: Coordinator, prefix: str) -> None:
    with pytest.raises(MessageTooLargeError):
        await put(coordinator, prefix + "a", bytes(REQUEST_SIZE_BYTES_MAX + 1))
    assert await coordinator.get(prefix + "a") is None


# -- transactions --------------------------------------------------------------------------------------------


async def test_compare_and_swap(coordinator: Coordinator, prefix: str) -> None:
    key = prefix + "a"
    made = await coordinator.txn([absent(key)], [Put(key, b"1")])
    assert made.succeeded
    swapped = await coordinator.txn([mod_revision_is(key, made.revision)], [Put(key, b"2")])
    assert swapped.succeeded
    assert swapped.revision == made.revision + 1
    late = await coordinator.txn([mod_revision_is(key, made.revision)], [Put(key, b"3")], [Get(key)])
    assert not late.succeeded
    assert late.revision == swapped.revision
    found = late.responses[0].item
    assert found is not None
    assert (found.value, found.mod_revision) == (b"2", swapped.revision)


async def test_conflicting_swaps_lose_nothing(harness: Harness, prefix: str) -> None:
    key = prefix + "counter"
    clients = [harness.client() for _ in range(2)]
    await put(clients[0], key, b"0")

    async def increment(coordinator: Coordinator) -> None:
        while True:
            found = await coordinator.get(key)
            assert found is not None
            swap = await coordinator.txn(
                [mod_revision_is(key, found.mod_revision)], [Put(key, b"%d" % (int(found.value) + 1))]
            )
            if swap.succeeded:
                return

    await asyncio.gather(*(increment(clients[number % 2]) for number in range(16)))
    found = await clients[0].get(key)
    assert found is not None
    assert (found.value, found.version) == (b"16", 17)


async def test_many_transactions_at_once(coordinator: Coordinator, prefix: str) -> None:
    results = await asyncio.gather(
        *(
            coordinator.txn([absent(f"{prefix}{number}")], [Put(f"{prefix}{number}", b"%d" % number)])
            for number in range(64)
        )
    )
    assert all(result.succeeded for result in results)
    listing = await coordinator.list(prefix)
    assert {item.key: item.mod_revision for item in listing.items} == {
        f"{prefix}{number}": result.revision for number, result in enumerate(results)
    }
    assert len({result.revision for result in results}) == 64


@pytest.mark.parametrize(("target", "left"), [(Target.MOD_REVISION, 2), (Target.CREATE_REVISION, 0)])
@pytest.mark.parametrize("comparator", list(Comparator))
async def test_comparators(
    coordinator: Coordinator, prefix: str, target: Target, left: int, comparator: Comparator
) -> None:
    key = prefix + "a"
    first = await put(coordinator, key)
    await put(coordinator, key)
    await put(coordinator, key)
    actual = first + left
    for right in (actual - 1, actual, actual + 1):
        expected = {
            Comparator.EQUAL: actual == right,
            Comparator.NOT_EQUAL: actual != right,
            Comparator.LESS: actual < right,
            Comparator.GREATER: actual > right,
        }[comparator]
        assert await holds(coordinator, Compare(key, target, comparator, right)) is expected


async def test_compares_of_values(coordinator: Coordinator, prefix: str) -> None:
    key = prefix + "a"
    await put(coordinator, key, b"m")
    for comparator, right, expected in [
        (Comparator.EQUAL, b"m", True),
        (Comparator.EQUAL, b"", False),
        (Comparator.NOT_EQUAL, b"n", True),
        (Comparator.LESS, b"n", True),
        (Comparator.LESS, b"m", False),
        (Comparator.GREATER, b"m\0", False),
        (Comparator.GREATER, b"a", True),
    ]:
        compare = Compare(key, Target.VALUE, comparator, right)
        assert await holds(coordinator, compare) is expected, compare
    missing = [Compare(prefix + "b", Target.VALUE, one, b"") for one in Comparator]
    assert not any([await holds(coordinator, one) for one in missing])


async def test_compares_of_how_values_begin(coordinator: Coordinator, prefix: str) -> None:
    for value, expected in [
        (b"mn", False),  # nothing follows
        (b"mn\0", True),
        (b"mn\xfe\xff", True),
        (b"mo", False),
        (b"mm\xff", False),
        (b"m", False),
    ]:
        await put(coordinator, prefix + "a", value)
        assert await holds(coordinator, *value_begins_with(prefix + "a", b"mn")) is expected, value
    assert not await holds(coordinator, *value_begins_with(prefix + "b", b"mn")), "there is no such key"


async def test_existence(coordinator: Coordinator, prefix: str) -> None:
    key = prefix + "a"
    assert await holds(coordinator, absent(key), create_revision_is(key, 0))
    assert not await holds(coordinator, present(key))
    revision = await put(coordinator, key)
    assert await holds(coordinator, present(key), create_revision_is(key, revision))
    assert not await holds(coordinator, absent(key))
    assert not await holds(coordinator, present(key), absent(prefix + "b"), absent(key))


async def test_range_compares(coordinator: Coordinator, prefix: str) -> None:
    assert await holds(coordinator, unchanged_under(prefix, 0))
    assert await holds(coordinator, unchanged_under(prefix, 1))
    await put(coordinator, prefix + "a")
    second = await put(coordinator, prefix + "b")
    assert not await holds(coordinator, unchanged_under(prefix, 0))
    assert await holds(coordinator, unchanged_under(prefix, second))
    assert not await holds(coordinator, unchanged_under(prefix, second - 1))
    third = await put(coordinator, prefix + "a")
    assert not await holds(coordinator, unchanged_under(prefix, second))
    assert await holds(coordinator, unchanged_under(prefix, third))
    await put(coordinator, prefix[:-1] + "0")  # "0" follows "/": beyond the prefix
    assert await holds(coordinator, unchanged_under(prefix, third))
    assert not await holds(coordinator, Compare(prefix, Target.VALUE, Comparator.EQUAL, b"other", prefix=True))
    assert await holds(coordinator, Compare(prefix, Target.VALUE, Comparator.EQUAL, b"value", prefix=True))


async def test_operations_of_a_transaction_see_each_other(coordinator: Coordinator, prefix: str) -> None:
    await coordinator.txn((), [Put(prefix + "old/1", b""), Put(prefix + "old/2", b"")])
    result = await coordinator.txn(
        [unchanged_under(prefix + "new/", 0)],
        [
            Put(prefix + "new/a", b"1"),
            Get(prefix + "new/a"),
            DeletePrefix(prefix + "old/"),
            GetPrefix(prefix),
            Put(prefix + "new/b", b"2"),
            Get(prefix + "missing"),
        ],
    )
    revision = result.revision
    made = KeyValue(prefix + "new/a", b"1", revision, revision, 1)
    assert result.responses[1].item == made
    assert result.responses[3].items == (made,)
    assert result.responses[5].item is None
    listing = await coordinator.list(prefix)
    assert listing.revision == revision
    assert [(item.key, item.mod_revision) for item in listing.items] == [
        (prefix + "new/a", revision),
        (prefix + "new/b", revision),
    ]


async def test_key_written_twice_is_refused(coordinator: Coordinator, prefix: str) -> None:
    key = prefix + "a"
    refused: list[list[Operation]] = [
        [Put(key, b"1"), Put(key, b"2")],
        [Put(key, b"1"), Delete(key)],
        [DeletePrefix(prefix), Put(key, b"1")],
    ]
    for operations in refused:
        with pytest.raises(BadRequestError):
            await coordinator.txn((), operations)
        with pytest.raises(BadRequestError):
            await coordinator.txn((), (), operations)
    assert await coordinator.get(key) is None
    assert (await coordinator.txn([present(key)], [Put(key, b"1")], [Put(key, b"2")])).revision


async def test_limit_of_operations(coordinator: Coordinator, prefix: str) -> None:
    operations = [Put(f"{prefix}{number:03}", b"") for number in range(OPERATION_COUNT_MAX + 1)]
    with pytest.raises(BadRequestError):
        await coordinator.txn((), operations)
    with pytest.raises(BadRequestError):
        await coordinator.txn([absent(one.key) for one in operations], ())
    assert (await coordinator.list(prefix)).items == ()
    compares = [absent(one.key) for one in operations[:-1]]
    assert (await coordinator.txn(compares, operations[:-1])).succeeded
    assert len((await coordinator.list(prefix)).items) == OPERATION_COUNT_MAX


# -- listing -------------------------------------------------------------------------------------------------


async def test_prefix_ends_where_it_should(coordinator: Coordinator, prefix: str) -> None:
    inside = [prefix + name for name in ("", "\0", "a", "zz", "\U0010ffff", "\U0010ffff\U0010ffff")]
    outside = [prefix[:-1], prefix[:-1] + ".", prefix[:-1] + "0"]
    await coordinator.txn((), [Put(key, b"") for key in inside + outside])
    assert [item.key for item in (await coordinator.list(prefix)).items] == inside
    last = prefix + "\U0010ffff"
    assert [item.key for item in (await coordinator.list(last)).items] == inside[-2:]


async def test_a_listing_may_be_a_part(coordinator: Coordinator, prefix: str) -> None:
    keys = [prefix + name for name in ("a", "b", "c", "d", "\U0010ffff")]
    await coordinator.txn((), [Put(key, b"") for key in [*keys, prefix[:-1] + "0"]])

    async def listed(**named: Any) -> list[str]:
        return [item.key for item in (await coordinator.list(prefix, **named)).items]

    assert await listed(count_max=2) == keys[:2]
    assert await listed(after=keys[1]) == keys[2:]
    assert await listed(after=prefix + "bb", count_max=3, limit_per_page=2) == keys[2:]
    assert await listed(after=prefix + "bb", count_max=2, limit_per_page=1) == keys[2:4]
    assert await listed(after=prefix[:-1], count_max=9) == keys
    assert await listed(after=keys[-1]) == []
    assert await listed(after=prefix[:-1] + "0") == []


async def test_empty_prefix_is_everything(coordinator: Coordinator, prefix: str) -> None:
    await coordinator.txn((), [Put("\0first", b""), Put(prefix + "a", b""), Put("\U0010ffff last", b"")])
    items = (await coordinator.list("", limit_per_page=2)).items
    keys = [item.key for item in items]
    assert keys == sorted(keys)
    assert keys[0] == "\0first"
    assert keys[-1] == "\U0010ffff last"
    assert prefix + "a" in keys
    await coordinator.txn((), [DeletePrefix("")])
    assert (await coordinator.list("")).items == ()


async def test_pages_are_of_one_revision(coordinator: Coordinator, prefix: str) -> None:
    """The listing equals the state at its revision, whatever was written between its pages."""
    keys = [f"{prefix}{number:02}" for number in range(20)]
    history = [(await coordinator.txn((), [Put(key, b"0") for key in keys])).revision]
    states: dict[int, dict[str, bytes]] = {history[0]: dict.fromkeys(keys, b"0")}
    done = asyncio.Event()

    async def write() -> None:
        number = 0
        while not done.is_set():
            number += 1
            state = dict(states[max(states)])
            key, other = keys[number % 20], keys[(number * 7 + 3) % 20]
            if number % 3 == 0 and key != other:
                state.pop(key, None)
                state[other] = b"%d" % number
                result = await coordinator.txn((), [Delete(key), Put(other, b"%d" % number)])
            else:
                state[key] = b"%d" % number
                result = await coordinator.txn((), [Put(key, b"%d" % number)])
            states[result.revision] = state

    async with asyncio.TaskGroup() as group:
        group.create_task(write())
        listings = [await coordinator.list(prefix, limit_per_page=3) for _ in range(8)]
        done.set()
    for listing in listings:
        assert {item.key: item.value for item in listing.items} == states[listing.revision]
    assert len({listing.revision for listing in listings}) > 1, "nothing was written meanwhile"


# -- leases --------------------------------------------------------------------------------------------------


async def test_lease_ends_with_its_keys_unless_kept_alive(
    harness: Harness, coordinator: Coordinator, prefix: str
) -> None:
    kept, left = await coordinator.grant(2), await coordinator.grant(2)
    assert kept.ttl_s >= 2
    assert kept.id != left.id
    await put(coordinator, prefix + "kept", lease=kept.id)
    await put(coordinator, prefix + "left", lease=left.id)
    await put(coordinator, prefix + "none")
    found = await coordinator.get(prefix + "left")
    assert found is not None
    assert found.lease == left.id

    async def left_is_gone() -> bool:
        assert await coordinator.keep_alive(kept.id) == kept.ttl_s
        return await coordinator.get(prefix + "left") is None

    await harness.until(left_is_gone, 10)
    assert [item.key for item in (await coordinator.list(prefix)).items] == [prefix + "kept", prefix + "none"]
    assert await coordinator.keep_alive(left.id) == 0
    with pytest.raises(LeaseNotFoundError):
        await put(coordinator, prefix + "left", lease=left.id)
    assert await coordinator.get(prefix + "left") is None


async def test_revoked_lease_takes_its_keys_in_one_revision(coordinator: Coordinator, prefix: str) -> None:
    lease = await coordinator.grant(60)
    for name in ("b", "a", "c"):
        await put(coordinator, prefix + name, lease=lease.id)
    detached = await put(coordinator, prefix + "c")
    await coordinator.revoke(lease.id)
    assert [item.key for item in (await coordinator.list(prefix)).items] == [prefix + "c"]
    async with aclosing(coordinator.watch(prefix, prefix=True, start_revision=detached + 1)) as batches:
        batch = await anext(batches)
    assert {(event.kind, event.item.key) for event in batch.events} == {
        (EventKind.DELETE, prefix + "a"),
        (EventKind.DELETE, prefix + "b"),
    }
    assert await coordinator.keep_alive(lease.id) == 0
    await coordinator.revoke(lease.id)


async def test_lease_of_a_deleted_key_leaves_its_successor(coordinator: Coordinator, prefix: str) -> None:
    lease = await coordinator.grant(60)
    await put(coordinator, prefix + "a", lease=lease.id)
    await coordinator.txn((), [Delete(prefix + "a")])
    await put(coordinator, prefix + "a")
    await coordinator.revoke(lease.id)
    assert await coordinator.get(prefix + "a") is not None


async def test_lease_that_never_was(coordinator: Coordinator, prefix: str) -> None:
    assert await coordinator.keep_alive(12345) == 0
    with pytest.raises(LeaseNotFoundError):
        await coordinator.txn((), [Put(prefix + "a", b""), Put(prefix + "b", b"", 12345)])
    assert (await coordinator.list(prefix)).items == ()
    await coordinator.revoke(12345)


async def test_leases_outlive_a_restart(harness: Harness, coordinator: Coordinator, prefix: str) -> None:
    long, short = await coordinator.grant(60), await coordinator.grant(2)
    await put(coordinator, prefix + "long", lease=long.id)
    await put(coordinator, prefix + "short", lease=short.id)
    await harness.restart()
    assert await coordinator.get(prefix + "long") is not None
    assert await coordinator.keep_alive(long.id) == long.ttl_s

    async def short_is_gone() -> bool:
        return await coordinator.get(prefix + "short") is None

    await harness.until(short_is_gone, 10)
    await coordinator.revoke(long.id)
    assert (await coordinator.list(prefix)).items == ()


# -- watches -------------------------------------------------------------------------------------------------


async def test_watch_from_a_past_revision(coordinator: Coordinator, prefix: str) -> None:
    key = prefix + "a"
    revisions = [await put(coordinator, key, b"%d" % number) for number in range(5)]
    async with aclosing(coordinator.watch(key, start_revision=revisions[2])) as batches:
        past = await take(batches, 3)
        revisions.append(await put(coordinator, key, b"5"))
        live = await take(batches, 1)
    assert [event.item.mod_revision for event in past + live] == revisions[2:]
    assert [event.item.value for event in past + live] == [b"2", b"3", b"4", b"5"]
    assert [event.item.version for event in past + live] == [3, 4, 5, 6]


async def test_watch_of_a_prefix(coordinator: Coordinator, prefix: str) -> None:
    start = await revision_of(coordinator) + 1
    await put(coordinator, prefix[:-1])
    made = await coordinator.txn((), [Put(prefix + "b", b"1"), Put(prefix + "a", b"2")])
    await put(coordinator, prefix[:-1] + "0")
    gone = await coordinator.txn((), [Delete(prefix + "b"), Put(prefix + "c", b"3"), Put("/elsewhere", b"")])
    async with aclosing(coordinator.watch(prefix, prefix=True, start_revision=start)) as batches:
        events = await take(batches, 4)
    assert [(event.kind, event.item.key, event.item.mod_revision) for event in events] == [
        (EventKind.PUT, prefix + "b", made.revision),
        (EventKind.PUT, prefix + "a", made.revision),
        (EventKind.DELETE, prefix + "b", gone.revision),
        (EventKind.PUT, prefix + "c", gone.revision),
    ]
    assert events[2].item.value == b""


async def test_revision_is_not_cut(coordinator: Coordinator, prefix: str) -> None:
    start = await revision_of(coordinator) + 1
    for number in range(4):
        await coordinator.txn((), [Put(f"{prefix}{key:03}", b"%d" % number) for key in range(100)])
    seen = 0
    async with (
        aclosing(coordinator.watch(prefix, prefix=True, start_revision=start)) as batches,
        asyncio.timeout(WATCH_S_MAX),
    ):
        while seen < 400:
            batch = await anext(batches)
            assert len(batch.events) % 100 == 0
            seen += len(batch.events)
    assert seen == 400


async def test_watch_of_a_revision_to_come(coordinator: Coordinator, prefix: str) -> None:
    key = prefix + "a"
    now = await put(coordinator, key, b"now")
    async with aclosing(coordinator.watch(key, start_revision=now + 3)) as batches:
        first = asyncio.ensure_future(anext(batches))
        for number in range(1, 4):
            await put(coordinator, key, b"%d" % number)
        async with asyncio.timeout(WATCH_S_MAX):
            batch = await first
    assert [event.item.value for event in batch.events] == [b"3"]


async def test_several_watches_of_one_client(coordinator: Coordinator, prefix: str) -> None:
    start = await revision_of(coordinator) + 1
    watches = [coordinator.watch(f"{prefix}{name}", start_revision=start) for name in "abc"]
    everything = coordinator.watch(prefix, prefix=True, start_revision=start)
    for name in "abc":
        await put(coordinator, f"{prefix}{name}", name.encode())
    try:
        for name, batches in zip("abc", watches, strict=True):
            assert [event.item.value for event in await take(batches, 1)] == [name.encode()]
        assert [event.item.value for event in await take(everything, 3)] == [b"a", b"b", b"c"]
    finally:
        for batches in [*watches, everything]:
            await batches.aclose()


async def test_watch_over_a_restart_has_no_gap_and_no_repeat(
    harness: Harness, coordinator: Coordinator, prefix: str
) -> None:
    key = prefix + "counter"
    start = await revision_of(coordinator) + 1
    last = 60

    async def count() -> None:
        number = 0
        while number < last:
            found = await coordinator.get(key)  # after an unknown outcome, this says what became of it
            number = int(found.value) if found is not None else 0
            compare = mod_revision_is(key, found.mod_revision if found is not None else 0)
            try:
                await coordinator.txn([compare], [Put(key, b"%d" % (number + 1))])
            except CoordinatorUnavailableError:
                continue

    seen: list[int] = []
    async with asyncio.timeout(60), asyncio.TaskGroup() as group:
        counting = group.create_task(count())
        async with aclosing(coordinator.watch(key, start_revision=start)) as batches:
            restarted_at = {10, 30}
            while len(seen) < last:
                seen += [int(event.item.value) for event in (await anext(batches)).events]
                due = {number for number in restarted_at if number <= len(seen)}
                if due and not counting.done():
                    restarted_at -= due
                    await harness.restart()
    assert seen == list(range(1, len(seen) + 1))


async def test_watch_ends_when_its_client_is_closed(harness: Harness, prefix: str) -> None:
    client = harness.client()
    start = await put(client, prefix + "a")
    batches = client.watch(prefix + "a", start_revision=start)
    assert len(await take(batches, 1)) == 1
    waiting = asyncio.ensure_future(anext(batches, None))
    await client.close()
    async with asyncio.timeout(WATCH_S_MAX):
        assert await waiting is None
    with pytest.raises(CoordinatorUnavailableError):
        await client.get(prefix + "a")


# -- compaction ----------------------------------------------------------------------------------------------


async def test_compacted_history_cannot_be_watched(harness: Harness, coordinator: Coordinator, prefix: str) -> None:
    key = prefix + "a"
    revisions = [await put(coordinator, key, b"%d" % number) for number in range(6)]
    await harness.compact(revisions[4])
    async with aclosing(coordinator.watch(key, start_revision=revisions[1])) as batches:
        with pytest.raises(CompactedError) as caught:
            await take(batches, 1)
    assert caught.value.compact_revision == revisions[4]
    async with aclosing(coordinator.watch(key, start_revision=revisions[4])) as batches:
        assert [event.item.value for event in await take(batches, 2)] == [b"4", b"5"]


async def test_watch_that_falls_behind_compaction_says_so(
    harness: Harness, coordinator: Coordinator, prefix: str
) -> None:
    """It was running, lost its connection, and what it missed is compacted away before it is back."""
    key = prefix + "a"
    start = await put(coordinator, key, b"seen")
    other = harness.client()
    async with aclosing(coordinator.watch(key, start_revision=start)) as batches:
        assert len(await take(batches, 1)) == 1
        await harness.restart()  # no task awaits the watch meanwhile, so it is not taken up yet
        await put(other, key, b"missed")
        last = await put(other, key, b"kept")
        await harness.compact(last)
        with pytest.raises(CompactedError) as caught:
            await take(batches, 1)
    assert caught.value.compact_revision == last


async def test_compaction_keeps_what_is_there(harness: Harness, coordinator: Coordinator, prefix: str) -> None:
    old = await put(coordinator, prefix + "old")
    await put(coordinator, prefix + "gone")
    await coordinator.txn((), [Delete(prefix + "gone")])
    last = await put(coordinator, prefix + "last")
    await harness.compact(last)
    await harness.restart()
    listing = await coordinator.list(prefix)
    assert listing.items == (
        KeyValue(prefix + "last", b"value", last, last, 1),
        KeyValue(prefix + "old", b"value", old, old, 1),
    )
    assert listing.revision >= last
    again = await put(coordinator, prefix + "gone")
    assert again == listing.revision + 1
    assert await coordinator.get(prefix + "gone") == KeyValue(prefix + "gone", b"value", again, again, 1)


# -- the coordinator away ------------------------------------------------------------------------------------


async def test_frozen_coordinator_is_given_up_at_the_deadline(
    harness: Harness, coordinator: Coordinator, prefix: str
) -> None:
    key = prefix + "a"
    await put(coordinator, key, b"before")
    loop = asyncio.get_running_loop()
    async with harness.frozen():
        for call in (
            lambda: coordinator.get(key, deadline_s=0.3),
            lambda: coordinator.list(prefix, deadline_s=0.3),
            lambda: coordinator.txn((), [Put(key, b"after")], deadline_s=0.3),
            lambda: coordinator.grant(60, deadline_s=0.3),
            lambda: coordinator.keep_alive(1, deadline_s=0.3),
            lambda: coordinator.revoke(1, deadline_s=0.3),
        ):
            begun_s = loop.time()
            with pytest.raises(CoordinatorUnavailableError):
                await call()
            assert loop.time() - begun_s < 4.0, "before the usual deadline of 5 s"
    found = await coordinator.get(key)
    assert found is not None
    assert found.value in (b"before", b"after")  # unknown is unknown
    assert found.version <= 2, "a transaction was sent twice"


async def test_what_was_acknowledged_survives_a_crash(harness: Harness, coordinator: Coordinator, prefix: str) -> None:
    lease = await coordinator.grant(60)
    results = await asyncio.gather(
        *(coordinator.txn((), [Put(f"{prefix}{number:02}", b"%d" % number, lease.id)]) for number in range(40))
    )
    await harness.crash()
    listing = await coordinator.list(prefix)
    assert {item.key: (item.value, item.mod_revision, item.lease) for item in listing.items} == {
        f"{prefix}{number:02}": (b"%d" % number, result.revision, lease.id) for number, result in enumerate(results)
    }
    assert await coordinator.keep_alive(lease.id) == lease.ttl_s


async def test_calls_wait_for_a_coordinator_that_comes_back(
    harness: Harness, coordinator: Coordinator, prefix: str
) -> None:
    """What was begun while it was away is carried out once it is there again, within the deadline."""
    await put(coordinator, prefix + "a", b"1")
    restarting = asyncio.ensure_future(harness.restart())
    await asyncio.sleep(0)
    found = await coordinator.get(prefix + "a", deadline_s=20)
    await restarting
    assert found is not None
    assert found.value == b"1"
    assert await put(coordinator, prefix + "a", b"2") > found.mod_revision
