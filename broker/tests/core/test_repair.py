"""Repair of a damaged copy: piece by piece, from here where it can be read, from the others where it cannot."""

from __future__ import annotations

from seriatim_broker.core.values import effects as fx
from seriatim_broker.core.values import events as ev
from seriatim_broker.core.values import messages as msg
from seriatim_broker.core.values.chain import trim
from seriatim_broker.core.values.log import Batch, Rewrite

from .support import M00, M01, SECOND, P, Serving


def damaged(**options: object) -> Serving:
    """A read for another member found damage; that member is linked."""
    bench = Serving(**options)  # type: ignore[arg-type]
    bench.link(M01)
    bench.hear(M01, msg.CopyRequest(P, 1, 0, 1000, want_table=False))
    answer(bench, None)
    return bench


def answer(bench: Serving, batches: tuple[Batch, ...] | None) -> None:
    """The disk answers the newest read; None: it is damaged there."""
    serial = bench.all(fx.ReadLog)[-1].serial
    bench.do(ev.LogRead(serial, batches, is_damaged=batches is None))


def rewritten(bench: Serving) -> list[int]:
    """The indexes that were written again."""
    return [batch.header.base_index for write in bench.writes(Rewrite) for batch in write.batches]


def asked(bench: Serving) -> list[int]:
    """From where batches alone were asked of others."""
    return [request.from_index for request in bench.sent(msg.CopyRequest) if not request.want_table]


def notes(bench: Serving) -> list[str]:
    return [note.name for note in bench.all(fx.Note)]


def test_what_is_good_here_is_taken_from_here_and_the_rest_from_the_other_member() -> None:
    bench = damaged()
    assert notes(bench) == ["copy_damaged"]
    assert bench.all(fx.ReadLog)[-1].from_index == 0
    answer(bench, bench.batches[:2])
    assert rewritten(bench) == [0, 1]
    bench.persist()
    assert bench.all(fx.ReadLog)[-1].from_index == 2
    answer(bench, None)
    assert asked(bench) == [2]
    bench.hear(M01, msg.CopyAnswer(P, 1, 2, True, bench.batches[2:3], None))
    bench.persist()
    answer(bench, bench.batches[3:])
    bench.persist()
    assert rewritten(bench) == [0, 1, 2, 3, 4]
    assert notes(bench) == ["copy_damaged", "copy_repaired"]
    assert not bench.part.repairs


def test_the_next_piece_waits_until_the_last_one_is_on_the_disk() -> None:
    bench = damaged()
    answer(bench, bench.batches[:2])
    assert bench.all(fx.ReadLog)[-1].from_index == 0
    assert notes(bench) == ["copy_damaged"]


def test_a_piece_that_does_not_continue_the_chain_is_not_taken() -> None:
    bench = damaged()
    answer(bench, None)
    bench.hear(M01, msg.CopyAnswer(P, 1, 0, True, bench.batches[1:], None))
    assert not rewritten(bench)
    bench.clear()
    bench.wait(2 * SECOND, (M01,))
    assert set(asked(bench)) == {0}, "asked again"


def test_what_cannot_be_had_now_is_asked_for_when_somebody_is_there() -> None:
    bench = damaged()
    bench.unlink(M01)
    answer(bench, None)
    assert not asked(bench)
    bench.link(M01)
    bench.wait(2 * SECOND, (M01,))
    assert asked(bench)


def test_damage_that_is_found_twice_is_one_repair() -> None:
    bench = damaged()
    bench.hear(M01, msg.CopyRequest(P, 1, 0, 1000, want_table=False))
    answer(bench, None)
    assert notes(bench) == ["copy_damaged"]


def test_a_read_that_failed_for_another_reason_repairs_nothing() -> None:
    bench = Serving(member=M00)
    bench.link(M01)
    bench.hear(M01, msg.CopyRequest(P, 1, 0, 1000, want_table=False))
    bench.do(ev.LogRead(bench.all(fx.ReadLog)[-1].serial, None))
    assert not notes(bench)
    assert not bench.sent(msg.CopyAnswer, M01)[-1].available


def test_repair_of_a_piece_that_is_dropped_meanwhile_ends() -> None:
    bench = damaged()
    answer(bench, None)
    assert asked(bench) == [0]
    assert bench.part.chain is not None
    bench.read_chain(trim(bench.part.chain, 2, None, 1))
    bench.hear(M01, msg.CopyAnswer(P, 1, 0, False, (), None))
    bench.wait(SECOND, (M01,))
    assert not bench.part.repairs
    assert notes(bench) == ["copy_damaged", "copy_repaired"]
