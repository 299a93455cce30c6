"""The report of the demo of orders: what was worked on, what failed, what was judged, and whether the run failed.

The report fits on a screen of 80 columns and 24 lines. The demo's last line is one JSON object.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from rich.console import Console
from rich.table import Table
from seriatim.history import Report, render

from e2e.demo.report import BROKEN_PROMISES, DemoFault, Percentiles, percentiles, verdict
from e2e.demo_orders.judging import DeadLettered, Judgement, Parked

WIDTH: Final = 80
DIFFERENCES_SHOWN_MAX: Final = 5


@dataclass(frozen=True, slots=True)
class Outcome:
    """All that is known when the demo is over.

    Attributes:
        check: The checker's judgement of the recorded history.
        judgement: What the store and the record of attempts say.
        event_count: The number of events that the demo had to send.
        duration_s: From the first send to the last finished message, in seconds.
        partition_count: The number of partitions.
        consumer_count: The number of consumers that worked at the same time.
        process_count: The number of processes with consumers.
        process_starts: How many processes with consumers were started.
        faults: Every fault of brokers and of consumers.
        parked: What happened to the parked aircraft.
        dead: What happened to the dead-lettered aircraft.
        seed: The seed of the run.
        quick: Whether this was `QUICK=1`.
        faults_min: The number of faults that must have hit.
        kinds_wanted: At least one fault of each of these kinds must have hit.
        longest_silence_s: The longest time in which a partition acknowledged nothing while messages waited, as the
            producer saw it, in seconds. No gap of a fault can be longer.
        planted: The fault that was planted in the consumers; empty: none.
    """

    check: Report
    judgement: Judgement
    event_count: int
    duration_s: float
    partition_count: int
    consumer_count: int
    process_count: int
    process_starts: int
    faults: Sequence[DemoFault]
    parked: Parked | None
    dead: DeadLettered | None
    seed: int
    quick: bool
    faults_min: int
    kinds_wanted: Sequence[str]
    longest_silence_s: float = 0.0
    planted: str = ""

    @property
    def hits(self) -> list[DemoFault]:
        """The faults that count."""
        return [fault for fault in self.faults if fault.hit]

    @property
    def take_over(self) -> Percentiles | None:
        """How long keys of killed consumers waited until other consumers worked on them; None: none waited."""
        return percentiles(seconds * 1000 for seconds in self.judgement.take_overs_s)

    @property
    def gap(self) -> Percentiles | None:
        """How long a partition accepted nothing when brokers failed; None: no fault of a broker hit."""
        return _gap(self.hits)


def _gap(faults: Iterable[DemoFault]) -> Percentiles | None:
    return percentiles(fault.gap_ms for fault in faults if fault.gap_ms is not None)


def problems(outcome: Outcome) -> list[str]:
    """Say why the run did not show what it had to show; empty if it did."""
    counts, judgement = outcome.check.counts, outcome.judgement
    found = [f"{counts[kind]:,} {kind}" for kind in BROKEN_PROMISES if counts[kind]]
    if counts["sent"] != outcome.event_count:
        found.append(f"{counts['sent']:,} of {outcome.event_count:,} events were sent")
    if judgement.taken != outcome.event_count:
        found.append(f"the store took {judgement.taken:,} events of {outcome.event_count:,}")
    if judgement.differences:
        found.append("the histories are not those of the file")
    found += judgement.problems
    if outcome.parked is None:
        found.append("no aircraft was parked")
    if outcome.dead is None:
        found.append("no message was dead-lettered")
    if len(outcome.hits) < outcome.faults_min:
        found.append(f"only {len(outcome.hits)} of at least {outcome.faults_min} faults hit")
    hit_kinds = {fault.label for fault in outcome.hits}
    missing = [kind for kind in outcome.kinds_wanted if kind not in hit_kinds]
    if missing:
        found.append(f"no fault hit of kind {', '.join(missing)}")
    return found


def exit_status(outcome: Outcome) -> int:
    """Return 0 only if there is no problem."""
    return 1 if problems(outcome) else 0


def summary(outcome: Outcome) -> dict[str, object]:
    """Return the figures as plain data."""
    counts, judgement = outcome.check.counts, outcome.judgement
    parked, dead = outcome.parked, outcome.dead
    return {
        "ok": not problems(outcome),
        "problems": problems(outcome),
        "seed": outcome.seed,
        "quick": outcome.quick,
        "events": outcome.event_count,
        "sent": counts["sent"],
        "acknowledged": counts["ok"],
        "finished": judgement.taken,
        "attempts": judgement.attempts,
        "failed": judgement.failed,
        "cut_off": judgement.cut_off,
        "repeats": judgement.repeats,
        "repeats_unflagged": judgement.unflagged,
        "refused_by_token": judgement.refused,
        "lost": counts["lost"],
        "reordered": counts["reordered"],
        "aircraft": judgement.aircraft,
        "histories_equal": not judgement.differences,
        "histories_sha256": judgement.digest,
        "parked": None if parked is None else {
            "key": parked.key, "attempts": parked.attempts, "waiting": parked.waiting,
            "seconds": round(parked.released_at - parked.parked_at, 1), "others_meanwhile": judgement.others_meanwhile,
        },
        "dead_letters": None if dead is None else {"key": dead.key, "replayed": len(dead.letters)},
        "duration_s": round(outcome.duration_s, 1),
        "messages_per_s": round(judgement.taken / outcome.duration_s) if outcome.duration_s > 0 else 0,
        "faults": len(outcome.faults),
        "faults_hit": len(outcome.hits),
        "consumer_processes": outcome.process_starts,
        "take_over": None if outcome.take_over is None else outcome.take_over.to_dict(),
        "gap": None if outcome.gap is None else outcome.gap.to_dict(),
        "longest_silence_ms": round(outcome.longest_silence_s * 1000, 1),
    }  # fmt: skip


def json_line(outcome: Outcome) -> str:
    """Return the demo's last line: one JSON object, without a newline."""
    return json.dumps(summary(outcome), separators=(", ", ": "), allow_nan=False)


def print_report(console: Console, outcome: Outcome) -> None:
    """Print the report without the last line, which the caller prints plainly, so that it is not wrapped."""
    console.rule("[bold]What happened", characters="─")
    console.print(_figures(outcome))
    if not outcome.check.ok:
        console.print(render(outcome.check), markup=False, highlight=False)
    for difference in outcome.judgement.differences[:DIFFERENCES_SHOWN_MAX]:
        console.print(f"  {difference}", markup=False, highlight=False)
    found = problems(outcome)
    if found:
        console.print(f"[bold red]FAILED[/] {'; '.join(found)}  [dim](SEED={outcome.seed})[/]", highlight=False)
    else:
        console.print("[bold green]OK[/] each aircraft's events were worked on once and in order", highlight=False)


def _figures(outcome: Outcome) -> Table:
    counts, judgement = outcome.check.counts, outcome.judgement
    rate = judgement.taken / outcome.duration_s if outcome.duration_s > 0 else 0.0
    table = Table(show_header=False, box=None, pad_edge=False)
    table.add_column(style="dim", no_wrap=True)
    table.add_column(justify="right", no_wrap=True)
    table.add_column(style="dim", no_wrap=True)
    rows = [
        ("events sent", f"{counts['sent']:,}", f"of {outcome.event_count:,}, to {outcome.partition_count} partitions"),
        ("finished", f"{judgement.taken:,}", f"{rate:,.0f} a second, by {outcome.consumer_count} consumers"),
        ("attempts", f"{judgement.attempts:,}", f"{judgement.failed:,} failed, {judgement.cut_off:,} cut off by kills"),
        ("flagged repeats", f"{judgement.repeats - judgement.unflagged:,}", "the store knew them by their offsets"),
        ("refused writes", f"{judgement.refused:,}", "the store had a newer token of the key"),
        ("lost", verdict(counts["lost"]), ""),
        ("reordered", verdict(counts["reordered"]), "within an aircraft"),
        ("repeated", verdict(counts["repeated"] + judgement.unflagged), "without a flag"),
        (
            "histories",
            "[bold red]differ[/]" if judgement.differences else "[green]equal[/]",
            f"{judgement.aircraft:,} aircraft, byte for byte as in the file",
        ),
        *_aircraft(outcome),
        ("faults that hit", f"{len(outcome.hits)}", f"of {len(outcome.faults)}; at least {outcome.faults_min}"),
        _take_over(outcome),
        *_gaps(outcome),
        ("longest silence", f"{outcome.longest_silence_s * 1000:,.0f} ms", "of a partition, as the producer saw it"),
    ]
    for row in rows:
        table.add_row(*row)
    return table


def _aircraft(outcome: Outcome) -> list[tuple[str, str, str]]:
    parked, dead = outcome.parked, outcome.dead
    rows = []
    if parked is not None:
        seconds = parked.released_at - parked.parked_at
        meanwhile = f"after {parked.attempts} attempts; {outcome.judgement.others_meanwhile:,} of others meanwhile"
        rows.append((f"{parked.key} parked", f"{seconds:.1f} s", meanwhile))
    if dead is not None:
        rows.append((f"{dead.key} given up", f"{len(dead.letters)}", "dead letters, replayed in their order"))
    return rows


def _take_over(outcome: Outcome) -> tuple[str, str, str]:
    found = outcome.take_over
    replaced = outcome.process_starts - outcome.process_count
    if found is None:
        return "killed consumers", "–", f"{replaced} kills"
    longest = f"median of {found.count:,} keys, {found.max_ms:,.0f} at most; {replaced} kills"
    return "keys taken over", f"{found.p50_ms:,.0f} ms", longest


def _gaps(outcome: Outcome) -> list[tuple[str, str, str]]:
    """One line for each kind of fault of brokers: the time without an acknowledgement for producers."""
    rows = []
    for label in sorted({fault.label for fault in outcome.hits if fault.role != "consumer"}):
        found = _gap(fault for fault in outcome.hits if fault.label == label)
        if found is not None:
            rows.append(
                (f"gap: {label}", f"{found.p50_ms:,.0f} ms", f"median of {found.count}, {found.max_ms:,.0f} at most")
            )
    return rows
