"""Brokers of the previous version run beside new ones, or return after a decision: they know no publications."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Any, cast

import grpc
import pytest
import pytest_asyncio
from seriatim_api import errors
from seriatim_api.ids import MemberId, PartitionId
from seriatim_api.v1 import broker_pb2, broker_pb2_grpc, publications_pb2, publications_pb2_grpc
from seriatim_broker.core.values import effects as fx
from seriatim_broker.core.values import writers
from seriatim_broker.core.values.messages import FORM_PUBLICATIONS, FORMS
from seriatim_broker.core.values.writers import WriterState
from seriatim_broker.rpc.outbound import BrokerCalls
from seriatim_broker.rpc.publications import PublicationsServicer
from seriatim_broker.rpc.publishing import Publisher
from seriatim_broker.rpc.staging import Staging
from structlog.testing import capture_logs

from . import test_staging
from .test_publishing import WRITER, Cluster, quick

__all__ = ["quick"]

OLD = "g0-1"


class Known(broker_pb2_grpc.RoutingServicer):  # type: ignore[misc]
    """What the version before serves, too."""

    async def GetTopic(self, _request: Any, _context: Any) -> broker_pb2.GetTopicResponse:  # noqa: N802
        return broker_pb2.GetTopicResponse()


class New(publications_pb2_grpc.PublicationsServicer):  # type: ignore[misc]
    """What a broker answers once it is upgraded."""

    async def CarryOut(self, request: Any, _context: Any) -> publications_pb2.CarryOutResponse:  # noqa: N802
        parts = [publications_pb2.CarriedOutPart(partition_id=id_, rows=2) for id_ in request.partition_ids]
        return publications_pb2.CarryOutResponse(parts=parts)


class Neighbour:
    """The other broker: of the version before, until it is upgraded."""

    def __init__(self) -> None:
        self.address = ""
        self._server: grpc.aio.Server | None = None

    async def start(self, *, is_new: bool) -> None:
        """Serve; where it served before, if it did."""
        await self.stop()
        self._server = grpc.aio.server()
        broker_pb2_grpc.add_RoutingServicer_to_server(Known(), self._server)
        if is_new:
            publications_pb2_grpc.add_PublicationsServicer_to_server(New(), self._server)
        port = self._server.add_insecure_port(self.address or "127.0.0.1:0")
        self.address = f"127.0.0.1:{port}"
        await self._server.start()

    async def stop(self) -> None:
        """End."""
        if self._server is not None:
            await self._server.stop(0)

    def peer_address(self, broker: str) -> str | None:
        """As a directory has it."""
        return self.address if broker == OLD else None


@pytest_asyncio.fixture(loop_scope="session")
async def neighbour() -> AsyncIterator[Neighbour]:
    """It runs."""
    found = Neighbour()
    await found.start(is_new=False)
    yield found
    await found.stop()


async def test_a_master_that_was_taken_back_to_the_version_before_is_waited_for_and_not_complained_of(
    neighbour: Neighbour,
) -> None:
    cluster = Cluster()
    await cluster.begin()
    calls = BrokerCalls(cast(Any, neighbour))
    publisher = cluster.publisher = Publisher(cast(Any, cluster), calls, cast(Any, cluster), cast(Any, cluster))
    cluster.master = OLD
    wanted = cluster.wanted()
    await cluster.write(writers.decided(None, wanted, "orders", 4, 0, b"w" * 4))
    with capture_logs() as told, pytest.raises(errors.DeadlineExceededError, match="2 of 2 partitions"):
        await cluster.publish(wanted, 0.5)
    assert not cluster.fed, "its segments are healthy: none is ended for it"
    assert [line["partition"] for line in told if line["event"] == "publication_refused"] == [3, 4], "once each"
    record = await cluster.record()
    assert record is not None
    assert record.state is WriterState.DECIDED
    await neighbour.start(is_new=True)
    await publisher.finish_again(*WRITER)
    record = await cluster.record()
    assert record is not None
    assert (record.state, record.lost_rows) == (WriterState.DONE, 0)
    await calls.close()


async def test_what_only_a_broker_of_the_version_before_has_is_not_gone(neighbour: Neighbour) -> None:
    cluster = test_staging.Cluster(members=(MemberId(OLD, "b" * 32),))
    calls = BrokerCalls(cast(Any, neighbour))
    staging = Staging(cast(Any, cluster), calls, cast(Any, cluster))
    with pytest.raises(errors.UnavailableError, match="no broker gives"):
        await staging.read(test_staging.STAGED)
    found = await staging.fetch(fx.FetchStaged(1, PartitionId(1), test_staging.STAGED))
    assert (found.batch, found.is_gone) == (None, False)
    await calls.close()


@pytest.mark.parametrize("forms", [FORMS & ~FORM_PUBLICATIONS, 0])
async def test_nothing_is_staged_beside_a_broker_that_does_not_say_that_it_knows_publications(forms: int) -> None:
    cluster = Cluster()
    cluster.directory.members["g0-0"].forms = forms
    servicer = PublicationsServicer(*cast(Any, (cluster, None, None, cluster.publisher, None, None, None)))

    class Refused(Exception):  # noqa: N818 - a value
        pass

    class Call:
        async def abort(self, code: grpc.StatusCode, text: str, _metadata: Any) -> None:
            raise Refused(f"{code.name}: {text}")

    with pytest.raises(Refused, match=r"FAILED_PRECONDITION.*upgrade all brokers first"):
        await servicer.PrepareStaging(publications_pb2.PrepareStagingRequest(), Call())
