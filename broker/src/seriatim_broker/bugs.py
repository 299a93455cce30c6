"""A broken assertion in a call that this process serves is given to the event loop's exception handler.

In a broker's process that handler ends the process (`serving`). Without this module gRPC logs what a servicer raises,
ends that one call and goes on, with the state that the bug left. It would be the same with a task of a call, because
the call looks at its task only at its end, and not at how the task ended.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import grpc


class ServedCalls(grpc.aio.ServerInterceptor):  # type: ignore[misc]  # grpc has no types
    """Give it to a server as an interceptor: it guards each call of all servicers."""

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[grpc.RpcMethodHandler | None]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> grpc.RpcMethodHandler | None:
        """The handler of the call, guarded; None if there is none."""
        handler = await continuation(handler_call_details)
        if handler is None:
            return None
        kind = f"{_flow(handler.request_streaming)}_{_flow(handler.response_streaming)}"
        make = getattr(grpc, f"{kind}_rpc_method_handler")
        method = _guarded(getattr(handler, kind), handler_call_details.method)
        return make(method, handler.request_deserializer, handler.response_serializer)


def end_at_bug(task: asyncio.Task[Any]) -> None:
    """A task's done callback: whoever made the task need not look at how it ended."""
    error = None if task.cancelled() else task.exception()
    if isinstance(error, AssertionError):
        _tell(f"task {task.get_name()!r}", error)


def _flow(is_stream: bool) -> str:
    return "stream" if is_stream else "unary"


def _guarded(method: Callable[..., Any], name: str) -> Callable[..., Any]:
    """The same method; gRPC tells coroutines and generators apart by their kind of function."""
    if inspect.isasyncgenfunction(method):

        async def stream(request: Any, context: Any) -> AsyncIterator[Any]:
            try:
                async for response in method(request, context):
                    yield response
            except AssertionError as exc:
                _tell(name, exc)
                raise

        return stream
    assert inspect.iscoroutinefunction(method), f"{name} is served by a coroutine"

    async def call(request: Any, context: Any) -> Any:
        try:
            return await method(request, context)
        except AssertionError as exc:
            _tell(name, exc)
            raise

    return call


def _tell(where: str, error: AssertionError) -> None:
    context = {"message": f"a broken assertion in {where}", "exception": error}
    asyncio.get_running_loop().call_exception_handler(context)
