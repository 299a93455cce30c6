"""The fault suite on real processes: `make faults`, or `python -m e2e.faults`.

    QUICK=1           a fixed choice of faults, each once
    MINUTES=60        round after round of all faults, until that many minutes have passed (default: one round)
    SEED=7            the schedule again (default: a new one)
    ONLY=kill,freeze  only faults whose names contain one of these words
    LOAD=delayed      every fault under this load, if it goes with it (default: another load each time)
    RETENTION=4       topics keep messages for that many seconds (default: for ever)
    PUBLISH=1         a program publishes beside the load of each case
    FEATURES=1        an administrator uses features beside the load of each case: growth, rewinds, other modes and more
    LATENCY=25        links take that many ms each way (default 0); JITTER=100: some chunks take that much more
    MEMBERS=3         the members of each broker group, 2 to 5 (default: 2)
    NETWORK=proxy     how links are cut: auto (default), namespaces or proxy
    OUT=faults-out    the directory of the report, and of what failed cases leave
    KEEP=1            keep the histories and logs of good cases too

Exit status 0: no message was lost, repeated without a flag, reordered or stuck, and everything had all copies again.
1: a case failed. 2: there was nothing to run, or wrong use.
"""

from __future__ import annotations

import asyncio
import os
import shutil
import sys
from typing import Final

from rich.console import Console

from e2e.distance import told
from e2e.faults.report import exit_status, print_run, summary_line, to_json
from e2e.faults.run import Suite
from e2e.faults.settings import read_settings
from e2e.usage import EXIT_INTERRUPTED, EXIT_USAGE, SettingsError, log_to, read_command_line, run_until_signal

LOG_NAME: Final = "suite.log"


def main() -> int:
    """Run the suite, and return the exit status."""
    console = Console(width=None if sys.stdout.isatty() else 150)

    def say(line: str) -> None:
        console.print(line, highlight=False, markup=False)

    try:
        settings = read_settings(os.environ)
        quick, distance = " QUICK=1" if settings.quick else "", told(settings.delay or None)
        console.print(f"fault suite, SEED={settings.seed}{quick}{distance}", highlight=False)
        if settings.out.exists():
            shutil.rmtree(settings.out)
        settings.out.mkdir(parents=True)
        with (settings.out / LOG_NAME).open("w") as log:
            log_to(log)
            run = asyncio.run(run_until_signal(Suite(settings, say).run()))
    except SettingsError as error:
        console.print(f"FAILED {error}", style="red", highlight=False, markup=False)
        return EXIT_USAGE
    except (KeyboardInterrupt, asyncio.CancelledError):
        console.print("interrupted; everything that was started has ended")
        return EXIT_INTERRUPTED
    path = settings.out / "report.json"
    path.write_text(to_json(run))
    print_run(console, run)
    console.print(f"report: {path}", highlight=False)
    print(summary_line(run), flush=True)
    return exit_status(run)


if __name__ == "__main__":
    read_command_line("e2e.faults", __doc__)
    sys.exit(main())
