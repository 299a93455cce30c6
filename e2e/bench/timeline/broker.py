"""`python -m e2e.bench.timeline.broker FILE broker OPTION...`: a broker that reads the clock at the stamped functions.

It is the real broker. It writes its stamps to the file when it has ended by itself.
"""

from __future__ import annotations

import sys
from pathlib import Path

from seriatim_broker.__main__ import main

from e2e.bench.timeline.stamps import BROKER, PlaceGoneError, installed, write

if __name__ == "__main__":
    file = Path(sys.argv.pop(1))
    try:
        with installed(BROKER) as times:
            try:
                main(prog_name="seriatim")
            finally:
                write(times, file)
    except PlaceGoneError as error:
        sys.exit(str(error))
