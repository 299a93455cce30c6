"""What a broker writes at `/readyz` is what the commands find there."""

from __future__ import annotations

from seriatim_api import errors, troubles


def test_what_is_written_is_found_again() -> None:
    lines = [f"warning: {trouble.line(f'text {at}')}" for at, trouble in enumerate(troubles.TROUBLES)]
    page = "\n".join(["ready", *lines, "warning: something else", ""])
    assert troubles.read(page) == [(trouble, f"text {at}") for at, trouble in enumerate(troubles.TROUBLES)]


def test_a_process_with_two_brokers_names_both() -> None:
    line = troubles.COORDINATOR_BEHIND.line("why")
    found = troubles.read(f"g0-0: {line}\ng0-1: {line}\n")
    assert found == [(troubles.COORDINATOR_BEHIND, "why")] * 2


def test_what_is_well_has_no_line_and_is_not_found() -> None:
    assert troubles.COORDINATOR_BEHIND.line("") == ""
    assert troubles.read("ready\n") == []


def test_the_numbers_are_those_of_the_catalogue() -> None:
    assert troubles.COORDINATOR_REFUSES.number == errors.CoordinatorRefusedError.number
    assert troubles.COORDINATOR_BEHIND.number == errors.CoordinatorBehindError.number
