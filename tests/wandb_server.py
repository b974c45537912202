"""What wandb has stored or sent, for tests: a reader of its offline files, and a server that takes everything."""

from __future__ import annotations

import gzip
import json
import re
import struct
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

BLOCK = 32768  # bytes; wandb's file is a log in LevelDB's format, and it brings no reader any more
KEY = "0" * 40


def records(run: Path) -> list:
    """Every record (wandb's protobuf messages) of the finished offline run under the directory `run`."""
    (file,) = run.glob("wandb/offline-run-*/*.wandb")
    for _ in range(200):  # finish() returns before its helper has written the last block
        found = _read(file.read_bytes())
        if found and found[-1].WhichOneof("record_type") == "exit":
            return found
        time.sleep(0.05)
    raise AssertionError(f"{file} has no end")


def _read(data: bytes) -> list:
    from wandb.proto import wandb_internal_pb2

    at, parts, out = 7, b"", []
    assert data[:4] in (b":W&B", b"")
    while at + 7 <= len(data):
        if BLOCK - at % BLOCK < 7:  # no header fits in there
            at += BLOCK - at % BLOCK
            continue
        _, length, kind = struct.unpack("<IHB", data[at : at + 7])
        parts += data[at + 7 : at + 7 + length]
        at += 7 + length
        if kind in (1, 4) and at <= len(data):  # whole, or the last part
            out.append(wandb_internal_pb2.Record.FromString(parts))  # pyright: ignore[reportAttributeAccessIssue]
            parts = b""
    return out


def of_kind(found: list, kind: str) -> list:
    return [getattr(record, kind) for record in found if record.WhichOneof("record_type") == kind]


def history(found: list) -> list[dict[str, Any]]:
    """Rows as they were logged; of media their description."""
    return [_values(row.item) for row in of_kind(found, "history")]


def summary(found: list) -> dict[str, Any]:
    out: dict[str, Any] = {}
    for update in of_kind(found, "summary"):
        out |= _values(update.update)
    return out


def _values(items: Any) -> dict[str, Any]:
    out: dict[str, Any] = {}
    for item in items:
        *path, name = item.nested_key or [item.key]
        node = out
        for part in path:
            node = node.setdefault(part, {})
        node[name] = json.loads(item.value_json)
    return out


class WandbServer(ThreadingHTTPServer):
    """Answers what wandb asks of its server, as far as runs, files, artifacts and views go, and keeps what it gets."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.address = f"http://127.0.0.1:{self.server_port}"
        self.asked: list[tuple[str, dict]] = []  # GraphQL operations and their variables
        self.files: dict[str, bytes] = {}  # uploaded
        self.answering = threading.Event()  # cleared: every request waits
        self.answering.set()
        self._thread = threading.Thread(target=self.serve_forever, daemon=True)

    @property
    def environment(self) -> dict[str, str]:
        return {"WANDB_BASE_URL": self.address, "WANDB_API_KEY": KEY}

    def variables(self, operation: str) -> list[dict]:
        return [variables for name, variables in self.asked if name == operation]

    def handle_error(self, *_: object) -> None:
        """wandb hangs up when it ends."""

    def __enter__(self) -> WandbServer:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.answering.set()
        self.shutdown()
        self.server_close()


class _Handler(BaseHTTPRequestHandler):
    server: WandbServer
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: object) -> None: ...

    def do_GET(self) -> None:
        self._answer({})

    def do_PUT(self) -> None:
        self.server.files[self.path.partition("?")[0]] = self._body()
        self._answer({})

    def do_POST(self) -> None:
        body = self._body()
        if self.path != "/graphql":
            self._answer({})
            return
        asked = json.loads(body)
        name = re.search(r"(?:query|mutation)\s+(\w+)", asked["query"])
        variables = asked.get("variables") or {}
        self.server.asked.append((name[1] if name else "", variables))
        self._answer({"data": self._data(name[1] if name else "", variables)})

    def _body(self) -> bytes:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        return gzip.decompress(body) if self.headers.get("Content-Encoding") == "gzip" else body

    def _answer(self, content: dict) -> None:
        self.server.answering.wait()
        body = json.dumps(content).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def _data(self, operation: str, given: dict) -> dict:
        number, address = len(self.server.asked), self.server.address
        match operation:
            case "Viewer":
                return {"viewer": {"id": "V", "entity": "us", "username": "us", "flags": "{}", "teams": {"edges": []}}}
            case "ServerFeaturesQuery":
                return {"serverInfo": {"features": []}}
            case "UpsertBucket":
                project = {"id": "P", "name": given.get("project") or "p", "entity": {"id": "E", "name": "us"}}
                bucket = {"id": "R", "name": given.get("name") or "r", "displayName": "r", "project": project}
                return {"upsertBucket": {"bucket": bucket | {"config": "{}", "historyLineCount": 0}, "inserted": True}}
            case "CreateRunFiles":
                files = [{"name": name, "uploadUrl": f"{address}/files/{name}"} for name in given["files"]]
                return {"createRunFiles": {"runID": "R", "uploadHeaders": [], "files": files}}
            case "ArtifactType":
                return {"project": None}
            case "CreateArtifact":
                sequence = {"id": "S", "latestArtifact": None}
                artifact = {"id": f"A{number}", "state": "PENDING", "artifactSequence": sequence}
                return {"createArtifact": {"artifact": artifact}}
            case "CreateArtifactManifest":
                file = {"id": "F", "name": "m", "displayName": "m", "uploadHeaders": []}
                file["uploadUrl"] = f"{address}/manifests/{number}"
                return {"createArtifactManifest": {"artifactManifest": {"id": f"M{number}", "file": file}}}
            case "CreateArtifactFiles":
                edges = [{"node": self._artifact_file(file)} for file in given["input"]["artifactFiles"]]
                return {"createArtifactFiles": {"files": {"edges": edges}}}
            case "CommitArtifact":
                return {"commitArtifact": {"artifact": {"id": given["artifactID"], "digest": "x"}}}
            case "UpsertView2":
                return {"upsertView": {"view": {"id": "W", "name": given["name"]}, "inserted": True}}
        return {}

    def _artifact_file(self, file: dict) -> dict:
        where = f"{self.server.address}/artifacts/{file['artifactID']}/{file['name']}"
        told = {"id": "F", "name": file["name"], "displayName": file["name"], "storagePath": "x", "uploadHeaders": []}
        return told | {"uploadUrl": where, "uploadMultipartUrls": None, "artifact": {"id": file["artifactID"]}}
