"""`python -m e2e.demo_spark`, or `make demo-spark`: QUICK=1 runs a part, SEED=n repeats strikes, OUT= names the
directory of the results.

The last line is one JSON object, after the report. The exit status is 0 only if all comparisons found no difference.
"""

from __future__ import annotations

import sys

from e2e.demo.command import main
from e2e.demo_spark.run import SparkRun, read_settings

HEADLINE = "the flights out of New York in 2013, through Spark and back into a topic"

if __name__ == "__main__":
    sys.exit(main("e2e.demo_spark", __doc__, HEADLINE, read_settings, SparkRun))
