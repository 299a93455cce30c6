"""`python -m e2e.demo_orders`, or `make demo-orders`: QUICK=1 runs a part, SEED=n repeats a plan, LATENCY=25 delays all
links by 25 ms each way, OUT= names the directory of the results.

If stdout is a terminal, the demo draws the run; otherwise it prints lines of progress. Then it prints the report, and
as the last line one JSON object with the figures. The exit status is 0 only if each aircraft's events were worked on
once and in order.
"""

from __future__ import annotations

import sys

from e2e.demo.command import main
from e2e.demo_orders.orders import OrdersRun
from e2e.demo_orders.settings import read_settings

HEADLINE = "the flights, worked on by 16 consumers in the order of each aircraft, while these and brokers are killed"

if __name__ == "__main__":
    sys.exit(main("e2e.demo_orders", __doc__, HEADLINE, read_settings, OrdersRun))
