"""What every call of the kubelet gets: an id in each of its log lines, its duration, a count, and notice of its end."""

from __future__ import annotations

import asyncio
import logging
import time
from typing import TYPE_CHECKING, Any, Protocol

import grpc
import grpc.aio

from driver import logs

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

log = logging.getLogger(__name__)

OPERATIONS = {"NodePrepareResources": "prepare", "NodeUnprepareResources": "unprepare"}
"""The methods that are counted, and under which name."""


class CallObserver(Protocol):
    """Who counts calls."""

    def call_started(self, operation: str) -> None:
        """Note a call's start."""
        ...

    def call_finished(self, operation: str, seconds: float) -> None:
        """Note its end, whatever came of it."""
        ...


class CallInterceptor(grpc.aio.ServerInterceptor):
    """Wraps the methods of a server. A failure or cancellation of one call is logged and costs that call only."""

    def __init__(self, observer: CallObserver) -> None:
        self._observer = observer
        self._wrapped: dict[grpc.RpcMethodHandler[Any, Any], grpc.RpcMethodHandler[Any, Any]] = {}

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[grpc.RpcMethodHandler[Any, Any] | None]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> grpc.RpcMethodHandler[Any, Any] | None:
        """Return the method's handler, wrapped."""
        handler = await continuation(handler_call_details)
        if handler is None:
            log.warning("the kubelet called an unknown method %s", handler_call_details.method)
            return None
        if handler not in self._wrapped:
            self._wrapped[handler] = self._wrap(handler_call_details.method, handler)
        return self._wrapped[handler]

    def _wrap(self, method: str, handler: grpc.RpcMethodHandler[Any, Any]) -> grpc.RpcMethodHandler[Any, Any]:
        if handler.unary_unary is not None:
            return grpc.unary_unary_rpc_method_handler(
                self._unary(method, handler.unary_unary), handler.request_deserializer, handler.response_serializer
            )
        if handler.unary_stream is not None:
            return grpc.unary_stream_rpc_method_handler(
                self._stream(method, handler.unary_stream), handler.request_deserializer, handler.response_serializer
            )
        return handler

    def _unary(self, method: str, behaviour: Callable[..., Any]) -> Callable[..., Any]:
        async def wrapped(request: Any, context: Any) -> Any:
            with _Call(method, self._observer):
                return await behaviour(request, context)

        return wrapped

    def _stream(self, method: str, behaviour: Callable[..., Any]) -> Callable[..., Any]:
        async def wrapped(request: Any, context: Any) -> AsyncIterator[Any]:
            with _Call(method, self._observer):
                async for answer in behaviour(request, context):
                    yield answer

        return wrapped


class _Call:
    """One call, from start to end."""

    def __init__(self, method: str, observer: CallObserver) -> None:
        self._name = method.rpartition("/")[2]
        self._operation = OPERATIONS.get(self._name)
        self._observer = observer
        self._context = logs.call()

    def __enter__(self) -> None:
        self._context.__enter__()
        self._start = time.monotonic()
        log.debug("%s begins", self._name)
        if self._operation is not None:
            self._observer.call_started(self._operation)

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: Any) -> None:
        seconds = time.monotonic() - self._start
        if self._operation is not None:
            self._observer.call_finished(self._operation, seconds)
        if kind is None:
            log.debug("%s took %.1f ms", self._name, seconds * 1000)
        elif issubclass(kind, asyncio.CancelledError | GeneratorExit):
            level = logging.INFO if self._operation is None else logging.WARNING  # streams end no other way
            log.log(level, "%s was cancelled by its caller, or as we stop, after %.1f ms", self._name, seconds * 1000)
        elif issubclass(kind, grpc.aio.AbortError):  # a refusal on purpose; who refused has said why
            log.debug("%s was refused after %.1f ms", self._name, seconds * 1000)
        else:
            log.error("%s failed after %.1f ms: %r", self._name, seconds * 1000, error)
        self._context.__exit__(kind, error, trace)
