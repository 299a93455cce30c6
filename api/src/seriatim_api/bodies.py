"""The form of a body: an Arrow IPC record batch without its schema message.

The columns are key and value (binary), timestamp (int64, ms), headers (map of utf8 to binary) and tag (utf8). A column
without values holds nulls. The header of a batch is in `batch`.

This module needs pyarrow, which the packages that use it install. No other module of this package imports it.
"""

from __future__ import annotations

from typing import Final

import pyarrow as pa

HEADERS_TYPE: Final = pa.map_(pa.utf8(), pa.binary())
SCHEMA: Final = pa.schema(
    [
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("timestamp", pa.int64()),
        ("headers", HEADERS_TYPE),
        ("tag", pa.utf8()),
    ]
)
"""The schema of every body."""
