"""How long a program needs from its first line to its first acknowledged message.

`python -m e2e.bench.starting TOPIC BOOTSTRAP...` is such a program. It prints the milliseconds. What Python itself
needs to start is not in them.
"""

import time

BEGIN = time.perf_counter()

import asyncio  # noqa: E402
import sys  # noqa: E402
from collections.abc import Sequence  # noqa: E402

import seriatim  # noqa: E402

DEADLINE_S = 30.0


async def _first(topic: str, bootstrap: Sequence[str]) -> float:
    async with seriatim.Client.connect(tuple(bootstrap)) as client, client.producer(topic) as producer:
        await (await producer.send(b"first"))
        return (time.perf_counter() - BEGIN) * 1000


async def start_ms(topic: str, bootstrap: Sequence[str]) -> float:
    """Run the program once in a new process, and return what it printed.

    Raises:
        RuntimeError: It ended with an error, which the text has.
        TimeoutError: It did not end within `DEADLINE_S`.
    """
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "e2e.bench.starting", topic, *bootstrap,
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    try:
        out, errors = await asyncio.wait_for(process.communicate(), DEADLINE_S)
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if process.returncode != 0:
        raise RuntimeError(f"the program ended with status {process.returncode}: {errors.decode()[-500:]}")
    return float(out)


if __name__ == "__main__":
    print(asyncio.run(_first(sys.argv[1], sys.argv[2:])))
