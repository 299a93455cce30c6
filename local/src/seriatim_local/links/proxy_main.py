"""The proxy's process: `python -m seriatim_local.links.proxy_main DESCRIPTOR`.

It carries out the requests that come over the inherited socket (`proxy_process` is the other end). It ends when that
socket is closed.
"""

from __future__ import annotations

import asyncio
import resource
import socket
import sys
from typing import Any

from seriatim_api.errors import BadRequestError

from seriatim_local import json_lines
from seriatim_local.layout.plan import Address, Link
from seriatim_local.links.delays import LinkDelay
from seriatim_local.links.proxy import Proxy


async def _serve(descriptor: int) -> None:
    control = socket.socket(fileno=descriptor)
    reader, writer = await asyncio.open_connection(sock=control, limit=json_lines.LINE_SIZE_BYTES_MAX)
    proxy: Proxy | None = None

    async def handle(command: str, arguments: json_lines.Arguments) -> Any:
        nonlocal proxy
        if command == "start" and proxy is None:
            started = Proxy([_link_in(link) for link in arguments["links"]])
            started.start()
            proxy = started
            return None
        if proxy is None:
            raise BadRequestError(f"{command!r} before 'start'")
        match command:
            case "add":
                return proxy.add([_link_in(link) for link in arguments["links"]])
            case "cut":
                return proxy.cut([(a, b) for a, b in arguments["paths"]], arguments["mode"])
            case "heal":
                return proxy.heal([(a, b) for a, b in arguments["paths"]])
            case "delay":
                delay = LinkDelay(arguments["delay_s"], arguments["jitter_s"])
                return proxy.delay([(a, b) for a, b in arguments["paths"]], delay)
            case "figures":
                return {"connection_count": proxy.connection_count, "forwarded_bytes": proxy.forwarded_bytes}
            case _:
                raise BadRequestError(f"the proxy does not know {command!r}")

    await json_lines.serve(reader, writer, handle)
    if proxy is not None:
        proxy.close()


def _link_in(fields: list[str]) -> Link:
    source, destination, listen, target = fields
    return Link(source, destination, Address.parse(listen), Address.parse(target))


def main() -> None:
    """Serve on the descriptor that the command line names, until its other end is closed."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    asyncio.run(_serve(int(sys.argv[1])))


if __name__ == "__main__":
    main()
