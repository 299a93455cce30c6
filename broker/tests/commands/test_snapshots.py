"""Snapshots of etcd: which are stored, which stay, and what a restore finds."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import parse_qs, unquote, urlsplit

import pytest
from click.testing import CliRunner
from seriatim_broker.commands import coordinator
from seriatim_broker.process.snapshot_command import Bucket, Directory, Store, get, keep

NOW = datetime(2026, 11, 29, 11, 17, tzinfo=UTC)
HOUR = timedelta(hours=1)


class Objects(BaseHTTPRequestHandler):
    """The part of S3 that is used: objects by key, uploaded in full or in parts."""

    protocol_version = "HTTP/1.1"
    held: dict[str, bytes]
    parts: dict[str, dict[int, bytes]]

    def log_message(self, *_: object) -> None:
        pass

    def _answer(self, body: str | bytes = b"", status: int = 200, **headers: str) -> None:
        content = body.encode() if isinstance(body, str) else body
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    @property
    def _key(self) -> str:
        return unquote(urlsplit(self.path).path).lstrip("/")

    @property
    def _query(self) -> dict[str, str]:
        return {name: values[0] for name, values in parse_qs(urlsplit(self.path).query, True).items()}

    def _body(self) -> bytes:
        body = b""
        if self.headers.get("Transfer-Encoding") == "chunked":
            while size := int(self.rfile.readline(), 16):
                body += self.rfile.read(size)
                self.rfile.readline()
            self.rfile.readline()
        else:
            body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        if "aws-chunked" not in self.headers.get("Content-Encoding", ""):
            return body
        whole = b""
        while body:
            head, _, rest = body.partition(b"\r\n")
            size = int(head.split(b";")[0], 16)
            whole, body = whole + rest[:size], rest[size + 2 :] if size else b""
        return whole

    def do_PUT(self) -> None:
        body = self._body()
        if "partNumber" in self._query:
            self.parts.setdefault(self._key, {})[int(self._query["partNumber"])] = body
        else:
            self.held[self._key] = body
        self._answer(ETag='"x"')

    def do_POST(self) -> None:
        self._body()
        if "uploads" in self._query:
            self._answer(f"<InitiateMultipartUploadResult><UploadId>1</UploadId><Key>{self._key}</Key>"
                         "</InitiateMultipartUploadResult>")  # fmt: skip
        elif "delete" in self._query:
            self._answer("<DeleteResult></DeleteResult>")
        else:
            self.held[self._key] = b"".join(part for _, part in sorted(self.parts.pop(self._key).items()))
            self._answer("<CompleteMultipartUploadResult><ETag>x</ETag></CompleteMultipartUploadResult>")

    def do_GET(self) -> None:
        if "list-type" in self._query:
            prefix, bucket = self._query.get("prefix", ""), self._key.split("/")[0]
            rows = "".join(
                f"<Contents><Key>{key.partition('/')[2]}</Key><Size>{len(held)}</Size>"
                "<LastModified>2026-11-29T11:17:00.000Z</LastModified></Contents>"
                for key, held in sorted(self.held.items())
                if key.startswith(f"{bucket}/{prefix}")
            )
            self._answer(f"<ListBucketResult><IsTruncated>false</IsTruncated>{rows}</ListBucketResult>")
        elif self._key in self.held:
            content = self.held[self._key]
            first, _, last = self.headers.get("Range", "bytes=0-").removeprefix("bytes=").partition("-")
            part = content[int(first) : int(last) + 1 if last else None]
            span = f"bytes {first}-{int(first) + len(part) - 1}/{len(content)}"
            self._answer(part, 206 if "Range" in self.headers else 200, Content_Range=span)
        else:
            self._answer(status=404)

    def do_HEAD(self) -> None:
        if self._key in self.held:
            self._answer(self.held[self._key])
        else:
            self._answer(status=404)

    def do_DELETE(self) -> None:
        self.held.pop(self._key, None)
        self._answer(status=204)


@pytest.fixture(params=["directory", "bucket"])
def store(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Store]:
    if request.param == "directory":
        (tmp_path / "kept").mkdir()
        yield Directory(tmp_path / "kept")
        return
    handler = type("Handler", (Objects,), {"held": {}, "parts": {}})
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "a")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "b")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        yield Bucket("s3://backups/shop", {"AWS_ENDPOINT_URL": f"http://127.0.0.1:{server.server_port}"})
        server.shutdown()


@pytest.fixture
def snapshot(tmp_path: Path) -> Path:
    file = tmp_path / "etcd.db"
    file.write_bytes(b"x" * 1000)
    return file


def test_the_newest_snapshots_stay_and_other_files_are_left_alone(store: Store, snapshot: Path) -> None:
    store.put(snapshot, "notes.txt")
    store.put(snapshot, "etcd-last.db")
    for number in range(4):
        name, removed = keep(snapshot, store, 2, NOW + number * HOUR)
        assert name == f"etcd-20261129T{11 + number}1700Z.db"
        assert removed == ([f"etcd-20261129T{9 + number}1700Z.db"] if number >= 2 else [])
    assert sorted(store.names()) == [
        "etcd-20261129T131700Z.db", "etcd-20261129T141700Z.db", "etcd-last.db", "notes.txt",
    ]  # fmt: skip


def test_the_newest_snapshot_is_got_unless_another_is_named(store: Store, snapshot: Path, tmp_path: Path) -> None:
    for number in range(3):
        snapshot.write_bytes(b"%d" % number * 1000)
        keep(snapshot, store, 9, NOW + number * HOUR)
    out, data = tmp_path / "out.db", tmp_path / "data"
    assert get(store, "", out, data, NOW) == ("etcd-20261129T131700Z.db", None)
    assert out.read_bytes() == b"2" * 1000
    data.mkdir()
    (data / "wal").write_text("old")
    found, aside = get(store, "etcd-20261129T111700Z.db", out, data, NOW)
    assert (found, aside) == ("etcd-20261129T111700Z.db", tmp_path / "data-before-20261129T111700Z")
    assert out.read_bytes() == b"0" * 1000
    assert (tmp_path / "data-before-20261129T111700Z" / "wal").read_text() == "old"
    assert not data.exists()


@pytest.mark.parametrize("name", ["", "etcd-20261129T111700Z.db"])
def test_without_the_snapshot_the_data_stays_where_it_is(store: Store, name: str, tmp_path: Path) -> None:
    data = tmp_path / "data"
    data.mkdir()
    with pytest.raises(OSError, match=r"."):
        get(store, name, tmp_path / "out.db", data, NOW)
    assert data.exists()


def test_a_copy_that_broke_off_is_no_snapshot_and_goes(tmp_path: Path, snapshot: Path) -> None:
    (tmp_path / "etcd-20261129T101700Z.db.partial").write_text("half")
    store = Directory(tmp_path)
    name, removed = keep(snapshot, store, 1, NOW)
    assert removed == ["etcd-20261129T101700Z.db.partial"]
    assert (tmp_path / name).read_bytes() == snapshot.read_bytes()


def test_a_store_that_takes_nothing_is_told(tmp_path: Path, snapshot: Path) -> None:
    said = CliRunner().invoke(
        coordinator, ["keep-snapshot", "--file", str(snapshot), "--to", str(tmp_path / "nowhere")]
    )
    assert said.exit_code == 1
    assert "the snapshot is not stored" in said.output
    said = CliRunner().invoke(coordinator, ["get-snapshot", "--file", str(snapshot), "--from", str(tmp_path)])
    assert said.exit_code == 1
    assert "there is no snapshot" in said.output
