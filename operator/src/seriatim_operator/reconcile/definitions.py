"""Whether the definitions of our kinds in the cluster are those that this operator was made with.

Helm may have been told to leave them alone, or somebody applied those of another version. Then fields are missing, or
not checked as they should be: that is said, and the operator goes on.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

import structlog

from ..cluster.kinds import CRD
from ..cluster.kube import Api, KubeError
from ..spec import KINDS
from ..spec.crd.definition import SCHEMA_HASH, definition_name, schema_hash

LOOK_S: Final = 600.0
"""Between two looks: they change with upgrades only."""

REASON: Final = "DefinitionOutdated"
_FORBIDDEN: Final = 403

_log = structlog.get_logger(__name__)


class Definitions:
    """Compares the definitions now and then.

    Args:
        api: To read them; an operator that may not says nothing.
        clock: Seconds, monotonic.
    """

    def __init__(self, api: Api, clock: Callable[[], float] = time.monotonic) -> None:
        self._api = api
        self._clock = clock
        self._looked_s: float | None = None
        self._found: list[tuple[str, str]] = []

    async def problems(self) -> list[tuple[str, str]]:
        """Reason and message, if any of them is another one; from the last look, if that is not long ago."""
        now_s = self._clock()
        if self._looked_s is None or now_s - self._looked_s >= LOOK_S:
            self._found = await self._look()
            self._looked_s = now_s
        return list(self._found)

    async def _look(self) -> list[tuple[str, str]]:
        others = []
        for kind in KINDS:
            try:
                found = await self._api.get(CRD, None, definition_name(kind))
            except KubeError as exc:
                _log.info("definitions_not_read", error=str(exc))
                return [] if exc.status == _FORBIDDEN else self._found
            if found is not None and (found["metadata"].get("annotations") or {}).get(SCHEMA_HASH) != schema_hash(kind):
                others.append(kind.KIND)
        if not others:
            return []
        remedy = "seriatim operator crds | kubectl apply --server-side -f -"
        return [(REASON, f"the definitions of {', '.join(others)} are of another version than the operator: {remedy}")]
