"""What is known of objects, when news arrive out of their order."""

from __future__ import annotations

from typing import Any

from seriatim_operator.reconcile.cache import Cache


def topic(version: str, uid: str = "u1", **metadata: Any) -> dict[str, Any]:
    return {"metadata": {"namespace": "shop", "name": "payments", "uid": uid, "resourceVersion": version, **metadata}}


def known(cache: Cache) -> dict[str, Any]:
    found = cache.get("Topic", "shop", "payments")
    assert found is not None
    metadata: dict[str, Any] = found["metadata"]
    return metadata


def test_the_late_answer_to_a_write_does_not_hide_a_deletion() -> None:
    cache = Cache()
    cache.put("Topic", topic("98"))
    cache.put("Topic", topic("100", deletionTimestamp="2026-11-20T22:33:02Z"))
    cache.put("Topic", topic("99"))

    assert known(cache)["deletionTimestamp"] == "2026-11-20T22:33:02Z"


def test_versions_are_numbers() -> None:
    cache = Cache()
    cache.put("Topic", topic("99"))
    cache.put("Topic", topic("100"))

    assert known(cache)["resourceVersion"] == "100"


def test_a_namesake_made_anew_is_another_object() -> None:
    cache = Cache()
    cache.put("Topic", topic("100"))
    cache.put("Topic", topic("99", uid="u2"))

    assert known(cache)["uid"] == "u2"


def test_the_answer_to_a_write_does_not_bring_back_what_is_gone() -> None:
    cache = Cache()
    cache.put("Topic", topic("98"))
    cache.drop("Topic", topic("100"))
    cache.answered("Topic", topic("99"))

    assert cache.count("Topic") == 0


def test_the_answer_to_a_write_is_no_news_of_a_namesake() -> None:
    cache = Cache()
    cache.put("Topic", topic("98"))
    cache.answered("Topic", topic("99"))
    assert known(cache)["resourceVersion"] == "99"
    cache.put("Topic", topic("101", uid="u2"))
    cache.answered("Topic", topic("100"))

    assert known(cache)["uid"] == "u2"
