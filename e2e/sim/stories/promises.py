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
        "Every acknowledged message is delivered, or lies in a declared gap, or was dropped by retention.",
        {
            "unbroken": (
                "A master restarts and answers a fence with the commit that it remembers, which lags behind what it "
                "acknowledged. The seal leaves out a message that its producer was told to be safe."
            ),
            "tail-first": (
                "A member says how much it has and goes on for a while. The segment is sealed at what it said, below "
                "a message that was acknowledged meanwhile. No reader will ever come to that one."
            ),
            "fence-freezes-commit": (
                "A fenced member still counts an acknowledgement of its follower, and tells a producer that its "
                "message is safe. The seal was decided without it."
            ),
        },
    ),
    Promise(
        "I2",
        "One order for everybody",
        "First deliveries come in commit order, the same for all groups and for every replay; what was sent after "
        "another message was acknowledged comes after it.",
        {
            "above-commit": (
                "A message is handed out that not every member has. The segment is sealed without it, and it comes "
                "again elsewhere: this group has seen an order that no other will see."
            ),
        },
    ),
    Promise(
        "I3",
        "Nothing of a segment before all of the one before",
        "Nothing of segment n + 1 is first delivered before all of segment n is acknowledged.",
        {
            "all-acknowledged": (
                "The group goes on when everything was handed out, not when it was worked off. If the consumer fails "
                "now, what it was working on comes after its successors."
            ),
            "client-acks-early": ("The client acknowledges what it has only handed to the application."),
        },
    ),
    Promise(
        "I5",
        "A length and a checksum never change",
        "The sealed length and checksum of a segment never change, and copies are prefixes of one another.",
        {
            "start-fence": (
                "A restarted master goes on in a segment that others have sealed meanwhile, and writes where another "
                "message stands on other disks."
            ),
            "unknown-outcome": (
                "A switcher that got no answer takes its transaction for done. Another one has won, with another "
                "length."
            ),
        },
    ),
    Promise(
        "I6",
        "Nothing above the seal",
        "Nothing at or above the sealed length of a segment is ever acknowledged or served there, neither before the "
        "seal nor after it.",
        {
            "tail-first": (
                "A member says how much it has, and takes more before the seal is written. To fence and to answer "
                "must be one step."
            ),
            "fence-freezes-commit": (
                "A fenced member refuses batches, and still lets an acknowledgement of its follower move the commit."
            ),
        },
    ),
    Promise(
        "I7",
        "The record is one line",
        "Versions of a chain record form one line; exactly one segment is open, and it is the last. A segment that "
        "nobody answers for is opened over only when its master's run is certified to have ended.",
        {
            "certificate": (
                "Nobody answers, and that is taken for death. The members that were thought dead may go on "
                "acknowledging to clients that still reach them."
            ),
        },
    ),
    Promise(
        "I8",
        "A cursor passes only what was worked off",
        "What a group's cursor has passed is sealed and drained by that group, or in a declared gap, or dropped by "
        "retention.",
        {
            "all-acknowledged": ("The cursor leaves a segment of which the application never said that it was done."),
            "client-acks-early": ("The client acknowledges for an application that is still working."),
        },
    ),
    Promise(
        "I9",
        "Twice only with a flag",
        "A batch is not delivered twice as a first attempt, unless it is flagged as one that may be repeated.",
        {
            "reservations": (
                "What was handed out was not noted beforehand where the next server finds it. So that one hands it "
                "out again, and cannot know that it should say so."
            ),
            "readers-skip": (
                "Behind a segment that was opened over, a batch may stand twice. Readers must skip the second, by "
                "the table of the segments before."
            ),
        },
    ),
    Promise(
        "I10",
        "What failed is nowhere",
        "A send that was called failed is never delivered.",
        {
            "failed-early": (
                "The master is fenced and calls the attempt failed. It cannot know: another member may be asked for "
                "its tail, and what that one holds is sealed in."
            ),
        },
    ),
    Promise(
        "I11",
        "A cursor moves forward",
        "Within one epoch of a group its cursor only moves forward.",
        {
            "ack-copies": (
                "An acknowledgement was confirmed that one disk alone knows of. Another member takes over serving, "
                "and begins below it."
            ),
        },
    ),
    Promise(
        "I12",
        "Two disks at the acknowledgement",
        "When a message is acknowledged two disks have it, also when it is a resend that is acknowledged.",
        {
            "every-member": (
                "The master answers when its own disk has the message. If that disk goes, so does the message."
            ),
            "slave-flushes": "The slave answers for what it has only in memory.",
        },
    ),
    Promise(
        "I13",
        "It goes on",
        "After the last fault everything drains within a bound, nothing is stuck, and there are two copies again.",
        {
            "client-forgets": (
                "A producer whose batches were under way when its master moved goes on with the next one. The new "
                "master waits for those in front of it, as it must, and for ever."
            ),
        },
    ),
    Promise(
        "I14",
        "An empty disk is nobody",
        "A wiped, unknown or tombstoned member never seals and never serves.",
        {
            "incarnation": (
                "A disk comes back empty under its old name. What it answers is taken for what the old one would "
                "have said."
            ),
        },
    ),
)
"""I4 belongs to delivery by key, which is not there yet."""
