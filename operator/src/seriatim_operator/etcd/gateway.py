"""Calls to etcd's HTTP gateway: the three calls about membership that a starting member needs."""

from __future__ import annotations

import json
import ssl
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.error import HTTPError, URLError

from .joining import Member

CALL_TIMEOUT_S = 5.0


class GatewayError(Exception):
    """No member gave a valid answer. The text has the answer or error of each."""


class Gateway:
    """The other members. A call asks one after another, at most 5 s each, until one answers.

    Each call raises `GatewayError` if none of them gives a valid answer.

    Args:
        urls: Client URLs of the other members.
        tls: Directory with ca.crt, tls.crt and tls.key; None for plain HTTP.
    """

    def __init__(self, urls: Sequence[str], tls: Path | None) -> None:
        self._urls = urls
        self._context = None
        if tls is not None:
            self._context = ssl.create_default_context(cafile=str(tls / "ca.crt"))
            self._context.load_cert_chain(tls / "tls.crt", tls / "tls.key")

    def members(self) -> list[Member]:
        """The members that a majority lists."""
        return _members_in(self._call("list", {"linearizable": True}))

    def forget(self, member_id: str) -> None:
        """Remove a member from the cluster."""
        self._call("remove", {"ID": member_id})

    def take_in(self, peer_url: str) -> list[Member]:
        """Add a new member to the cluster, and return all members.

        It counts for the majority at once, so it must start now. Beside a single member there is no majority until it
        does, so no list of the members is answered.
        """
        return _members_in(self._call("add", {"peerURLs": [peer_url]}))

    def _call(self, verb: str, body: Mapping[str, Any]) -> dict[str, Any]:
        said = []
        for url in self._urls:
            request = urllib.request.Request(  # noqa: S310 - the chart's own URLs
                f"{url}/v3/cluster/member/{verb}",
                data=json.dumps(body).encode(),
                headers={"Content-Type": "application/json"},
            )
            try:
                with urllib.request.urlopen(request, timeout=CALL_TIMEOUT_S, context=self._context) as answer:  # noqa: S310
                    found = json.load(answer)
                    assert isinstance(found, dict)
                    return found
            except HTTPError as exc:
                with exc:
                    said.append(f"{url}: {exc.read(300).decode(errors='replace')}")
            except (URLError, OSError, ValueError) as exc:
                said.append(f"{url}: {exc}")
        raise GatewayError("; ".join(said) or "there are no other members")


def _members_in(answer: Mapping[str, Any]) -> list[Member]:
    return [
        Member(str(item["ID"]), str(item.get("name", "")), tuple(item.get("peerURLs", ())))
        for item in answer.get("members", [])
    ]
