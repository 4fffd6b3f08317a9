"""The guard: Host, Origin, key, token, and bodies that are too long or too slow."""

import asyncio
from contextlib import suppress

import pytest

from tests.serve.asking import HOST, ORIGIN, ask, picture
from vitrail.errors import ConfigError
from vitrail.serve import guard
from vitrail.serve.guard import Access, Guard, digest, read_key
from vitrail.serve.metrics import Metrics
from vitrail.serve.start import make_access

KEY = "0123456789abcdef"


async def echo(scope, receive, send):
    """Answer with the length of the body."""
    n, more = 0, True
    while more:
        message = await receive()
        n += len(message.get("body", b""))
        more = message.get("more_body", False)
    body = str(n).encode()
    await send(
        {"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"%d" % len(body))]}
    )
    await send({"type": "http.response.body", "body": body})


def guarded(access=None, **limits):
    return Guard(echo, access or Access(), Metrics(), **limits)


@pytest.mark.parametrize("host", ["127.0.0.1:8000", "localhost", "LOCALHOST:1", "[::1]:8000", "[::1]"])
def test_own_names(host):
    assert ask(guarded(), "GET", "/x", host=host).status == 200


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "localhost.evil.example",
        "127.0.0.1.evil.example",
        "1.2.3.4",
        "",
        "localhost:80:80",
        "[::1",
    ],
)
def test_other_names_may_be_a_web_site_pointed_here(host):
    assert ask(guarded(), "GET", "/x", host=host).status == 421


def test_addresses_and_further_names():
    access = (
        make_access("0.0.0.0", None, []) if False else Access(frozenset(("models.example",)), addresses=True)
    )
    assert ask(guarded(access), "GET", "/x", host="10.1.2.3:8000").status == 200
    assert ask(guarded(access), "GET", "/x", host="models.example").status == 200
    assert ask(guarded(access), "GET", "/x", host="evil.example").status == 421


@pytest.mark.parametrize(
    "origin", ["http://evil.example", "null", "http://127.0.0.1:9000", "http://localhost:8000", ""]
)
def test_pages_of_other_origins_may_not_use_the_server(origin):
    assert ask(guarded(), "POST", "/v1/models/a/predict", b"x", origin=origin).status == 403
    assert ask(guarded(), "GET", "/v1/session", origin=origin).status == 403


def test_the_own_page_may():
    assert ask(guarded(), "POST", "/v1/models/a/predict", b"x", origin=ORIGIN).status == 200
    assert ask(guarded(), "POST", "/v1/models/a/predict", b"x", origin=f"https://{HOST}").status == 200


@pytest.mark.parametrize("method", ["POST", "DELETE", "PUT", "PATCH"])
def test_changes_need_origin_and_token(method):
    access = Access()
    app, token = guarded(access), access.token
    for path in ("/v1/learn", "/v1/learn/cups/photos"):
        assert ask(app, method, path, origin=ORIGIN, x_vitrail_token=token).status == 200
        assert ask(app, method, path, x_vitrail_token=token).status == 403
        assert ask(app, method, path, origin=ORIGIN).status == 403
        assert ask(app, method, path, origin=ORIGIN, x_vitrail_token=token[:-1]).status == 403
        assert ask(app, method, path, origin="http://evil.example", x_vitrail_token=token).status == 403
        assert ask(app, "GET", path).status == 200


def test_tokens_are_of_one_server():
    assert Access().token != Access().token


def test_a_key():
    app = guarded(Access(key=digest(KEY.encode())))
    assert ask(app, "GET", "/v1/models", authorization=f"Bearer {KEY}").status == 200
    assert ask(app, "GET", "/v1/models", authorization=f"bearer {KEY}").status == 200
    for wrong in (f"Bearer {KEY[:-1]}", f"Bearer {KEY}0", "Bearer ", f"Basic {KEY}", KEY, "", "Bearer \xff"):
        reply = ask(app, "GET", "/v1/models", authorization=wrong)
        assert (reply.status, reply.headers["www-authenticate"]) == (401, "Bearer"), wrong
    assert ask(app, "GET", "/v1/models").status == ask(app, "GET", "/v1/session").status == 401
    assert ask(app, "GET", "/metrics").status == 401
    for path in ("/", "/static/page.js", "/healthz", "/readyz"):
        assert ask(app, "GET", path).status == 200, path


def test_key_files(tmp_path):
    file = tmp_path / "key"
    file.write_text(KEY + "\n")
    assert read_key(file) == KEY
    for wrong in ("", "short", "two words of sixteen", f"{KEY}\n{KEY}", "ü" * 20):
        file.write_text(wrong)
        with pytest.raises(ConfigError):
            read_key(file)


def test_others_can_reach_only_a_server_with_a_key(tmp_path):
    file = tmp_path / "key"
    file.write_text(KEY)
    for host in ("0.0.0.0", "10.0.0.1", "models.example"):
        with pytest.raises(ConfigError, match="key-file"):
            make_access(host, None, [])
    access = make_access("0.0.0.0", str(file), ["models.example"])
    assert access.key is not None and access.addresses
    assert not make_access("127.0.0.1", None, []).addresses


def test_long_bodies(monkeypatch):
    monkeypatch.setattr(guard, "MAX_BODY", 1000)
    app = guarded()
    assert ask(app, "POST", "/x", b"a" * 1000).body == b"1000"
    announced = ask(app, "POST", "/x", b"", content_length=str(4 << 30))
    assert announced.status == 413 and announced.headers["connection"] == "close"
    assert ask(app, "POST", "/x", b"", content_length="9" * 100).status == 413
    assert ask(app, "POST", "/x", b"", content_length="-1").status == 413
    assert ask(app, "POST", "/x", [b"a" * 600, b"a" * 600, b"a"]).status == 413
    assert app.held == 0


def test_a_request_without_a_body_keeps_its_connection(app, state):
    headers = {"origin": ORIGIN, "x_vitrail_token": state.access.token, "content_length": "0"}
    reply = ask(app, "POST", "/v1/learn/nope/fewshot", **headers)
    assert reply.status == 404 and "connection" not in reply.headers


def test_bodies_of_all_requests_together_are_bounded(monkeypatch):
    monkeypatch.setattr(guard, "MAX_BODIES", 1000)
    app = guarded()
    app.held = 900  # of others
    reply = ask(app, "POST", "/x", b"a" * 200)
    assert reply.status == 503 and reply.headers["retry-after"] == "1"
    assert app.held == 900
    assert ask(app, "POST", "/x", b"a" * 50).status == 200


def test_slow_bodies(monkeypatch):
    monkeypatch.setattr(guard, "LINGER_SECONDS", 0.05)
    reply = ask(guarded(body_seconds=0.1), "POST", "/x", [b"a", None])
    assert reply.status == 408 and reply.headers["connection"] == "close" and "seconds" in reply.json["error"]


async def slow_answer(scope, receive, send):
    """Answer later than the deadline of the body, and look meanwhile whether the client is still there."""
    await receive()
    with suppress(TimeoutError):
        async with asyncio.timeout(0.3):
            await receive()
    await echo(scope, nothing, send)


async def nothing():
    return {"type": "http.request"}


@pytest.mark.parametrize("body", [b"", b"a"])
def test_an_answer_may_take_longer_than_a_body(body):
    reply = ask(Guard(slow_answer, Access(), Metrics(), body_seconds=0.05), "POST", "/x", body)
    assert reply.status == 200


def test_every_answer_has_the_headers_that_bind_a_browser(app):
    for reply in (
        ask(app, "GET", "/v1/models"),
        ask(app, "GET", "/nope"),
        ask(app, "GET", "/x", host="evil.example"),
    ):
        policy = reply.headers["content-security-policy"]
        assert "default-src 'none'" in policy and "unsafe" not in policy and "script-src 'self'" in policy
        assert reply.headers["x-content-type-options"] == "nosniff"
        assert "access-control-allow-origin" not in reply.headers


def test_a_refused_body_is_read_on_for_a_moment(app):
    """So that a client that still sends sees the answer."""
    reply = ask(app, "POST", "/v1/models/nope/predict", [picture()] * 3, content_type="text/plain")
    assert reply.status == 415 and reply.headers["connection"] == "close"
