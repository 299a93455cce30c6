"""Producer ids of exclusive producers."""

from __future__ import annotations

from seriatim_api.dead_letters import is_brokers_own
from seriatim_api.delayed import fire_producer
from seriatim_api.exclusive import exclusive_producer, is_exclusive


def test_ids_differ_by_topic_and_name_and_are_not_those_of_brokers() -> None:
    ids = [exclusive_producer(*of) for of in ((1, "a"), (1, "b"), (2, "a"), (11, "a"))]
    assert len({*ids}) == len(ids)
    assert all(len(id_) == 16 and is_exclusive(id_) and not is_brokers_own(id_) for id_ in ids)
    assert not is_exclusive(fire_producer(1, 1))
