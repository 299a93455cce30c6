"""`python -m e2e.demo`, or `make demo`: QUICK=1 runs a part, SEED=n repeats a fault plan, LATENCY=25 delays all
links by 25 ms each way, OUT= names the directory of the results.

If stdout is a terminal, the demo draws the run; otherwise it prints lines of progress. Then it prints the report, and
as the last line one JSON object with the figures. The exit status is 0 only if no message was lost or reordered and the
histories are equal.
"""

from __future__ import annotations

import sys

from e2e.demo.command import main
from e2e.demo.histories import HistoriesRun
from e2e.demo.settings import read_settings

HEADLINE = "the flights out of New York in 2013, through 6 brokers that are killed, frozen and cut off"

if __name__ == "__main__":
    sys.exit(main("e2e.demo", __doc__, HEADLINE, read_settings, HistoriesRun))
