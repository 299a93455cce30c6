"""The page of broken promises: each promise has a story, and stories are drawn from what happened."""

from __future__ import annotations

from pathlib import Path

from sim.mutations import MUTATIONS
from sim.run import silence
from sim.stories.__main__ import PAGE, TAIL, section, shorter, tell
from sim.stories.draw import Drawing
from sim.stories.promises import PROMISES
from sim.stories.world import Seen, Words

REPOSITORY = Path(__file__).parents[2]
SEED_COUNT = 20


def test_each_promise_is_told() -> None:
    page = (REPOSITORY / PAGE).read_text()
    wanted = [f"I{number}" for number in range(1, 15) if number != 4]  # I4 comes with delivery by key
    assert [promise.rule for promise in PROMISES] == wanted
    for promise in PROMISES:
        assert f"## {promise.rule}: {promise.title}\n" in page
        assert set(promise.bugs) <= set(MUTATIONS)
    assert page.count("```mermaid") == len(PROMISES)
    assert page.endswith("\n" + TAIL)


def test_each_rule_that_a_planted_bug_breaks_is_on_the_page() -> None:
    page = (REPOSITORY / PAGE).read_text()
    rules = {rule for mutation in MUTATIONS.values() for rule in mutation.breaks}
    assert {rule for rule in rules if f"## {rule}:" not in page and f"`{rule}`" not in page} == set()


def test_a_story_is_found_drawn_and_made_shorter() -> None:
    silence()
    promise = next(promise for promise in PROMISES if promise.rule == "I12")
    stories = (tell(promise, "every-member", seed) for seed in range(SEED_COUNT))
    story = next(found for found in stories if found is not None)
    least = shorter(promise, story)
    assert len(least.lines) <= len(story.lines)
    assert least.lines[0] == "sequenceDiagram"
    drawn = "\n".join(least.lines)
    assert "segment 1 is open on g" in drawn
    assert "-->>p1_" in least.lines[-2], "a producer was told ok, and that is what is wrong"
    assert "is on g" in least.lines[-1], "and it is said which single disk has the message"
    assert "left out" in section(promise, least).lower()


def test_words_of_applications_and_faults_become_notes() -> None:
    drawing = Drawing()
    for who, text in (
        ("p1.0", "application sends [7, 8]"),
        ("early.0/1", "is given 8 at 1:1 (maybe again)"),
        ("p1.0", "application is told: [7, 8] ok"),
        ("FAULT", "cut [('g0-1', 'g1-0')]; nothing # passes"),
        ("p1.0", "◀ Timer()"),
    ):
        drawing.take(Seen(who, Words(text)))
    assert [line for _, line in drawing.lines] == [
        "Note over early_0: is given b at 1:1 (maybe again)",
        "Note over p1_0: a b is ok",
        "Note over g0_1,g1_0: cut [('g0-1', 'g1-0')], nothing passes",
    ]
