"""When certificates end: read from the files, and read again when these change."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pytest
import trustme
from seriatim_api.network.tls import TlsFiles, TlsSource
from seriatim_broker.metrics.certificate_ends import CertificateEnds, first_end


@pytest.mark.parametrize("year", [2027, 2049, 2050, 3000])
def test_the_end_is_that_of_the_certificate(year: int) -> None:
    """Years from 2050 on are written in another form."""
    end = datetime(year, 3, 4, 5, 6, 7, tzinfo=UTC)
    issued = trustme.CA().issue_cert("broker", not_after=end)
    assert first_end(issued.cert_chain_pems[0].bytes()) == end.timestamp()


def test_of_several_certificates_the_first_one_to_end_counts() -> None:
    ca = trustme.CA()
    ends = [datetime(year, 1, 1, tzinfo=UTC) for year in (2040, 2030, 2035)]
    pems = [ca.issue_cert("broker", not_after=end).cert_chain_pems[0].bytes() for end in ends]
    assert first_end(b"some words before\n" + b"".join(pems)) == ends[1].timestamp()


def test_new_files_have_new_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("seriatim_api.network.tls.CHECK_INTERVAL_S", 0.0)
    ca = trustme.CA()
    files = TlsFiles(tmp_path / "ca.crt", tmp_path / "tls.crt", tmp_path / "tls.key")

    def write(year: int) -> float:
        end = datetime(year, 1, 1, tzinfo=UTC)
        issued = ca.issue_cert("broker", not_after=end)
        assert files.cert is not None
        assert files.key is not None
        files.cert.write_bytes(issued.cert_chain_pems[0].bytes())
        files.key.write_bytes(issued.private_key_pem.bytes())
        return end.timestamp()

    files.ca.write_bytes(ca.cert_pem.bytes())
    first = write(2030)
    ends = CertificateEnds(TlsSource(files))
    assert ends.all() == {"own": first, "authority": first_end(ca.cert_pem.bytes())}
    assert ends.all()["own"] != write(2031)
    assert ends.all()["own"] == datetime(2031, 1, 1, tzinfo=UTC).timestamp()
