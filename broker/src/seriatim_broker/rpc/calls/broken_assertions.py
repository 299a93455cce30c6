"""A broken assertion in a served call goes to the event loop's exception handler.

In a broker's process that handler ends the process (`serving`). Without this module gRPC would log the error, end that
one call and continue, with the state that the bug left. The task of a call has the same problem: the call waits for its
task, but does not look at the task's error.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import grpc


class ServedCalls(grpc.aio.ServerInterceptor):  # type: ignore[misc]  # grpc has no types
    """An interceptor for a gRPC server. It guards each call of all servicers."""

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[grpc.RpcMethodHandler | None]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> grpc.RpcMethodHandler | None:
        """The handler of the call, with the guard around it; None if no servicer has this call."""
        handler = await continuation(handler_call_details)
        if handler is None:
            return None
        kind = f"{_flow(handler.request_streaming)}_{_flow(handler.response_streaming)}"
        make = getattr(grpc, f"{kind}_rpc_method_handler")
        method = _guarded(getattr(handler, kind), handler_call_details.method)
        return make(method, handler.request_deserializer, handler.response_serializer)


def end_at_bug(task: asyncio.Task[Any]) -> None:
    """A done callback for tasks. With it, the code that made the task need not look at the task's error."""
    error = None if task.cancelled() else task.exception()
    if isinstance(error, AssertionError):
        _tell(f"task {task.get_name()!r}", error)


def _flow(is_stream: bool) -> str:
    return "stream" if is_stream else "unary"


def _guarded(method: Callable[..., Any], name: str) -> Callable[..., Any]:
    """The method with the guard around it, of the same kind.

    gRPC looks at the kind of the function to know whether it gives one response (a coroutine) or a stream (an async
    generator).
    """
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
