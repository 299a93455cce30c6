"""The two errors of making a cluster: this machine can never run one, or something went wrong this time."""

from __future__ import annotations


class ClusterError(Exception):
    """Something went wrong; the text says what, and where its log is."""


class MachineError(ClusterError):
    """This machine cannot run the cluster as it is; the text says why and what would help."""


class EndedError(ClusterError):
    """A process that should run has ended: waiting for it is of no use. Its log says why."""
