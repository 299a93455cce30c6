"""Channels to brokers: one for each address and purpose, so that bulk on one never delays a question on another.

If a channel loses its connection, the client gives the channel up. Without it: 1. A pod restarts, and has another IP
address. 2. The channel is used again. 3. gRPC connects to the IP address that the broker's name had before. With a new
channel, gRPC looks the name up again.

The client replaces connections that are kept warm when they are lost, not when they are needed. If a channel is not
connected when it is needed, the client replaces it too, because gRPC may be dialing an old IP address.
"""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final, Literal

import grpc
import grpc.aio
from seriatim_api.network.grpc_options import DIAL_OPTIONS, PING_OPTIONS
from seriatim_api.network.host_lookup import HostLookup
from seriatim_api.network.round_trips import RoundTrips

from seriatim._core.credit import CreditPool
from seriatim._runtime.home import Home
from seriatim._transport.reasons import explain
from seriatim._transport.silence import Silence

if TYPE_CHECKING:
    from seriatim._transport.certificates import Certificates
    from seriatim._values.tls import Tls

StreamPurpose = Literal["append", "consume"]
Purpose = Literal["append", "consume", "range", "ask"]

MESSAGE_SIZE_BYTES_MAX: Final = 32 << 20
"""The brokers' own limit for one gRPC message."""

RETIRED_GRACE_S: Final = 7 * 86_400.0
"""Seconds for which calls that began on a channel may continue after it was given up. Streams live as long as their
users."""

WARM_MAX: Final = 16
"""The most connections that are kept warm, to brokers that may take over next. The one that was named longest ago is
replaced first."""

COLD_S: Final = 60.0
"""If a connection was not made in this many seconds, the client stops trying until a call needs it."""

SLOW_S: Final = 0.3
"""If a connection takes longer than this many seconds, a call that needs it makes another one. A TLS handshake takes
about 20 ms."""

WATCH_END_S: Final = 0.2
"""At the end the client waits this many seconds until gRPC has ended the watches of the channels."""

_ONCE_CONNECTED: Final = (grpc.ChannelConnectivity.READY, grpc.ChannelConnectivity.IDLE)

_OPTIONS: Final = (
    *DIAL_OPTIONS,
    *PING_OPTIONS,
    ("grpc.max_receive_message_length", MESSAGE_SIZE_BYTES_MAX),
    ("grpc.max_send_message_length", -1),
    # gRPC's default back-off (1 s growing to 120 s) would find a broker that is back a second too late.
    ("grpc.initial_reconnect_backoff_ms", 20),
    # In spite of its name, this is the time that one attempt to connect may take. With less than some hundred
    # milliseconds, a busy machine would answer no attempt in time, and the attempts themselves would keep it busy.
    ("grpc.min_reconnect_backoff_ms", 1_500),
    ("grpc.max_reconnect_backoff_ms", 200),
    ("grpc.http2.lookahead_bytes", 1 << 20),
)


class Channels:
    """Opens channels on demand, and closes all of them at the end. Any answer on one of them ends the silence.

    Args:
        tls: The files for TLS; None: plain text.

    Attributes:
        home: Where the client of these channels works.
        round_trips: How long brokers' answers are on their way.
        credit_pool: What streams from far brokers may have more on their way.
        lookup: Looks up hosts for connections without gRPC.

    Raises:
        PreconditionError: The certificates cannot be used, or gRPC cannot be used in this process; the text says why.
    """

    def __init__(self, tls: Tls | None = None) -> None:
        self.home = Home()
        self.silence = Silence()
        self.round_trips = RoundTrips()
        self.credit_pool = CreditPool()
        self.lookup = HostLookup()
        self._certificates: Certificates | None = None
        if tls is not None:
            from seriatim._transport.certificates import Certificates

            self._certificates = Certificates(tls)
        self._generation = 0
        self._channels: dict[tuple[str, Purpose], Any] = {}
        self._opened_at: dict[Any, float] = {}  # for each channel in use, by the loop's clock
        self._retired: dict[Any, None] = {}
        self._warm: dict[str, None] = {}
        self._closing: set[asyncio.Task[None]] = set()
        self._watching: set[asyncio.Task[None]] = set()

    def get(self, address: str, purpose: Purpose) -> Any:
        """The channel to an address. It connects when it is first used.

        Raises:
            PreconditionError: The client is closed, or it was connected in another event loop or process.
        """
        self.home.check_open()
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

    def dialing(self) -> tuple[ssl.SSLContext | None, str]:
        """For a connection without gRPC: what TLS needs (None: plain text), and the name to check if not the host."""
        if self._certificates is None:
            return None, ""
        return self._certificates.dialing()

    def _is_slow(self, channel: Any) -> bool:
        """Whether the channel is not connected after `SLOW_S`."""
        if channel.get_state() is grpc.ChannelConnectivity.READY:
            return False
        return asyncio.get_running_loop().time() - self._opened_at[channel] > SLOW_S

    async def _watch(self, address: str, purpose: Purpose, channel: Any) -> None:
        """Give the channel up when its connection is lost or was not made in `COLD_S`. Calls under way on it
        continue."""
        is_lost = False
        with suppress(TimeoutError, grpc.aio.UsageError):
            async with asyncio.timeout(COLD_S):
                if channel.get_state() is grpc.ChannelConnectivity.IDLE:
                    # Wait for one change only, and not for another state: on a busy machine the channel may connect and
                    # lose its connection before we are notified, and then it is IDLE again.
                    await channel.wait_for_state_change(grpc.ChannelConnectivity.IDLE)
                # After an attempt to connect it becomes READY. Only from there, perhaps unseen, it becomes IDLE again.
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
        """The certificates have changed: new calls get new channels.

        A channel keeps its first certificates, also when it connects again. Calls under way on it continue. It is
        closed when the last of them has ended.
        """
        retired, self._channels = self._channels, {}
        self._warm.clear()
        for (address, _), channel in retired.items():
            self._retire(address, channel)

    async def _close_unused(self, channel: Any) -> None:
        await channel.close(RETIRED_GRACE_S)
        self._retired.pop(channel, None)

    def explain(self, details: str | None) -> tuple[str, bool]:
        """Why a connection failed, for humans, from gRPC's details; and whether TLS is the cause."""
        return explain(details, self._certificates)

    def drop(self, address: str, purpose: Purpose, channel: Any) -> None:
        """Close the channel of a silent connection. The next `get` makes another. A channel that replaced it stays."""
        is_in_use = self._channels.get((address, purpose)) is channel
        if is_in_use:
            del self._channels[address, purpose]
            self._opened_at.pop(channel, None)
            self._close_later(address, channel.close(None))

    def renew(self, address: str, purpose: Purpose, channel: Any) -> None:
        """Use another channel for new calls, because this one may be silent. Calls under way on it continue."""
        if self._channels.get((address, purpose)) is channel:
            del self._channels[address, purpose]
            self._retire(address, channel)

    def _close_later(self, address: str, closing: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(closing, name=f"close {address}")
        self._closing.add(task)
        task.add_done_callback(self._closing.discard)

    def warm(self, address: str) -> None:
        """Connect for appending before the connection is needed, and keep it; see `WARM_MAX` and `COLD_S`."""
        if not address:
            return
        if address not in self._warm:
            # Connect in the next turn of the loop, because the watch begins only then and would miss earlier changes.
            asyncio.get_running_loop().call_soon(_connect, self.get(address, "append"))
        self._warm.pop(address, None)
        self._warm[address] = None
        if len(self._warm) > WARM_MAX:
            del self._warm[next(iter(self._warm))]

    def rest(self, address: str) -> None:
        """Stop trying to connect for appending, until a call needs the connection. Calls under way continue.

        A channel without a connection dials five times a second.
        """
        channel = self._channels.get((address, "append"))
        if channel is not None and channel.get_state() is not grpc.ChannelConnectivity.READY:
            self._warm.pop(address, None)
            self.renew(address, "append", channel)

    async def close(self) -> None:
        """Close all channels. Calls under way are cancelled."""
        self.home.close()
        self.silence.stop()
        channels = [*self._channels.values(), *self._retired]
        self._channels.clear()
        self._opened_at.clear()
        await asyncio.gather(*(channel.close(None) for channel in channels), *self._closing)
        # A watch ends when its channel and the last call on it are freed. It is not cancelled at once: gRPC would tell
        # its end to this event loop after the loop itself was closed, and another loop of the process would print an
        # error.
        if self._watching:
            _, watching = await asyncio.wait(self._watching, timeout=WATCH_END_S)
            for task in watching:
                task.cancel()
            await asyncio.gather(*watching, return_exceptions=True)
        self._retired.clear()


def _connect(channel: Any) -> None:
    with suppress(grpc.aio.UsageError):  # the channel was closed
        channel.get_state(try_to_connect=True)


async def _wait_for(channel: Any, is_reached: Callable[[grpc.ChannelConnectivity], bool]) -> None:
    """Wait until a channel's state is reached; for ever if it never is.

    Raises:
        grpc.aio.UsageError: The channel was closed.
    """
    while not is_reached(state := channel.get_state()):
        await channel.wait_for_state_change(state)
