"""`python -m seriatim` is the command `seriatim`."""

from __future__ import annotations

from seriatim.cli import main

if __name__ == "__main__":
    main()
