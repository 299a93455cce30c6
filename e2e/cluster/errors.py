"""The two ways in which making a cluster fails: this machine never can, or something went wrong this time."""

from __future__ import annotations


class ClusterError(Exception):
    """Something went wrong; the text says what, and where its log is."""


class MachineError(ClusterError):
    """This machine cannot run the cluster as it is; the text says why and what would help."""


class EndedError(ClusterError):
    """A process that should run has ended: waiting for it is of no use. Its log says why."""
