"""The pipelines as one application: `python -m seriatim_spark NAME ...`, or this file given to `spark-submit`."""

from __future__ import annotations

import sys
from pathlib import Path

# spark-submit runs this file as a script and puts its folder first in sys.path. Then Python would find our modules
# under their last names, in place of other modules.
sys.path[:] = [entry for entry in sys.path if not entry or Path(entry).resolve() != Path(__file__).resolve().parent]

if __name__ == "__main__":
    from seriatim_spark.pipelines.commands import main

    main()
