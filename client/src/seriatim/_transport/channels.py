"""Channels to brokers: one for each address and purpose, so that bulk on one never delays a question on another.

A channel whose connection was lost is given up: gRPC would take it up again, when it is next used, at the address that
the broker's name had then, and a pod that was restarted has another. So whoever connects again asks for the name
again; and connections that are kept warm are made anew when they are lost, not when they are needed. One that is still
not there when it is needed is made anew as well: it may be on its way to an address where nobody lives any more.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any, Final, Literal

import grpc
import grpc.aio
from seriatim_api.dialing import DIAL_OPTIONS

from seriatim._tls import Tls
from seriatim._transport.certificates import Certificates, explain
from seriatim._transport.silence import Silence

Purpose = Literal["append", "consume", "range", "ask"]

MESSAGE_SIZE_BYTES_MAX: Final = 32 << 20
"""The brokers' own limit for one gRPC message."""

RETIRED_GRACE_S: Final = 7 * 86_400.0
"""How long what began over a channel that was given up may go on there; streams live as long as their users."""

WARM_MAX: Final = 16
"""Connections that are kept warm to brokers that may take over next; the one that was named longest ago makes room."""

COLD_S: Final = 60.0
"""A connection that did not come about for so long is no longer tried, unless somebody asks for it."""

SLOW_S: Final = 0.3
"""A connection that takes longer is not waited for by those who need it now; a TLS handshake takes some 20 ms."""

_ONCE_CONNECTED: Final = (grpc.ChannelConnectivity.READY, grpc.ChannelConnectivity.IDLE)

_OPTIONS: Final = (
    *DIAL_OPTIONS,
    ("grpc.max_receive_message_length", MESSAGE_SIZE_BYTES_MAX),
    ("grpc.max_send_message_length", -1),
    # gRPC's defaults (1 s growing to 120 s) find a broker that is back a second late.
    ("grpc.initial_reconnect_backoff_ms", 20),
    # How long an attempt may take, whatever its name says; below some hundred milliseconds a busy machine answers
    # none in time, and the attempts themselves keep it busy.
    ("grpc.min_reconnect_backoff_ms", 1_500),
    ("grpc.max_reconnect_backoff_ms", 200),
    ("grpc.http2.lookahead_bytes", 1 << 20),
)


class Channels:
    """Opens channels on demand and closes them all at the end; what comes over any of them ends the silence.

    Args:
        tls: How brokers are spoken to with TLS; None speaks plain text.

    Raises:
        PreconditionError: The certificates cannot be used; the text says why.
    """

    def __init__(self, tls: Tls | None = None) -> None:
        self.silence = Silence()
        self._certificates = Certificates(tls) if tls is not None else None
        self._generation = 0
        self._channels: dict[tuple[str, Purpose], Any] = {}
        self._opened_at: dict[Any, float] = {}  # of those in use, by the loop's clock
        self._retired: dict[Any, None] = {}
        self._warm: dict[str, None] = {}
        self._closing: set[asyncio.Task[None]] = set()
        self._watching: set[asyncio.Task[None]] = set()

    def get(self, address: str, purpose: Purpose) -> Any:
        """The channel; connects when it is first used."""
        if self._certificates is not None and self._certificates.generation != self._generation:
            self._generation = self._certificates.generation
            self._retire_all()
        channel = self._channels.get((address, purpose))
        if channel is not None and self._is_slow(channel):
            del self._channels[address, purpose]
            self._retire(address, channel)
            channel = None
        if channel is None:
            channel = self._channels[address, purpose] = self._open(address)
            self._opened_at[channel] = asyncio.get_running_loop().time()
            task = asyncio.create_task(self._watch(address, purpose, channel), name=f"watch {address}")
            self._watching.add(task)
            task.add_done_callback(self._watching.discard)
        return channel

    def _open(self, address: str) -> Any:
        if self._certificates is None:
            return grpc.aio.insecure_channel(address, options=_OPTIONS)
        credentials, options = self._certificates.credentials()
        return grpc.aio.secure_channel(address, credentials, options=(*_OPTIONS, *options))

    def _is_slow(self, channel: Any) -> bool:
        """Whether it is not connected although it had the time."""
        if channel.get_state() is grpc.ChannelConnectivity.READY:
            return False
        return asyncio.get_running_loop().time() - self._opened_at[channel] > SLOW_S

    async def _watch(self, address: str, purpose: Purpose, channel: Any) -> None:
        """Give the channel up when its connection is lost, or does not come about; what is under way on it goes on."""
        is_lost = False
        with suppress(TimeoutError, grpc.aio.UsageError):
            async with asyncio.timeout(COLD_S):
                if channel.get_state() is grpc.ChannelConnectivity.IDLE:
                    # Not until it is seen to be another: on a busy machine it may be IDLE again by the time we are
                    # told, connected and lost unseen.
                    await channel.wait_for_state_change(grpc.ChannelConnectivity.IDLE)
                # From an attempt it goes to READY; from there only, perhaps unseen, back to IDLE.
                await _wait_for(channel, lambda state: state in _ONCE_CONNECTED)
            await _wait_for(channel, lambda state: state is not grpc.ChannelConnectivity.READY)
            is_lost = True
        if self._channels.get((address, purpose)) is not channel:
            return
        del self._channels[address, purpose]
        self._retire(address, channel)
        if purpose == "append" and address in self._warm:
            del self._warm[address]
            if is_lost:
                self.warm(address)

    def _retire(self, address: str, channel: Any) -> None:
        self._opened_at.pop(channel, None)
        self._retired[channel] = None
        self._close_later(address, self._close_unused(channel))

    def _retire_all(self) -> None:
        """The certificates have changed: what is begun from now on has channels of its own.

        A channel keeps the certificates that it was made with, also when it connects again. What is under way on it
        goes on; it is closed when the last of that has ended.
        """
        retired, self._channels = self._channels, {}
        self._warm.clear()
        for (address, _), channel in retired.items():
            self._retire(address, channel)

    async def _close_unused(self, channel: Any) -> None:
        await channel.close(RETIRED_GRACE_S)
        self._retired.pop(channel, None)

    def explain(self, details: str | None) -> tuple[str, bool]:
        """Why a connection failed, for people, from gRPC's words; and whether TLS is the cause."""
        return explain(details, self._certificates)

    def drop(self, address: str, purpose: Purpose, channel: Any) -> None:
        """Give up a connection that has gone silent; the next `get` makes another. One that took its place stays."""
        is_in_use = self._channels.get((address, purpose)) is channel
        if is_in_use:
            del self._channels[address, purpose]
            self._opened_at.pop(channel, None)
            self._close_later(address, channel.close(None))

    def _close_later(self, address: str, closing: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(closing, name=f"close {address}")
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)

    def warm(self, address: str) -> None:
        """Connect for appending before it is needed, and stay so; see `WARM_MAX`, `COLD_S`."""
        if not address:
            return
        if address not in self._warm:
            # When it is watched, which begins in the next turn of the loop: what comes before is not seen.
            asyncio.get_running_loop().call_soon(_connect, self.get(address, "append"))
        self._warm.pop(address, None)
        self._warm[address] = None
        if len(self._warm) > WARM_MAX:
            del self._warm[next(iter(self._warm))]

    async def close(self) -> None:
        """Close all; calls under way are cancelled."""
        self.silence.stop()
        for task in self._watching:
            task.cancel()
        channels = [*self._channels.values(), *self._retired]
        self._channels.clear()
        await asyncio.gather(*self._watching, return_exceptions=True)
        await asyncio.gather(*(channel.close(None) for channel in channels), *self._closing)


def _connect(channel: Any) -> None:
    with suppress(grpc.aio.UsageError):  # it was closed
        channel.get_state(try_to_connect=True)


async def _wait_for(channel: Any, is_reached: Callable[[grpc.ChannelConnectivity], bool]) -> None:
    """Wait until a channel's state is one of those; for ever if it never is.

    Raises:
        grpc.aio.UsageError: It was closed.
    """
    while not is_reached(state := channel.get_state()):
        await channel.wait_for_state_change(state)
