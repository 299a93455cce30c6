"""A client outside of Kubernetes sees to which addresses it is connected."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from e2e.kubernetes.outsider import address_of, connected_to

TCP = """\
  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
   0: 0100007F:1F90 0100007F:D431 01 00000000:00000000 00:00000000 00000000     0        0 1 1 0 20 4 30 10 -1
   1: 020200C0:D432 0A0200C0:7531 01 00000000:00000000 00:00000000 00000000     0        0 2 1 0 20 4 30 10 -1
   2: 020200C0:D433 0B0200C0:7531 06 00000000:00000000 00:00000000 00000000     0        0 3 1 0 20 4 30 10 -1
"""
TCP6 = """\
  sl  local_address                         remote_address                        st tx_queue rx_queue
   0: 0000000000000000FFFF0000020200C0:D434 0000000000000000FFFF00000B0200C0:7532 01 00000000:00000000
   1: 0000000000000000FFFF00000100007F:D435 0000000000000000FFFF00000100007F:7533 01 00000000:00000000
"""


@pytest.mark.skipif("sys.byteorder != 'little'", reason="the tables are those of a little-endian processor")
def test_connections_of_ipv4_are_found_whatever_kind_their_sockets_are(tmp_path: Path) -> None:
    tables = (tmp_path / "tcp", tmp_path / "tcp6")
    for table, text in zip(tables, (TCP, TCP6), strict=True):
        table.write_text(text)
    assert connected_to(tables) == {"192.0.2.10:30001", "192.0.2.11:30002"}


def test_an_address_of_the_kernels_table_is_read() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = f":{server.getsockname()[1]:04X} "
        lines = [line for line in Path("/proc/net/tcp").read_text().splitlines() if port in line]
    assert str(address_of(lines[0].split()[1].partition(":")[0])) == "127.0.0.1"
