"""How long a program needs from its first line to its first acknowledged message.

`python -m e2e.bench.first_message TOPIC BOOTSTRAP...` is such a program. It prints the milliseconds. What Python itself
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
        NotMeasuredError: It ended with an error, of which the text has the last line, or not within `DEADLINE_S`.
    """
    from e2e.bench.program import NotMeasuredError  # imported here, because the program measures its own imports

    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "e2e.bench.first_message", topic, *bootstrap,
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    try:
        async with asyncio.timeout(DEADLINE_S):
            out, errors = await process.communicate()
    except TimeoutError as error:
        raise NotMeasuredError(f"the program that starts has not ended after {DEADLINE_S:g} s") from error
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if process.returncode != 0:
        last = errors.decode(errors="replace").strip().rpartition("\n")[2]
        raise NotMeasuredError(f"the program that starts ended with status {process.returncode}: {last}")
    return float(out)


if __name__ == "__main__":
    print(asyncio.run(_first(sys.argv[1], sys.argv[2:])))
