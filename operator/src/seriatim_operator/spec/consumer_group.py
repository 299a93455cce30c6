"""ConsumerGroup: a consumer group of a topic: where it begins, how its messages are shared, and what failures cause."""

from __future__ import annotations

from typing import Annotated, ClassVar, Final, Literal

from pydantic import Field

from .base import Model, Resource, Status
from .columns import AGE, Column, condition_columns
from .fields import BROKER_NAME_LENGTH_MAX, ClusterName, DeletionPolicy, LegalName
from .rules import Rule, immutable, matches
from .values import PAUSE_PATTERN, parse_pause_ms

PLACE_PATTERN: Final = (
    "^(Earliest|Latest|[0-9]{4}-(0[1-9]|1[0-2])-(0[1-9]|[12][0-9]|3[01])T([01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9]"
    "([.][0-9]{1,6})?(Z|[+-]([01][0-9]|2[0-3]):[0-5][0-9]))$"
)
Place = Annotated[
    str,
    Field(max_length=40),
    matches(PLACE_PATTERN, "write Earliest, Latest, or a time with its zone, such as 2026-01-31T08:00:00Z"),
]
RewindState = Literal["Done", "Refused"]
GroupMode = Literal["Exclusive", "KeyOrdered", "Shared"]
Delivery = Literal["AtLeastOnce", "AtMostOnce"]
Spread = Literal["Even", "None"]
BackOff = Literal["Fixed", "Exponential", "List"]
WhenExhausted = Literal["Block", "ParkKey", "DeadLetter"]
ConsumerGroupState = Literal["Idle", "Active", "Behind", "Unknown"]

ATTEMPTS_MAX: Final = 1_000
DELAYS_MAX: Final = 32
DELAY_MIN: Final = "1ms"
DELAY_MAX: Final = "168h"
GRANT_MIN: Final = "1s"
GRANT_MAX: Final = "24h"
"""These limits are those of the brokers (`seriatim_api.retry`)."""

PARKED_SHOWN_MAX: Final = 64
"""Partitions with parked keys that the status names."""

DEAD_LETTER_SUFFIX: Final = "dead"

_PAUSE_RULE: Final = Rule(
    f"self.matches('{PAUSE_PATTERN}')", "write a duration with units h, m, s or ms, such as 500ms, 1s or 5m"
)

Delay = Annotated[
    str,
    Field(max_length=20),
    _PAUSE_RULE,
    Rule(
        f"!self.matches('{PAUSE_PATTERN}') || (duration(self) >= duration('{DELAY_MIN}') && "
        f"duration(self) <= duration('{DELAY_MAX}'))",
        f"a delay is from {DELAY_MIN} to {DELAY_MAX}",
    ),
]
"""How long a message waits for its next attempt."""

Grant = Annotated[
    str,
    Field(max_length=20),
    _PAUSE_RULE,
    Rule(
        f"!self.matches('{PAUSE_PATTERN}') || (duration(self) >= duration('{GRANT_MIN}') && "
        f"duration(self) <= duration('{GRANT_MAX}'))",
        f"a grant lasts from {GRANT_MIN} to {GRANT_MAX}",
    ),
]
"""How long a consumer has for the messages that it was given."""


class RetrySpec(Model):
    """What happens to a message on which a consumer fails."""

    RULES: ClassVar = (
        Rule("self.backOff != 'Fixed' || size(self.delays) == 1", 'Fixed has one delay: write delays: ["5s"]'),
        Rule(
            "self.backOff != 'Exponential' || size(self.delays) == 2",
            'Exponential has the first delay and the longest one: write delays: ["1s", "5m"]',
        ),
        Rule(
            "self.backOff != 'Exponential' || size(self.delays) != 2 || "
            f"!self.delays.all(delay, delay.matches('{PAUSE_PATTERN}')) || "
            "duration(self.delays[0]) <= duration(self.delays[1])",
            "the longest delay, which is the second one, is at least the first one",
        ),
        Rule(
            "self.whenExhausted == 'Block' || has(self.attempts)",
            "ParkKey and DeadLetter need attempts: write after how many failed attempts they count, such as "
            "attempts: 5. With attempts: 0 they count only for messages on which a consumer gives up",
        ),
    )

    attempts: Annotated[int, Field(ge=0, le=ATTEMPTS_MAX)] | None = None
    """How many attempts a message has. 0, and without this field: there is no limit, and only a consumer can say that
    no other attempt is needed (`GiveUp`). `ParkKey` and `DeadLetter` need this field."""
    back_off: BackOff = "Exponential"
    """How the delay before the next attempt grows. `Fixed`: not at all. `Exponential`: each delay is twice the one
    before. `List`: one after another, and the last one again and again."""
    delays: Annotated[tuple[Delay, ...], Field(min_length=1, max_length=DELAYS_MAX)] = ("1s", "5m")
    """`Fixed`: the delay. `Exponential`: the first delay and the longest one. `List`: the delays."""
    jitter_percent: Annotated[int, Field(ge=0, le=100)] = 20
    """A delay is longer or shorter by up to this part of it, so that many keys do not come back at once."""
    when_exhausted: WhenExhausted = "Block"
    """What brokers do after the last attempt. `Block`: they try again for ever, with the last delay. `ParkKey`: the
    messages of the key wait for an administrator, and other keys continue; not in the mode `Shared`. `DeadLetter`: the
    message goes to the dead-letter topic, and its key continues."""
    grant: Grant = "30s"
    """How long a consumer has for the messages that it was given, unless it asks for more time. Then they are given
    out again."""

    @property
    def delays_ms(self) -> tuple[int, ...]:
        """The delays in milliseconds."""
        return tuple(map(parse_pause_ms, self.delays))

    @property
    def grant_ms(self) -> int:
        """The time of a grant in milliseconds."""
        return parse_pause_ms(self.grant)


def dead_letter_topic_of(topic: str, group: str) -> str:
    """The topic that takes a consumer group's dead letters if its object names none."""
    return f"{topic}.{group}.{DEAD_LETTER_SUFFIX}"


class RewindSpec(Model):
    """A rewind or a skip of the consumer group on all partitions. The operator carries it out once."""

    to: Place
    """`Earliest`, `Latest`, or a time like `2026-01-31T08:00:00Z`: the first message that was appended then or later.
    """
    request_id: Annotated[
        str,
        Field(min_length=1, max_length=64),
        matches(
            "^[A-Za-z0-9][A-Za-z0-9._-]*$",
            "a request's id has letters, digits, dots, _ and -, and begins with a letter or digit",
        ),
    ]
    """A text that you choose. To have the rewind carried out again, choose another one."""


class RewindStatus(Model):
    """The last rewind that was requested, and its result."""

    request_id: Annotated[str, Field(max_length=64)] = ""
    """The `requestId` of `spec.rewind`."""
    state: RewindState = "Done"
    """`Done`: the consumer group is at the new place. `Refused`: there is no such place, and the consumer group is
    where it was."""
    message: Annotated[str, Field(max_length=1024)] = ""
    """On how many partitions it was done, or why it was refused."""


class ConsumerGroupSpec(Model):
    """The desired state of a consumer group."""

    RULES: ClassVar = (
        Rule(
            "!has(self.retry) || self.mode == 'KeyOrdered' || self.mode == 'Shared'",
            "only the modes KeyOrdered and Shared have a retry policy: choose one of them, or leave retry out",
        ),
        Rule(
            "!has(self.spread) || self.mode == 'Exclusive'",
            "only the mode Exclusive has a spread, because in other modes each consumer gets messages of all "
            "partitions: leave spread out",
        ),
        Rule(
            "!has(self.retry) || self.mode != 'Shared' || self.retry.whenExhausted != 'ParkKey'",
            "a group in mode Shared parks no key, because each of its messages is on its own and holds up nothing: "
            "write retry.whenExhausted: DeadLetter or Block, or mode: KeyOrdered",
        ),
        Rule(
            "!has(self.retry) || self.delivery != 'AtMostOnce' || "
            "((!has(self.retry.attempts) || self.retry.attempts == 0) && "
            "self.retry.whenExhausted == 'Block' && self.retry.backOff == 'Exponential' && "
            "self.retry.delays == ['1s', '5m'] && self.retry.jitterPercent == 20)",
            "AtMostOnce has no retry, because a message that fails is lost: leave out all of retry except grant, or "
            "write delivery: AtLeastOnce",
        ),
        Rule(
            "!has(self.deadLetterTopic) || (has(self.retry) && self.retry.whenExhausted == 'DeadLetter')",
            "deadLetterTopic takes messages after their last attempt: write retry.whenExhausted: DeadLetter, or leave "
            "deadLetterTopic out",
        ),
        Rule(
            "!has(self.deadLetterTopic) || self.deadLetterTopic != self.topic",
            "dead letters cannot go back into their own topic: write another name as deadLetterTopic",
        ),
    )

    cluster: ClusterName
    """The BrokerCluster, in the same namespace."""
    topic: Annotated[LegalName, immutable("a consumer group's place is in one topic; make another object")]
    """The topic's name among the brokers."""
    group: Annotated[LegalName, immutable("a consumer group keeps its name; make another object")] | None = None
    """The consumer group's name among the brokers. Use this field if the name is not valid for a Kubernetes object.
    Without it, the consumer group has the object's name."""
    start: Annotated[Place, immutable("a group starts once; make another one to start elsewhere")] = "Earliest"
    """Where a new consumer group begins: `Earliest`, `Latest`, or a time like `2026-01-31T08:00:00Z`. A time is looked
    up once."""
    paused: bool | None = None
    """`true`: brokers give the consumer group no messages. `false`: they do. Without it, the operator leaves the choice
    to `seriatim group pause` and `resume`."""
    rewind: RewindSpec | None = None
    """Moves the consumer group to another place. Consumers that run continue from there and get an event about it."""
    mode: GroupMode = "Exclusive"
    """How consumers share the messages of a partition. `Exclusive`: one consumer at a time gets them, in their order.
    `KeyOrdered`: any number of consumers share them, and messages of one key are worked on one after another. `Shared`:
    any number of consumers share them, in no order. Brokers change the mode only while no consumer is connected; until
    then `Ready` is False. Consumers of mode `broadcast` need no object, because each of them has a position of its own,
    which is made when it joins."""
    delivery: Delivery = "AtLeastOnce"
    """`AtLeastOnce`: a message counts as done when a consumer acknowledges it, so after a failure it comes again.
    `AtMostOnce`: it counts as done when it is given out, so a failure loses it, and nothing comes twice. So it has no
    retry: of `retry`, only `grant` counts."""
    spread: Spread | None = None
    """In the mode `Exclusive`: which consumer reads which partition. `Even`: the partitions are spread over the
    consumers. `None`: a consumer reads each partition to which it came first, until it leaves. Without it, a new
    consumer group is spread evenly, and the operator leaves the choice to `seriatim group configure`. A change counts
    at once."""
    retry: RetrySpec | None = None
    """What happens to a message on which a consumer fails, in the modes `KeyOrdered` and `Shared`. Without it, a new
    consumer group gets the brokers' own policy (tries again for ever, after 1 s to 5 minutes), and the operator leaves
    the choice to `seriatim group configure`. A change acts on the next failure of each message."""
    dead_letter_topic: LegalName | None = None
    """The topic that takes messages after their last attempt, with `retry.whenExhausted: DeadLetter`. Without it, the
    name is `<topic>.<group>.dead`. If there is no such topic and no Topic object names it, the operator makes it, with
    the partitions and the durability of `topic`. It stays when this object is deleted."""
    deletion_policy: DeletionPolicy = "Retain"
    """What happens to the consumer group's place when this object is deleted: `Retain` keeps it, `Delete` deletes
    it."""


class ConsumerGroupStatus(Status):
    """The observed state of a consumer group. Figures are given in wide steps, so that the status is seldom written."""

    CONDITIONS: ClassVar = ("Ready", "KeysParked", "DeadLettering")

    group_name: Annotated[str, Field(max_length=BROKER_NAME_LENGTH_MAX)] = ""
    """The consumer group's name among the brokers."""
    state: ConsumerGroupState = "Unknown"
    """`Active`: a consumer is connected. `Behind`: a consumer is connected, and more than 10,000 messages are not
    acknowledged. `Idle`: no consumer is connected."""
    lag_bucket: Annotated[str, Field(max_length=32)] = ""
    """Roughly how many messages are not acknowledged yet, those of parked keys included."""
    oldest_bucket: Annotated[str, Field(max_length=32)] = ""
    """Roughly how old the oldest message is that is not acknowledged. Empty: there is none, or its age is not known."""
    consumers: Annotated[str, Field(max_length=32)] = ""
    """Roughly how many consumers are connected."""
    parked_keys: Annotated[str, Field(max_length=32)] = ""
    """Roughly how many keys are parked: their messages wait for an administrator."""
    parked_partitions: Annotated[tuple[int, ...], Field(max_length=PARKED_SHOWN_MAX)] = ()
    """Partitions with parked keys, at most 64."""
    delayed_keys: Annotated[str, Field(max_length=32)] = ""
    """Roughly how many keys wait for their next attempt."""
    mode: Annotated[str, Field(max_length=32)] = ""
    """The mode that the brokers have. Empty: they have not reported it."""
    delivery: Annotated[str, Field(max_length=32)] = ""
    """The kind of delivery that the brokers have."""
    policy: Annotated[str, Field(max_length=512)] = ""
    """The retry policy that the brokers have, in short."""
    dead_letter_topic: Annotated[str, Field(max_length=BROKER_NAME_LENGTH_MAX)] = ""
    """The topic that takes messages after their last attempt. Empty: none does."""
    paused: bool = False
    """Whether the consumer group is paused on at least one partition."""
    rewind: RewindStatus | None = None
    """The last rewind that was requested, and its result."""


class ConsumerGroup(Resource):
    """A consumer group of a topic."""

    KIND: ClassVar = "ConsumerGroup"
    PLURAL: ClassVar = "consumergroups"
    SINGULAR: ClassVar = "consumergroup"
    SHORT_NAME: ClassVar = "scg"
    COLUMNS: ClassVar = (
        Column("Cluster", ".spec.cluster"),
        Column("Topic", ".spec.topic"),
        *condition_columns(),
        Column("State", ".status.state"),
        Column("Mode", ".status.mode"),
        Column("Lag", ".status.lagBucket"),
        Column("Parked", ".status.parkedKeys"),
        Column("Oldest", ".status.oldestBucket", is_wide=True),
        Column("Consumers", ".status.consumers", is_wide=True),
        Column("Delayed", ".status.delayedKeys", is_wide=True),
        Column("Policy", ".status.policy", is_wide=True),
        AGE,
    )

    RULES: ClassVar = (
        Rule(
            f"has(self.spec.group) || self.metadata.name.size() <= {BROKER_NAME_LENGTH_MAX}",
            f"metadata.name: brokers take names of at most {BROKER_NAME_LENGTH_MAX} characters; write a "
            "shorter one into spec.group",
        ),
        Rule(
            "!has(self.spec.retry) || self.spec.retry.whenExhausted != 'DeadLetter' || "
            "has(self.spec.deadLetterTopic) || self.spec.topic.size() + "
            "(has(self.spec.group) ? self.spec.group.size() : self.metadata.name.size()) "
            f"<= {BROKER_NAME_LENGTH_MAX - len(DEAD_LETTER_SUFFIX) - 2}",
            f"<topic>.<group>.{DEAD_LETTER_SUFFIX} is longer than {BROKER_NAME_LENGTH_MAX} characters: write a shorter "
            "name into spec.deadLetterTopic",
        ),
    )

    spec: ConsumerGroupSpec
    status: ConsumerGroupStatus = ConsumerGroupStatus()

    @property
    def group_name(self) -> str:
        """The consumer group's name among the brokers."""
        return self.spec.group or self.metadata.name

    @property
    def dead_letter_topic(self) -> str:
        """The name of the topic that takes messages after their last attempt; empty if none does."""
        retry = self.spec.retry
        if retry is None or retry.when_exhausted != "DeadLetter":
            return ""
        return self.spec.dead_letter_topic or dead_letter_topic_of(self.spec.topic, self.group_name)
