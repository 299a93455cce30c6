"""Consumers of groups in which order is by key: the client's core, and an application with several hands that fails."""

from __future__ import annotations

from itertools import islice

from seriatim._core import consumer_types as ct
from seriatim._core.keyed_consumer import KeyedPartitionConsumer
from seriatim_api.ids import PartitionId
from seriatim_broker.core.values import effects as fx
from seriatim_broker.core.values.events import ConsumerAcks, ConsumerExtend, ConsumerNack, StartPosition
from seriatim_broker.core.values.keyed import ConsumerMode
from seriatim_broker.testing.simulated_bodies import key_of, messages_in

from ..judge import Judge
from .clients import Clients
from .consumers import BEGINNINGS, SimConsumer

KEYED_GROUPS = ("keyed", "keyed2", "keyed3")
"""The names of the consumer groups in which order is by key."""

DELAYED_KEY = b"k0"
DELAYED_MS = 600_000


class SimKeyedConsumer(SimConsumer):
    """One consumer of the group on one partition."""

    mode = ConsumerMode.KEY_ORDERED
    _core: KeyedPartitionConsumer

    def __init__(
        self,
        clients: Clients,
        judge: Judge,
        partition: PartitionId,
        group: str,
        name: str,
        start: StartPosition = StartPosition.EARLIEST,
    ) -> None:
        super().__init__(clients, judge, partition, group, name, start)
        self._core = KeyedPartitionConsumer(self._config)
        rng = clients.schedule.rng
        self._in_flight_max = rng.choice((4, 20, 200))
        self._run_max = rng.choice((0, 0, 1, 2))
        self._messages: dict[int, tuple[int, ...]] = {}  # of the grants that are held, by token
        self._known: dict[tuple[int, int], int] = {}  # (token, offset) -> the message
        self._sent: dict[int, list[tuple[int, int]]] = {}  # request -> (token, message) that it acknowledges
        self._void: set[int] = set()

    @property
    def carried(self) -> set[int]:
        """Offsets of what would continue at the server of the next segment: grants, and acknowledgements to repeat."""
        if not self.alive:
            return set()
        unconfirmed, _ = self._core.confirmed_by(max(self._core.unconfirmed, default=0))
        held, _ = self._core.held_rows(self._core.grants)
        return {*unconfirmed, *held}

    # ---- what the core wants ------------------------------------------------------------------------

    def _carry_out(self, effect: ct.Effect) -> None:
        match effect:
            case ct.SendAcks():
                self._sent.setdefault(effect.number, [])
                for token, offset in zip(effect.tokens, effect.offsets, strict=True):
                    self._sent[effect.number].append((token, self._known.get((token, offset), -1)))
                self._send(
                    effect.stream,
                    ConsumerAcks(
                        effect.stream, effect.subscription, effect.number, effect.tokens, effect.offsets, effect.started
                    ),
                )
            case ct.SendNack():
                failure = effect.failure
                nack = ConsumerNack(
                    effect.stream, effect.subscription, failure.token, failure.offset, failure.delay_ms, failure.reason,
                    failure.is_last,
                )  # fmt: skip
                self._send(effect.stream, nack)
            case ct.SendExtend():
                if self._schedule.rng.random() < 0.7:  # others are lost
                    extend = ConsumerExtend(
                        effect.stream, effect.subscription, effect.tokens, effect.grant_ms, effect.is_unseen
                    )
                    self._send(effect.stream, extend)
            case ct.TakeGrants():
                self._take(effect)
            case ct.GrantsEnded():
                for token in effect.tokens:
                    self._messages.pop(token, None)
            case ct.Assigned():
                pass
            case _:
                super()._carry_out(effect)

    def _arrived(self, effect: fx.Deliver) -> None:
        event = effect.event
        if isinstance(event, fx.Granted):
            messages = messages_in(event.body)
            at = 0
            for run in event.runs:
                for offset in run.offsets:
                    self._known[run.token, offset] = messages[at]
                    at += 1
            granted = ct.Granted(
                effect.subscription, event.tokens, event.counts, event.offsets, event.server_epoch
            )  # fmt: skip
            self._step(granted)
        elif isinstance(event, fx.AcksConfirmed):
            self._confirmed(event.number)
            self._step(ct.AcksConfirmed(effect.subscription, event.number))
        elif isinstance(event, fx.TokensVoid):
            self._void.update(event.tokens)
            self._step(ct.TokensVoid(effect.subscription, event.tokens))
        elif isinstance(event, fx.Joined):
            self._group_epoch = max(self._group_epoch, event.group_epoch)
            joined = ct.Joined(
                effect.subscription,
                event.active,
                event.segment_no,
                event.index,
                event.token,
                event.group_epoch,
                event.server_epoch,
                paused=event.paused,
                begun_by=BEGINNINGS.get(event.begun_by),
                grant_ms=event.grant_ms,
            )
            self._step(joined)
            self._judge.rules.told_once.joined(self.name, self.partition, self._core.group_epoch)
        else:
            super()._arrived(effect)

    def _confirmed(self, number: int) -> None:
        for known in [known for known in self._core.unconfirmed if known <= number]:  # others were never taken
            messages = [message for token, message in self._sent[known] if token not in self._void]
            self._judge.rules.keyed.confirmed(self.group, self.partition, self._group_epoch, messages)

    # ---- the application ----------------------------------------------------------------------------

    def _take(self, effect: ct.TakeGrants) -> None:
        rng = self._schedule.rng
        size_bytes = 0
        all_offsets = iter(effect.offsets)
        for token, count in zip(effect.tokens, effect.counts, strict=True):
            offsets = self._messages[token] = tuple(islice(all_offsets, count))
            size_bytes += 8 * len(offsets)
            self._schedule.after(rng.randint(0, 20_000), self._work, token, 0)
        stream = self._place_stream
        if stream is not None:
            self._take_more(stream, size_bytes + 192)

    def _work(self, token: int, at: int) -> None:
        """A hand of the application begins to work on a message of a grant."""
        offsets = self._messages.get(token)
        if not self.alive or offsets is None:
            return
        rng = self._schedule.rng
        if self._rests(token, at):
            return
        self._judge.rules.keyed.begun(self.group, self.partition, offsets[at], token)
        if rng.random() < 0.7:  # others end at once, as far as the broker is notified
            self._core.begin(token, self._schedule.now_us)
        drawn = rng.random()
        work_us = rng.randint(100, 20_000) if drawn < 0.97 else rng.randint(500_000, 2_500_000)
        self._schedule.after(work_us, self._finish, token, at)
        self._step(ct.Timer())

    def _rests(self, token: int, at: int) -> bool:
        """The hand of the application does not begin the message now: it does later, or gives the grant back."""
        rng, share = self._schedule.rng, self._clients.options.keyed_rests
        if not share or rng.random() >= share:
            return False
        if rng.random() < 0.5:
            self._schedule.after(rng.randint(1_000, 1_500_000), self._work, token, at)
            return True
        is_unseen = rng.random() < 0.5
        if is_unseen:
            for offset in self._messages[token][at:]:
                message = self._known[token, offset]
                self._judge.rules.keyed.unseen(self.group, self.partition, self._group_epoch, message, token)
        self._tell(f"gives {token:#x} back")
        self._step(ct.Release((token,), is_unseen))
        return True

    def _finish(self, token: int, at: int) -> None:
        offsets = self._messages.get(token)
        if not self.alive or offsets is None:
            return
        rng = self._schedule.rng
        message = self._known[token, offsets[at]]
        is_delayed = self._clients.options.keyed_delayed and key_of(message) == DELAYED_KEY
        if is_delayed or rng.random() < self._clients.options.keyed_failures:
            waits = self._clients.options.keyed_waits
            is_long = is_delayed or (waits > 0 and rng.random() < waits)
            delay_ms = DELAYED_MS if is_long else rng.choice((None, 0, 5, 300))
            if rng.random() < 0.2:
                self._lie(token, offsets[at])  # a request from long ago overtakes the failure
            self._tell(f"fails on {message} under {token:#x}")
            self._judge.rules.keyed.failed(self.group, self.partition, self._group_epoch, message, token)
            self._messages.pop(token, None)
            options = self._clients.options
            gives_up = options.dead_letters and self.partition < options.partition_count and rng.random() < 0.5
            self._step(ct.Fail(token, offsets[at], delay_ms, "drawn", gives_up))
            return
        if rng.random() < 0.02:
            self._lie(token, offsets[at])
        if rng.random() < 0.3:
            self._finish_all(token, offsets[at:])
            return
        self._tell(f"is done with {message} under {token:#x}")
        if self._core.acknowledge(token, offsets[at], self._schedule.now_us):
            place = (self.group, self.partition, self._group_epoch, offsets[at])
            self._judge.rules.keyed.acknowledged(*place, message, token)
        self._step(ct.Timer())
        if at + 1 < len(offsets) and token in self._messages:
            self._work(token, at + 1)

    def _finish_all(self, token: int, offsets: tuple[int, ...]) -> None:
        """The application took a batch, and is done with all that is left of a grant."""
        if self._core.acknowledge_all((token,), self._schedule.now_us):
            for offset in offsets:
                message = self._known[token, offset]
                self._tell(f"is done with {message} under {token:#x}")
                place = (self.group, self.partition, self._group_epoch, offset)
                self._judge.rules.keyed.acknowledged(*place, message, token)
        self._core.hurry(self._schedule.now_us, at_once=True)
        self._step(ct.Timer())

    def _lie(self, token: int, offset: int) -> None:
        """A request that must change nothing: a token that never was, one of another message, a later offset."""
        rng = self._schedule.rng
        stream = self._place_stream
        if stream is None:
            return
        token, offset = rng.choice(((token + (1 << 50), offset), (token, offset + 1000), (token - 1, offset)))
        self._send(stream.number, ConsumerAcks(stream.number, self._core.subscription, 0, (token,), (offset,)))
