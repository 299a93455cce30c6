"""The workloads of `make bench` as data: `workloads.yaml`, read and checked.

Kinds of load:

    one_at_a_time   one producer sends a message when the one before is acknowledged
    paced           one producer sends at a fixed rate, whether or not the cluster keeps up; a consumer may read along
    idle            no client sends
    batches         one producer sends tables as fast as the cluster takes them
    sends           one producer calls `send()` with a key for each message, as fast as the cluster takes them
    start           a new process imports the client, connects, and sends one message
    fault           a message a millisecond, while the master of the partition is killed, restarted or frozen
    due             delayed messages at a fixed rate, each due at random, and a consumer that waits for them
    due_at_once     delayed messages that are all due in one millisecond, beside ordinary ones
    pending         batches that are due tomorrow, beside as many ordinary batches
    due_kill        as `due`, while the broker that fires the messages and stores them again is killed
    cancel          delayed messages are called back, one in flight, then 64
    beside_two      three of the above on clusters of larger broker groups and of groups of two, in turns
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Final, Literal, Self

import yaml
from pydantic import BaseModel, ConfigDict, Field, PositiveFloat, PositiveInt, TypeAdapter, model_validator

FILE: Final = Path(__file__).with_name("workloads.yaml")

Measure = Literal[
    "p50_ms", "p99_ms", "published_p50_ms", "published_p99_ms", "end_to_end_p50_ms", "end_to_end_p99_ms",
    "cpu_ms_per_message", "cpu_ms_per_s", "wakeups_per_s", "messages_per_s", "start_ms", "gap_ms",
    "late_p50_ms", "late_p99_ms", "ordinary_p99_ratio", "append_ratio", "more_memory_mib", "longer_start_s",
    "row_bytes_per_batch", "firing_gap_ms", "cancel_p50_ms", "cancels_per_s", "p50_ratio", "rate_ratio", "more_gap_ms",
]  # fmt: skip


GIVEN_BY: Final[dict[str, frozenset[Measure]]] = {
    "one_at_a_time": frozenset(("p50_ms", "p99_ms")),
    "paced": frozenset(
        ("published_p50_ms", "published_p99_ms", "end_to_end_p50_ms", "end_to_end_p99_ms", "cpu_ms_per_message")
    ),
    "idle": frozenset(("cpu_ms_per_s", "wakeups_per_s")),
    "batches": frozenset(("messages_per_s",)),
    "sends": frozenset(("messages_per_s",)),
    "start": frozenset(("start_ms",)),
    "fault": frozenset(("gap_ms",)),
    "due": frozenset(("late_p50_ms", "late_p99_ms")),
    "due_at_once": frozenset(("messages_per_s", "ordinary_p99_ratio")),
    "pending": frozenset(("append_ratio", "more_memory_mib", "longer_start_s", "row_bytes_per_batch")),
    "due_kill": frozenset(("firing_gap_ms",)),
    "cancel": frozenset(("cancel_p50_ms", "cancels_per_s")),
    "beside_two": frozenset(("p50_ratio", "rate_ratio", "more_gap_ms")),
}
"""The measures that each kind of load gives. `end_to_end` ones are given only if the messages are read."""


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class OneAtATime(_Strict):
    """One message in flight, for `seconds` after a second of warm-up."""

    kind: Literal["one_at_a_time"]
    seconds: PositiveFloat


class Paced(_Strict):
    """`rate` messages a second, for `seconds` after a second of warm-up."""

    kind: Literal["paced"]
    rate: PositiveInt
    seconds: PositiveFloat
    is_read: bool = False


class Idle(_Strict):
    """No messages for `seconds`, on brokers that started seconds before."""

    kind: Literal["idle"]
    seconds: PositiveFloat


class Batches(_Strict):
    """Tables of `rows` messages, for `seconds` after a second of warm-up."""

    kind: Literal["batches"]
    rows: PositiveInt
    seconds: PositiveFloat


class Sends(_Strict):
    """Single messages with one of `keys` keys, for `seconds` after a second of warm-up."""

    kind: Literal["sends"]
    keys: PositiveInt
    seconds: PositiveFloat


class Start(_Strict):
    """New processes, one after the other."""

    kind: Literal["start"]
    times: PositiveInt


class Fault(_Strict):
    """A fault of the master, again and again."""

    kind: Literal["fault"]
    fault: Literal["kill", "restart", "freeze"]
    times: PositiveInt


class Due(_Strict):
    """`rate` messages a second for `seconds`, each with a delay of at most `within_ms`."""

    kind: Literal["due"]
    rate: PositiveInt
    within_ms: PositiveInt
    seconds: PositiveFloat


class DueAtOnce(_Strict):
    """`messages` with one due time, and `rate` ordinary ones a second."""

    kind: Literal["due_at_once"]
    messages: PositiveInt
    rate: PositiveInt


class Pending(_Strict):
    """`messages` in batches of `rows`, each batch due at a time of its own tomorrow."""

    kind: Literal["pending"]
    messages: PositiveInt
    rows: PositiveInt


class DueKill(_Strict):
    """As `Due` until `times` kills are over."""

    kind: Literal["due_kill"]
    rate: PositiveInt
    within_ms: PositiveInt
    times: PositiveInt


class Cancel(_Strict):
    """Cancellations for `seconds` one after the other, and for `seconds` with 64 in flight."""

    kind: Literal["cancel"]
    seconds: PositiveFloat


class BesideTwo(_Strict):
    """One message in flight, batches, and `times` kills, each `rounds` times with two members and with `members`."""

    kind: Literal["beside_two"]
    members: Annotated[int, Field(ge=3, le=5)]
    rounds: PositiveInt
    seconds: PositiveFloat
    times: PositiveInt


DelayedLoad = Due | DueAtOnce | Pending | DueKill | Cancel
Load = Annotated[
    OneAtATime | Paced | Idle | Batches | Sends | Start | Fault | DelayedLoad | BesideTwo, Field(discriminator="kind")
]


class Workload(_Strict):
    """One workload. `workloads.yaml` says what the fields mean."""

    name: str = Field(pattern=r"^[a-z][a-z0-9_]*$")
    text: str = Field(min_length=1)
    load: Load
    groups: PositiveInt = 1
    partitions: PositiveInt = 1
    flush: bool = True
    measures: dict[Measure, float | None] = Field(min_length=1)
    smoke: bool = False
    night: bool = False

    @model_validator(mode="after")
    def _measures_are_given(self) -> Self:
        load = self.load
        given = GIVEN_BY[load.kind]
        if isinstance(load, Paced) and not load.is_read:
            given = frozenset(measure for measure in given if not measure.startswith("end_to_end"))
        if wrong := sorted(set(self.measures) - given):
            raise ValueError(f"{self.name}: {', '.join(wrong)}: this load gives {', '.join(sorted(given))}")
        return self

    def quick(self) -> Workload:
        """The same workload, a quarter as long."""
        load = self.load
        if isinstance(load, Start | Fault | DueKill):
            return self.model_copy(update={"load": load.model_copy(update={"times": max(1, load.times // 4)})})
        if isinstance(load, DueAtOnce | Pending):
            return self.model_copy(update={"load": load.model_copy(update={"messages": max(1, load.messages // 4)})})
        return self.model_copy(update={"load": load.model_copy(update={"seconds": load.seconds / 4})})


class WorkloadError(ValueError):
    """A workload is not known, or the file of workloads is wrong."""


def read_workloads(file: Path = FILE) -> list[Workload]:
    """Read all workloads, in their order.

    Raises:
        WorkloadError: The file is not YAML, a field is unknown or wrong, or two workloads have the same name.
    """
    try:
        found = TypeAdapter(list[Workload]).validate_python(yaml.safe_load(file.read_text()))
    except (yaml.YAMLError, ValueError) as error:
        raise WorkloadError(f"{file.name}: {error}") from error
    names = [workload.name for workload in found]
    if len(set(names)) < len(names):
        raise WorkloadError(f"{file.name}: two workloads have the same name")
    return found


def choose(workloads: list[Workload], names: list[str]) -> list[Workload]:
    """Return the workloads with these names, in the order of the file; all but those of nights if no name is given.

    Raises:
        WorkloadError: There is no workload of that name.
    """
    known = {workload.name for workload in workloads}
    for name in names:
        if name not in known:
            raise WorkloadError(f"there is no workload {name!r}: choose from {', '.join(sorted(known))}")
    return [workload for workload in workloads if workload.name in names or not (names or workload.night)]
