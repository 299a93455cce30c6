"""Optional fields of requests: one that is set and empty is refused, and does not mean any."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, NoReturn

import pytest
from seriatim_api.errors import BadRequestError
from seriatim_api.ids import MemberId, RunId
from seriatim_api.v1 import broker_pb2, publications_pb2
from seriatim_broker.rpc.calls.services import named
from seriatim_broker.rpc.servicers.admin import AdminServicer
from seriatim_broker.rpc.servicers.publications import PublicationsServicer
from seriatim_broker.rpc.servicers.topic_admin import TopicAdmin

NOW = RunId(MemberId("g0-0", "now"), 5)


class Refused(Exception):  # noqa: N818 - it stands for the end of a call
    """The call ended with a status."""


class Context:
    """A call whose end is an exception."""

    async def abort(self, _code: object, details: str, *_more: object) -> NoReturn:
        raise Refused(details)


def test_a_field_that_is_not_set_is_none_and_an_empty_one_is_refused() -> None:
    request = broker_pb2.DeleteTopicRequest(name="t")
    assert named(request, "incarnation") is None
    request.incarnation = "a"
    assert named(request, "incarnation") == "a"
    request.incarnation = ""
    with pytest.raises(BadRequestError, match="`incarnation` is set and empty"):
        named(broker_pb2.DeleteTopicRequest.FromString(request.SerializeToString()), "incarnation")


@pytest.mark.parametrize(
    ("servicer", "method", "request_"),
    [
        (TopicAdmin, "DeleteTopic", broker_pb2.DeleteTopicRequest(name="t", incarnation="")),
        (TopicAdmin, "UpdateTopic", broker_pb2.UpdateTopicRequest(name="t", incarnation="")),
        (AdminServicer, "SwitchPartition", broker_pb2.SwitchPartitionRequest(partition_id=1, target_group="")),
        (AdminServicer, "SwitchPartition", broker_pb2.SwitchPartitionRequest(partition_id=1, target_master="")),
        (PublicationsServicer, "ListWriters", publications_pb2.ListWritersRequest(topic="")),
    ],
)
async def test_a_call_refuses_a_name_that_is_set_and_empty(servicer: Any, method: str, request_: Any) -> None:
    made = servicer.__new__(servicer)
    made._services = SimpleNamespace(keys=None)
    with pytest.raises(Refused, match="is set and empty"):
        await getattr(made, method)(request_, Context())


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({}, "names the run that has ended"),
        ({"run": 5, "incarnation": ""}, "`incarnation` is set and empty"),
        ({"run": 6}, "run 6 of g0-0 has not begun: 5 is the last one"),
        ({"run": 6, "incarnation": "now"}, "has not begun"),
    ],
)
async def test_a_certificate_names_its_run_and_no_empty_disk(fields: dict[str, Any], text: str) -> None:
    admin: Any = AdminServicer.__new__(AdminServicer)
    admin._services = SimpleNamespace(directory=SimpleNamespace(member_run_of=lambda _broker: NOW))
    with pytest.raises(Refused, match=text):
        await admin.DeclareDead(broker_pb2.DeclareDeadRequest(broker="g0-0", issuer="me", **fields), Context())
