"""Abuse from all sides at once, while a client with good manners gets right answers all the while."""

import resource
import struct
import threading
import time
import zlib
from collections import Counter
from contextlib import suppress
from pathlib import Path

import pytest

from tests.serve.asking import multipart, picture
from tests.serve.test_server import Running

pytestmark = pytest.mark.long
SECONDS = 25.0
HEAD = "POST /v1/models/{} HTTP/1.1\r\nhost: {}\r\ncontent-type: {}\r\n{}content-length: {}\r\n\r\n"


def post(body, model="small/predict", host="127.0.0.1", kind="image/png", more="", length=None):
    return HEAD.format(model, host, kind, more, len(body) if length is None else length).encode() + body


def bomb(side=60_000):
    """Return a PNG of a few kB whose pixels would take 10 GB."""

    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0)
    data = zlib.compress(bytes(10_000_000), 9)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", data) + chunk(b"IEND", b"")


MANY, FORM = multipart(**{f"f{i}": b"x" for i in range(99)})

# request: the status of its answer
RUDE = {
    "bomb": (post(bomb()), b"422"),
    "truncated": (post(picture()[:500]), b"422"),
    "wrong type": (post(b"<html>", kind="text/html"), b"415"),
    "no model": (post(picture(), model="..%2f..%2fetc/predict"), b"404"),
    "another name": (post(picture(), host="evil.example"), b"421"),
    "another origin": (post(picture(), more="origin: http://evil.example\r\n"), b"403"),
    "no token": (post(b"{}", model="x").replace(b"/v1/models/x", b"/v1/learn"), b"403"),
    "no JSON": (post(b"[" * 200_000, kind="application/json"), b"400"),
    "4 GB": (post(b"", length=4 << 30), b"413"),
    "many parts": (post(MANY, kind=FORM), b"400"),
    "no HTTP": (b"\x00\x01\x02\x03\r\n\r\n", b"400"),
}  # fmt: skip


class Attack:
    def __init__(self, server, until):
        self.server, self.until, self.seen = server, until, Counter()

    def over(self):
        return time.monotonic() > self.until

    def idle(self):
        """Open as many connections as open files allow, again and again."""
        soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
        held = []
        while not self.over():
            if len(held) >= min(10_000, soft - 500):
                time.sleep(0.1)
                continue
            with suppress(OSError):
                held.append(self.server.connect())
        self.seen["idle"] = len(held)
        for one in held:
            one.close()

    def slow(self):
        """Send bodies a byte at a time."""
        held = []
        for _ in range(100):
            with suppress(OSError):
                one = self.server.connect()
                one.sendall(post(b"", length=100_000))
                held.append(one)
        while not self.over():
            for one in held:
                with suppress(OSError):
                    one.sendall(b"x")
            time.sleep(0.5)
        self.seen["slow"] = len(held)
        for one in held:
            one.close()

    def endless(self):
        """Send bodies without end."""
        while not self.over():
            with suppress(OSError), self.server.connect() as one:
                one.sendall(
                    post(b"", length=4 << 30).replace(
                        b"content-length: 4294967296", b"transfer-encoding: chunked"
                    )
                )
                while not self.over():
                    one.sendall(b"100000\r\n" + bytes(1 << 20) + b"\r\n")
                    self.seen["endless"] += 1

    def rude(self):
        """Send what must be refused, and look at the answers."""
        while not self.over():
            for name, (request, status) in RUDE.items():
                with suppress(OSError), self.server.connect() as one:
                    one.sendall(request)
                    line = one.recv(4096).partition(b"\r\n")[0]
                    if line:
                        self.seen[f"{name}: {'right' if line.split()[1] == status else line}"] += 1
                time.sleep(0.02)


def resident(server):
    lines = Path(f"/proc/{server.process.pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1e3 for line in lines if line.startswith("VmRSS"))


def test_abuse(small_model, tmp_path):
    server = Running(f"small={small_model}", "--learn", str(tmp_path / "learn"))
    expected = server.predict()
    attack = Attack(server, time.monotonic() + SECONDS)
    threads = [
        threading.Thread(target=one) for one in (attack.idle, attack.slow, attack.endless, attack.rude)
    ]
    before = resident(server)
    for thread in threads:
        thread.start()
    times, peak = [], before
    while not attack.over():
        start = time.monotonic()
        assert server.predict() == expected
        times.append(time.monotonic() - start)
        peak = max(peak, resident(server))
        time.sleep(0.05)
    for thread in threads:
        thread.join()
    times.sort()
    print(f"{dict(attack.seen)}\n{len(times)} answers of the others, median {times[len(times) // 2]:.3f} s, "
          f"longest {times[-1]:.3f} s; memory {before:.0f} MB, at most {peak:.0f} MB")  # fmt: skip
    for name in RUDE:
        assert attack.seen[f"{name}: right"] > 0, attack.seen
        assert not [seen for seen in attack.seen if seen.startswith(f"{name}: b")], attack.seen
    assert len(times) > 20 and attack.seen["idle"] > 500
    assert server.stop() == (0, "")
