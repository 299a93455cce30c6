"""CRC-32C, in C: the checksum of bodies, of the checksum chain, and of files outside RocksDB.

Only this module imports google_crc32c. Other modules take a `seriatim_api.batch.Checksum` as an argument.
"""

from __future__ import annotations

import google_crc32c


def crc32c(seed: int, data: bytes) -> int:
    """CRC-32C of `data`, continued from `seed` (0 to begin): `crc32c(crc32c(0, a), b) == crc32c(0, a + b)`.

    It takes about 0.2 ms for a MiB, and holds the interpreter lock. `data` must be `bytes`, because the library refuses
    other buffers.
    """
    value: int = google_crc32c.extend(seed, data)
    return value


assert google_crc32c.implementation == "c", "google_crc32c without its C part is 1,000 times slower"
