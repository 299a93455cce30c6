"""What a person can do about an error, by its number: advice, not contract; the catalogue is `seriatim_api.errors`."""

from __future__ import annotations

from typing import Final

from seriatim_api.errors import SeriatimError

_REMEDIES: Final = {
    101: "client and broker are of different versions: upgrade the older one",
    102: "a name has letters, digits, '.', '_' and '-', begins with a letter or digit, and is at most 200 long",
    110: "send smaller messages; a topic has a limit of its own (`topic create --message-size-max`), never above 1 MiB",
    120: "`seriatim topic list` shows the topics, `seriatim topic create NAME --partitions N` makes one",
    121: "choose another name, or use the topic that is there: `seriatim topic describe NAME`",
    122: "`seriatim topic describe NAME` shows how many partitions there are",
    123: "a group is there once it has consumed: `seriatim consume TOPIC --group GROUP`",
    200: "another producer took over this producer's id: that one goes on, this one cannot",
    400: "the broker is busy: send more slowly, or with a smaller window",
    401: "the broker's disk has reached its reserve: add disks or broker groups, or delete topics that are not needed",
    501: "another consumer of the group is active: this one can stand by (`seriatim group describe TOPIC GROUP`)",
    502: "the group's position was moved meanwhile: start the consumer again",
    600: "is the cluster up? `seriatim cluster status`, or name its brokers with --bootstrap",
    601: "the brokers cannot reach their coordinator: `seriatim cluster status`, or look at etcd",
    602: "nobody answered in time: `seriatim cluster status`, or name the brokers with --bootstrap",
    603: "the CA of the brokers is named with --tls-ca, the client's certificate and key with --tls-cert and --tls-key",
    700: "name the right --data directory, or start with an empty one as a new member",
    701: "use the newer version, which wrote this directory",
    702: "this is an older copy of the disk: it can only come back empty, as a new member",
    703: "the disk was emptied: the broker can only come back as a new member, with the explicit option for it",
}


def remedy_of(error: SeriatimError) -> str:
    """Advice on one line; empty if we have none."""
    if error.retry_after_ms:
        return f"try again in {error.retry_after_ms} ms"
    return _REMEDIES.get(error.number, "")
