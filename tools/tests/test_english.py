"""The rules of `make words` about English find the sentences that they are about, and leave right ones alone.

Vale itself reads the texts (`make words`). This test needs no Vale: it holds the patterns of each rule against
sentences.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

STYLES = Path(__file__).resolve().parents[2] / ".vale/styles/Seriatim"

WRONG = {
    "SoMany": ("At most so many ranges are kept.", "So long a request waits for its answer."),
    "Behind": ("The offset behind the end of the gap.", "It sends the batches behind."),
    "Anew": ("The segment is written anew.",),
    "InOrder": ("The member run ended in order.", "It stops the broker in order."),
    "GoOn": ("The consumer goes on at 2:0.", "Producers go\non."),
    "Tell": ("A member tells the length of its log.", "The loss is told once.", "Consumers are told of the gap."),
    "Administrator": ("The key waits until a person releases it.", "People rewind groups."),
    "Complete": ("Another whole broker group takes the segment.", "The copy is whole."),
}
"""By rule: sentences in which it finds something."""

RIGHT = {
    "SoMany": ("See why so many keys wait.", "It waited for so long that others believed it dead."),
    "Behind": ("The heartbeat waits behind a batch.", "The clock lags behind the master.", "It leaves nothing behind."),
    "Anew": ("Annotate it with `place-anew`.", "anew"),
    "InOrder": ("Messages are delivered in order.", "Rows are read in order of their offsets."),
    "GoOn": ("The bytes that go on the wire.", "It keeps asking."),
    "Tell": (
        "Two records can be told apart.",
        "It tells the consumers that the segment has ended.",
        "A client that is told to end.",
        "A broker cannot tell whether it was there earlier.",
    ),
    "Administrator": ("An administrator releases the key.", "person", "`people` draws it."),
    "Complete": ("The whole cluster stops.", "It is dropped as a whole.", "The value is a whole number."),
}
"""By rule: sentences that it leaves alone, although they have the word."""


def found(rule: str, sentence: str) -> bool:
    """Whether a rule finds something in a sentence."""
    text = yaml.safe_load((STYLES / f"{rule}.yml").read_text(encoding="utf-8"))
    flags = re.IGNORECASE if text["ignorecase"] else 0
    return any(re.search(token, sentence, flags) for token in text["tokens"])


@pytest.mark.parametrize(("rule", "sentence"), [(rule, one) for rule in WRONG for one in WRONG[rule]])
def test_rule_finds_the_planted_sentence(rule: str, sentence: str) -> None:
    assert found(rule, sentence)


@pytest.mark.parametrize(("rule", "sentence"), [(rule, one) for rule in RIGHT for one in RIGHT[rule]])
def test_rule_leaves_the_right_sentence_alone(rule: str, sentence: str) -> None:
    assert not found(rule, sentence)
