"""`python -m e2e.demo_delayed`, or `make demo-delayed`: QUICK=1 sends a fifth, SEED=n draws the same delays and
victims, LATENCY=25 delays all links by 25 ms each way, OUT= names the directory of the results.

If stdout is a terminal, the demo draws the run; otherwise it prints lines of progress. Then it prints the report, and
as the last line one JSON object with the figures. The exit status is 0 only if no message was lost, fired twice, fired
more than 100 ms before it was due, or delivered although it was called back.
"""

from __future__ import annotations

import sys

from e2e.demo.command import main
from e2e.demo_delayed.run import DelayedDemo
from e2e.demo_delayed.settings import read_settings

HEADLINE = "messages that are due within 20 s, on 6 brokers, while these are killed and messages are called back"

if __name__ == "__main__":
    sys.exit(main("e2e.demo_delayed", __doc__, HEADLINE, read_settings, DelayedDemo))
