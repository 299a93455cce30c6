"""Checks that the definitions of our kinds in Kubernetes are those of this version of the operator.

Helm may not manage them, or an administrator applied those of another version. Then fields are missing, or their rules
are different. The operator reports this and continues.
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
"""Seconds between two looks, because definitions change only with upgrades."""

AGAIN_S: Final = 10.0
"""Seconds between two looks while one is of another version, because an administrator is asked to apply them."""

REASON: Final = "DefinitionOutdated"
_FORBIDDEN: Final = 403

_log = structlog.get_logger(__name__)


class Definitions:
    """Compares the definitions every 600 s, and every 10 s while one is of another version.

    Args:
        api: The API. If the operator may not read definitions, nothing is reported.
        clock: Returns monotonic seconds.
    """

    def __init__(self, api: Api, clock: Callable[[], float] = time.monotonic) -> None:
        self._api = api
        self._clock = clock
        self._looked_s: float | None = None
        self._found: list[tuple[str, str]] = []

    async def problems(self) -> list[tuple[str, str]]:
        """Reason and message, if a definition is of another version; otherwise empty. The result may be 600 s old, and
        10 s if it is not empty.
        """
        now_s = self._clock()
        if self._looked_s is None or now_s - self._looked_s >= (AGAIN_S if self._found else LOOK_S):
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
