"""Advice for humans about errors, by number. It is not part of the contract; the catalogue is `seriatim_api.errors`."""

from __future__ import annotations

from typing import Final

from seriatim_api.errors import SeriatimError

_REMEDIES: Final = {
    101: "the client and the broker have different versions: upgrade the older one",
    110: "send smaller messages, or raise the topic's limit (`topic alter --message-size-max`), at most 1 MiB",
    120: "`seriatim topic list` shows the topics, `seriatim topic create NAME --partitions N` makes one",
    121: "choose another name, or use the existing topic: `seriatim topic describe NAME`",
    122: "`seriatim topic describe NAME` shows how many partitions the topic has",
    123: "`seriatim group list TOPIC` shows the groups; a first consumer, or `seriatim group create`, makes one",
    124: "`seriatim group describe TOPIC GROUP` shows the group's mode; a consumer names it with --mode",
    200: "another producer has taken over this producer's id. That producer continues, and this one cannot",
    400: "the broker is busy: send more slowly, or with a smaller window",
    401: "the broker's disk has reached its reserve: add disks or broker groups, or delete topics that are not needed",
    501: "another consumer of the group is active; this one can be a standby (`seriatim group describe TOPIC GROUP`)",
    502: "an operation moved the group meanwhile: start the consumer again",
    600: "check that the cluster runs (`seriatim cluster status`), or name its brokers with --bootstrap",
    601: "the brokers cannot reach their coordinator: check `seriatim cluster status`, or etcd",
    602: "no broker answered in time: check `seriatim cluster status`, or name the brokers with --bootstrap",
    603: "name the CA of the brokers with --tls-ca, and the client's certificate and key with --tls-cert and --tls-key",
    700: "name the right --data directory, or start with an empty one as a new member",
    701: "start the newer version that wrote this directory",
    702: "the directory is an older copy of the disk: the broker can only return with an empty one, as a new member",
    703: "the directory is empty: bring the old disk back, or start once with --replace-disk, as a new member",
    709: "start the version that wrote the directory, or make a new cluster with empty directories",
}


def remedy_of(error: SeriatimError) -> str:
    """Advice on one line; empty if there is none."""
    if error.retry_after_ms:
        return f"try again in {error.retry_after_ms} ms"
    return _REMEDIES.get(error.number, "")
