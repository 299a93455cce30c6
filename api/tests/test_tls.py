"""Certificates in files: what is refused and why, and what happens when they change while they are used."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import trustme
from cryptography.hazmat.primitives import serialization
from seriatim_api.errors import PreconditionError
from seriatim_api.network import tls
from seriatim_api.network.tls import TlsFiles, TlsSource, read


@pytest.fixture(autouse=True)
def always_look(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tls, "CHECK_INTERVAL_S", 0.0)


def issue(directory: Path) -> TlsFiles:
    """A CA and a certificate of it."""
    directory.mkdir()
    authority = trustme.CA()
    certificate = authority.issue_cert("localhost")
    files = TlsFiles(directory / "ca.crt", directory / "tls.crt", directory / "tls.key")
    authority.cert_pem.write_to_path(str(files.ca))
    certificate.cert_chain_pems[0].write_to_path(str(files.cert))
    certificate.private_key_pem.write_to_path(str(files.key))
    return files


class Told(list[str]):
    """What a source says of changes: "" for files that it took."""

    def __call__(self, refused: PreconditionError | None) -> None:
        self.append(refused.message if refused is not None else "")


def test_what_is_read_is_what_the_files_hold_and_the_key_is_not_shown(tmp_path: Path) -> None:
    files = issue(tmp_path / "a")
    assert files.cert is not None
    assert files.key is not None
    material = read(files)
    assert (material.ca, material.cert, material.key) == tuple(
        file.read_bytes() for file in (files.ca, files.cert, files.key)
    )
    assert "PRIVATE" not in repr(material)
    assert read(TlsFiles(files.ca)).cert is None


def test_a_certificate_without_its_key_is_refused() -> None:
    for files in ((Path("a"), Path("b"), None), (Path("a"), None, Path("b"))):
        with pytest.raises(PreconditionError, match="come together"):
            TlsFiles(*files)


@pytest.mark.parametrize(
    ("name", "content", "text"),
    [
        ("ca.crt", None, r"ca\.crt cannot be read: No such file.*Remedy"),
        ("tls.key", None, r"tls\.key cannot be read: No such file.*Remedy"),
        ("ca.crt", b"", r"ca\.crt holds no CA certificate.*Remedy"),
        ("ca.crt", b"\xff\xfe", r"ca\.crt holds no CA certificate.*Remedy"),
        ("tls.crt", b"half", r"are not a certificate and a private key in PEM.*Remedy"),
        ("tls.key", b"", r"are not a certificate and a private key in PEM.*Remedy"),
    ],
)
def test_bad_files_are_named_with_what_to_do(tmp_path: Path, name: str, content: bytes | None, text: str) -> None:
    files = issue(tmp_path / "a")
    if content is None:
        (tmp_path / "a" / name).unlink()
    else:
        (tmp_path / "a" / name).write_bytes(content)
    with pytest.raises(PreconditionError, match=text):
        read(files)


def test_the_key_of_another_certificate_is_refused(tmp_path: Path) -> None:
    ours, theirs = issue(tmp_path / "a"), issue(tmp_path / "b")
    with pytest.raises(PreconditionError, match="belong to different keys"):
        read(TlsFiles(ours.ca, ours.cert, theirs.key))


def test_an_encrypted_key_is_refused_without_asking_for_the_passphrase(tmp_path: Path) -> None:
    files = issue(tmp_path / "a")
    assert files.key is not None
    key = serialization.load_pem_private_key(files.key.read_bytes(), None)
    files.key.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.BestAvailableEncryption(b"secret"),
        )
    )
    with pytest.raises(PreconditionError, match="is encrypted"):
        read(files)


def test_new_files_are_taken_once_and_told_once(tmp_path: Path) -> None:
    used, new = issue(tmp_path / "used"), issue(tmp_path / "new")
    told = Told()
    source = TlsSource(used, told)
    first = source.current()
    assert source.current() == first
    shutil.copytree(tmp_path / "new", tmp_path / "used", dirs_exist_ok=True)
    generation, material = source.current()
    assert generation == first[0] + 1
    assert material == read(new)
    assert source.generation == generation
    assert told == [""]


def test_half_of_a_change_leaves_the_old_ones_in_use_and_is_told_once(tmp_path: Path) -> None:
    used, new = issue(tmp_path / "used"), issue(tmp_path / "new")
    told = Told()
    source = TlsSource(used, told)
    old = source.current()
    shutil.copy(tmp_path / "new" / "tls.crt", tmp_path / "used" / "tls.crt")
    for _ in range(3):
        assert source.current() == old
    assert len(told) == 1
    assert "different keys" in told[0]
    (tmp_path / "used" / "tls.key").unlink()
    assert source.current() == old
    assert len(told) == 2
    assert "cannot be read" in told[1]
    shutil.copytree(tmp_path / "new", tmp_path / "used", dirs_exist_ok=True)
    assert source.current()[1] == read(new)
    assert told[2:] == [""]


def test_files_that_change_while_they_are_read_are_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    used, new = issue(tmp_path / "used"), issue(tmp_path / "new")
    told = Told()
    source = TlsSource(used, told)
    old = source.current()
    shutil.copytree(tmp_path / "new", tmp_path / "used", dirs_exist_ok=True)
    plain_read = tls.read

    def read_and_change(files: TlsFiles) -> tls.TlsMaterial:
        found = plain_read(files)
        monkeypatch.setattr(tls, "read", plain_read)
        files.ca.write_bytes(files.ca.read_bytes() + b"\n")  # the writer of the files is not ready yet
        return found

    monkeypatch.setattr(tls, "read", read_and_change)
    assert source.current() == old
    assert source.current()[1].cert == read(new).cert
    assert told == [""]


def test_the_files_are_not_looked_at_with_every_question(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tls, "CHECK_INTERVAL_S", 3600.0)
    source = TlsSource(issue(tmp_path / "used"))
    shutil.rmtree(tmp_path / "used")
    looks: list[TlsFiles] = []
    monkeypatch.setattr(tls, "_fingerprint", looks.append)
    assert source.current()[1].cert is not None
    assert looks == []


NOT_CONNECTED = "failed to connect to all addresses; last error: UNAVAILABLE: ipv4:127.0.0.1:7100: "


@pytest.mark.parametrize(
    ("details", "cause"),
    [
        ("Tls handshake failed: CERTIFICATE_VERIFY_FAILED: certificate has expired: OK", "certificate has expired"),
        ("Tls handshake failed: CERTIFICATE_VERIFY_FAILED: certificate is not yet valid", "do the clocks agree"),
        ("Tls handshake failed: CERTIFICATE_VERIFY_FAILED: unable to get local issuer", "not issued by the CA"),
        ("Hostname Verification Check failed.", "for other names"),
        ("Tls handshake failed: WRONG_VERSION_NUMBER", "does not speak TLS"),
        ("Tls handshake failed: something new", "could not agree on TLS"),
        ("Socket closed", "does not accept the certificate that was shown"),
        ("Secure read failed (Socket closed)", "does not accept the certificate that was shown"),
        ("Unwrap failed (TSI_DATA_CORRUPTED)", "does not accept the certificate that was shown"),
    ],
)
def test_the_cause_of_a_failed_handshake_is_put_in_words(details: str, cause: str) -> None:
    assert cause in (tls.explain(NOT_CONNECTED + details, shows_certificate=True) or "")
    assert tls.explain(details, shows_certificate=True) is None, "it was connected: TLS is not the cause"


def test_who_shows_no_certificate_is_told_so_and_other_failures_are_left_alone() -> None:
    asked = tls.explain(f"{NOT_CONNECTED}Socket closed", shows_certificate=False)
    assert asked is not None
    assert "none was shown" in asked
    assert (
        tls.explain(f"{NOT_CONNECTED}Failed to connect to remote host: Connection refused", shows_certificate=True)
        is None
    )
