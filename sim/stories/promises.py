"""The promises, in words, and the planted bugs whose shortest stories show what each of them is there for."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Promise:
    """A section of the page.

    Attributes:
        rule: Its name.
        title: A few words.
        promise: What holds.
        bugs: Planted bugs that break it, each with what to look at in its story; the shortest story is told.
    """

    rule: str
    title: str
    promise: str
    bugs: dict[str, str]


PROMISES: tuple[Promise, ...] = (
    Promise(
        "I1",
        "Nothing that was acknowledged is lost",
        "Every acknowledged message is delivered, or it is in a declared gap, or retention dropped it.",
        {
            "unbroken": (
                "A master restarts and answers a fence with the commit that it remembers. That commit lags behind what "
                "the master acknowledged. The seal leaves out a message although its producer was told that it is safe."
            ),
            "tail-first": (
                "A member says how much it has, and goes on taking messages. The segment is sealed at what it said, "
                "below a message that was acknowledged meanwhile. No reader will ever get that message."
            ),
            "fence-freezes-commit": (
                "A fenced member still counts an acknowledgement of its slave, and tells a producer that its message "
                "is safe. The seal was decided without that message."
            ),
        },
    ),
    Promise(
        "I2",
        "One order for all readers",
        "First deliveries come in commit order, which is the same for all consumer groups and for every replay. A "
        "message that was sent after another one was acknowledged comes after it.",
        {
            "above-commit": (
                "A consumer is given a message that not every member has. The segment is sealed without the message, "
                "and it comes again in another segment. This consumer group has seen an order that no other one will "
                "see."
            ),
        },
    ),
    Promise(
        "I3",
        "A segment is acknowledged before the next one is delivered",
        "Nothing of segment n + 1 is first delivered before all of segment n is acknowledged.",
        {
            "all-acknowledged": (
                "The consumer group crosses when everything was delivered, although not everything was acknowledged. "
                "If the consumer fails now, the messages that it was working on come after later ones."
            ),
            "client-acks-early": "The client acknowledges what it has only handed to the application.",
        },
    ),
    Promise(
        "I5",
        "A length and a checksum never change",
        "The sealed length and checksum of a segment never change, and copies are prefixes of one another.",
        {
            "start-fence": (
                "A restarted master continues a segment that others have sealed meanwhile. It writes a message at a "
                "place where other disks have another one."
            ),
            "unknown-outcome": (
                "A switcher that got no answer believes that its transaction was done. But another switcher has won, "
                "with another length."
            ),
        },
    ),
    Promise(
        "I6",
        "Nothing above the sealed length",
        "Nothing at or above the sealed length of a segment is ever acknowledged or served there, neither before the "
        "seal nor after it.",
        {
            "tail-first": (
                "A member says how much it has, and takes more before the seal is written. To fence and to answer must "
                "be one step."
            ),
            "fence-freezes-commit": (
                "A fenced member refuses batches, but an acknowledgement of its slave still moves the commit."
            ),
        },
    ),
    Promise(
        "I7",
        "The versions of a chain form one line",
        "Versions of a chain record form one line. Exactly one segment is open, and it is the last. A segment whose "
        "members do not answer is opened over only when its master's run is certified to have ended.",
        {
            "certificate": (
                "The members do not answer, and the switcher concludes that they have ended. If they live, they may go "
                "on acknowledging to clients that still reach them."
            ),
        },
    ),
    Promise(
        "I8",
        "A cursor passes only what was acknowledged",
        "What a consumer group's cursor has passed is sealed and drained by that group, or it is in a declared gap, or "
        "retention dropped it.",
        {
            "all-acknowledged": (
                "The cursor leaves a segment although the application never said that it was done with it."
            ),
            "client-acks-early": "The client acknowledges for an application that is still working.",
        },
    ),
    Promise(
        "I9",
        "A repeat has a flag",
        "A batch is not delivered twice as a first attempt, unless it is flagged as one that may be repeated.",
        {
            "reservations": (
                "The server delivers a range, and has not noted this durably on the disk of the next server. The next "
                "server delivers the range again. It cannot know that it must set the flag."
            ),
            "readers-skip": (
                "After a segment that was opened over, a batch may be stored a second time. Readers must skip the "
                "second copy, by the table of the segments before."
            ),
        },
    ),
    Promise(
        "I10",
        "A failed send is never delivered",
        "A send that was reported as failed is never delivered.",
        {
            "failed-early": (
                "The master is fenced, and answers that the attempt failed. It cannot know that: another member may be "
                "asked for its tail, and what that member has is sealed in."
            ),
        },
    ),
    Promise(
        "I11",
        "A cursor moves forward",
        "Within one group epoch the cursor of a consumer group only moves forward.",
        {
            "ack-copies": (
                "An acknowledgement was confirmed although only one disk has it. Another member takes over serving, "
                "and begins before it."
            ),
        },
    ),
    Promise(
        "I12",
        "Two disks at the acknowledgement",
        "When a message is acknowledged, two disks have it. This holds for the acknowledgement of a resend too.",
        {
            "every-member": (
                "The master answers when its own disk has the message. If that disk is lost, so is the message."
            ),
            "slave-flushes": "The slave acknowledges what it has only in memory.",
        },
    ),
    Promise(
        "I13",
        "Everything goes on after the last fault",
        "After the last fault everything drains within a bound, nothing is stuck, and there are two copies again.",
        {
            "client-forgets": (
                "The master moves while batches of a producer are under way. The producer goes on with the next batch. "
                "The new master must wait for the batches before it, and waits for ever."
            ),
        },
    ),
    Promise(
        "I14",
        "A broker with an empty disk is a new member",
        "A wiped, unknown or tombstoned member never seals and never serves.",
        {
            "incarnation": (
                "A disk comes back empty under its old name. Its answers are believed as if the old disk had given "
                "them."
            ),
        },
    ),
)
"""I4 belongs to delivery by key, which is not there yet."""
