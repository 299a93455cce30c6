"""What a starting member of etcd does, for each situation."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
import yaml
from seriatim_operator.etcd.joining import (
    BeginAnew,
    Forget,
    Member,
    Situation,
    Start,
    Step,
    TakeIn,
    Wait,
    began,
    joined,
    next_step,
)
from seriatim_operator.etcd.starting import Place, SettingsRefusedError, prepare

URLS = {"e-0": "http://e-0:2380", "e-1": "http://e-1:2380", "e-2": "http://e-2:2380"}
ALL = "e-0=http://e-0:2380,e-1=http://e-1:2380,e-2=http://e-2:2380"


def member(number: int, name: str | None = None) -> Member:
    """As the others list it."""
    return Member(str(number), f"e-{number}" if name is None else name, (URLS[f"e-{number}"],))


def situation(
    *, data: bool = False, decided: bool = False, known: bool = False, listed: list[Member] | None = None
) -> Situation:
    """Of member 1."""
    return Situation("e-1", URLS, data, decided, {"e-1": began(URLS)} if known else {}, listed)


@pytest.mark.parametrize(
    ("now", "step"),
    [
        (situation(), BeginAnew()),
        (situation(decided=True, known=True), Start("new", ALL)),
        (situation(data=True, decided=True, known=True), Start("existing", ALL)),
        (situation(data=True), Start("existing", ALL)),
        # The two others of a new cluster were quicker.
        (situation(listed=[member(0), member(1), member(2)]), BeginAnew()),
        # The disk is lost.
        (situation(known=True, listed=[member(0), member(1), member(2)]), Forget("1")),
        (situation(known=True, listed=[member(0), member(2)]), TakeIn()),
        (situation(known=True, listed=[member(0), member(1, ""), member(2)]), Start("existing", ALL)),
    ],
)
def test_each_situation_has_its_step(now: Situation, step: Step) -> None:
    assert next_step(now) == step


def test_a_lost_disk_never_begins_anew_while_the_others_are_silent() -> None:
    step = next_step(situation(known=True))
    assert isinstance(step, Wait)
    assert "only a majority" in step.why


def test_the_lost_disk_of_an_only_member_is_said_to_be_the_metadata() -> None:
    step = next_step(Situation("e-0", {"e-0": "http://e-0:2380"}, False, False, {"e-0": "http://e-0:2380"}, None))
    assert isinstance(step, Wait)
    assert "restore a snapshot" in step.why


def test_a_member_of_a_new_cluster_begins_beside_those_that_were_quicker() -> None:
    now = Situation("e-1", URLS, False, False, {"e-0": began(URLS), "e-2": began(URLS)}, None)
    assert next_step(now) == BeginAnew()


@pytest.mark.parametrize("by", ["http://e-0:2380", ""])
def test_a_member_that_is_added_later_never_begins_a_cluster_beside_the_one_that_is_there(by: str) -> None:
    step = next_step(Situation("e-1", URLS, False, False, {"e-0": by}, None))
    assert isinstance(step, Wait)
    assert "began without this member" in step.why


def test_a_member_that_is_added_later_is_not_taken_in() -> None:
    step = next_step(Situation("e-1", URLS, False, False, {"e-0": "http://e-0:2380"}, [member(0)]))
    assert isinstance(step, Wait)
    assert "set etcd.members back" in step.why


@pytest.mark.parametrize(("heartbeat", "election"), [(120, 500), (100, 50_001), (0, 500), (300, None)])
def test_settings_that_etcd_would_refuse_are_told(tmp_path: Path, heartbeat: int, election: int | None) -> None:
    settings = {"initial-cluster": "a=http://a:2380", "heartbeat-interval": heartbeat}
    file = tmp_path / "etcd.yaml"
    file.write_text(yaml.safe_dump(settings if election is None else {**settings, "election-timeout": election}))
    place = Place("a", file, tmp_path, tmp_path / "out.yaml", None)
    with pytest.raises(SettingsRefusedError, match=f"heartbeat-interval {heartbeat} ms. Remedy: set etcd.settings"):
        prepare(place, cast(Any, None))
    assert not (tmp_path / "out.yaml").exists()


def test_a_member_that_a_single_one_added_starts_although_no_majority_lists_it() -> None:
    alone = (member(0),)
    now = Situation("e-1", URLS, False, False, {"e-1": ALL}, alone)
    assert next_step(now) == TakeIn()
    joins = joined(now, (*alone, member(1, "")))
    assert joins == "e-0=http://e-0:2380,e-1=http://e-1:2380"
    assert next_step(replace(now, listed=None, joins=joins)) == Start("existing", joins)
    assert next_step(replace(now, listed=alone, joins=joins)) == TakeIn(), "they removed it meanwhile"
    assert isinstance(next_step(replace(now, listed=None)), Wait), "with another disk"
