"""A stand-in of the Hugging Face hub on loopback: the part of its HTTP interface that fetching and pushing use.

Repositories are dicts in memory. Files of 1 KB and more are committed by way of git-lfs, as there.
"""

import base64
import hashlib
import json
import re
import threading
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote, urlsplit

from vitrail.checkpoints import repositories

TOKEN = "hf_secret"
LFS_BYTES = 1000


@dataclass
class Repository:
    files: dict = field(default_factory=dict)  # path: bytes, of main's last commit
    commits: dict = field(default_factory=dict)  # sha: files
    branches: dict = field(default_factory=dict)  # name: sha
    private: bool = False
    gated: bool = False
    read_only: bool = False
    card: dict = field(default_factory=dict)

    def commit(self, files, branch="main"):
        before = self.commits.get(self.branches.get(branch), {})
        content = {**before, **files}
        sha = hashlib.sha1(repr((len(self.commits), sorted(content.items()))).encode()).hexdigest()
        self.commits[sha], self.branches[branch] = content, sha
        return sha


class Hub:
    """`url`, `repositories` by name, `requests`: the method and path of each."""

    def __init__(self):
        self.repositories, self.uploads, self.requests, self.broken = {}, {}, [], False
        hub = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *_):
                pass

            def do(self):
                hub.requests.append(f"{self.command} {unquote(self.path)}")
                body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
                status, headers, content = hub.answer(self.command, self.path, self.headers, body)
                content = content if isinstance(content, bytes) else json.dumps(content).encode()
                self.send_response(status)
                for name, value in {"Content-Length": str(len(content)), **headers}.items():
                    self.send_header(name, value)
                self.end_headers()
                if self.command != "HEAD":
                    self.wfile.write(content)

            do_GET = do_HEAD = do_POST = do_PUT = do  # noqa: N815 - the names that it looks for

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        self.thread = threading.Thread(
            target=self.server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True
        )
        self.thread.start()

    def close(self):
        self.server.shutdown()
        self.server.server_close()
        self.thread.join()

    def answer(self, method, path, headers, body):
        token = headers.get("Authorization") == f"Bearer {TOKEN}"
        path = unquote(urlsplit(path).path)
        if self.broken:
            return error(503, "", "the hub is down")
        if match := re.fullmatch(r"/uploads/(\w+)", path):
            self.uploads[match[1]] = body
            return 200, {}, b""
        if path == "/api/validate-yaml":
            return 200, {}, {"errors": [], "warnings": []}
        if path == "/api/repos/create":
            return self.create(json.loads(body), token)
        if match := re.fullmatch(r"/api/models/(.+?/.+?)(?:/(revision|preupload|commit|branch)/(.+))?", path):
            name, verb, revision = match.groups()
        elif match := re.fullmatch(r"/(.+?/.+?)/resolve/([^/]+)/(.+)", path):
            name, verb, revision = match[1], "resolve", match[2]
        elif match := re.fullmatch(r"/(.+?/.+?)\.git/info/lfs/objects/batch", path):
            name, verb, revision = match[1], "lfs", "main"
        else:
            return error(404, "", "no such page")
        repository = self.repositories.get(name)
        if repository is None or (repository.private and not token):
            return error(404 if token else 401, "RepoNotFound", "Repository not found")
        if repository.gated and not token:
            return error(401, "GatedRepo", "Access to this model is restricted")
        if verb in ("preupload", "commit", "lfs", "branch") and (repository.read_only or not token):
            return error(403, "", "You have no write access")
        if verb in ("preupload", "lfs"):
            return getattr(self, verb)(repository, json.loads(body))
        if verb == "branch":
            repository.branches.setdefault(revision, repository.branches.get("main"))
            return 200, {}, {}
        if verb == "commit":
            return self.commit(repository, name, revision, body)
        sha = repository.branches.get(revision or "main", revision)
        if sha not in repository.commits:
            return error(404, "RevisionNotFound", "Revision not found")
        files = repository.commits[sha]
        if verb != "resolve":
            siblings = [{"rfilename": path, "size": len(data)} for path, data in files.items()]
            return 200, {}, {"id": name, "sha": sha, "siblings": siblings, "cardData": repository.card}
        if match[3] not in files:
            return error(404, "EntryNotFound", "Entry not found")
        data = files[match[3]]
        return 200, {"X-Repo-Commit": sha, "ETag": f'"{hashlib.sha1(data).hexdigest()}"'}, data

    def create(self, asked, token):
        name = f"{asked['organization'] or 'me'}/{asked['name']}"
        if not token:
            return error(401, "", "Invalid credentials")
        answer = {"url": f"{self.url}/{name}"}
        if name in self.repositories:
            return 409, {}, answer
        self.repositories[name] = Repository(
            private=asked.get("visibility") == "private" or bool(asked.get("private"))
        )
        return 200, {}, answer

    def preupload(self, repository, asked):
        modes = [
            {
                "path": one["path"],
                "uploadMode": "lfs" if one["size"] >= LFS_BYTES else "regular",
                "shouldIgnore": False,
            }
            for one in asked["files"]
        ]
        return 200, {}, {"files": modes}

    def lfs(self, repository, asked):
        objects = [
            {**one, "actions": {"upload": {"href": f"{self.url}/uploads/{one['oid']}"}}}
            for one in asked["objects"]
        ]
        return 200, {}, {"transfer": "basic", "objects": objects}

    def commit(self, repository, name, revision, body):
        files = {}
        for line in map(json.loads, body.splitlines()):
            if line["key"] == "file":
                files[line["value"]["path"]] = base64.b64decode(line["value"]["content"])
            elif line["key"] == "lfsFile":
                data = self.uploads[line["value"]["oid"]]
                assert hashlib.sha256(data).hexdigest() == line["value"]["oid"]
                files[line["value"]["path"]] = data
        sha = repository.commit(files, revision)
        return 200, {}, {"commitUrl": f"{self.url}/{name}/commit/{sha}", "commitOid": sha}


def error(status, code, message):
    return status, {"X-Error-Code": code, "X-Error-Message": message}, {"error": message}


@contextmanager
def in_place_of_the_hub(monkeypatch, cache):
    """Yield a stand-in that huggingface_hub takes for the hub, with a token and an empty cache."""
    import huggingface_hub
    from huggingface_hub import constants

    hub = Hub()
    monkeypatch.setattr(constants, "ENDPOINT", hub.url)
    monkeypatch.setattr(
        constants, "HUGGINGFACE_CO_URL_TEMPLATE", hub.url + "/{repo_id}/resolve/{revision}/{filename}"
    )
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(cache))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    repositories.fetch.cache_clear()
    huggingface_hub.close_session()
    yield hub
    huggingface_hub.close_session()
    hub.close()
    repositories.fetch.cache_clear()


def put(hub, name, folder, **facts):
    """Make a repository with the files of a folder; return its commit."""
    repository = hub.repositories.setdefault(name, Repository(**facts))
    return repository.commit({path.name: path.read_bytes() for path in folder.iterdir()})
