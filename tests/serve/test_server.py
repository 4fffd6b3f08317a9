"""The server as a process: connections that send nothing, SIGTERM under load, the documented clients."""

import json
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

from tests.serve.asking import picture
from vitrail.errors import ConfigError
from vitrail.serve.server import bounded_protocol, listen, most_connections

PAGE = (Path(__file__).parents[2] / "docs/serving.md").read_text()


class Running:
    def __init__(self, *flags, prelude="pass"):
        code = f"import sys; {prelude}; from vitrail.cli import main; main(sys.argv[1:])"
        words = [
            sys.executable,
            "-c",
            code,
            "serve",
            *flags,
            "--port",
            "0",
            "--device",
            "cpu",
            "--deadline",
            "60",
        ]
        self.process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        line = self.process.stdout.readline()
        assert "Serving" in line, line + self.process.stderr.read()
        self.address = re.search(r"http://\S+", line)[0]
        self.port = int(self.address.rpartition(":")[2])

    def connect(self):
        return socket.create_connection(("127.0.0.1", self.port), timeout=60)

    def predict(self, image=None):
        url = f"{self.address}/v1/models/small/predict"
        request = urllib.request.Request(url, image or picture(), {"content-type": "image/jpeg"})
        return json.load(urllib.request.urlopen(request, timeout=60))

    def stop(self):
        self.process.send_signal(signal.SIGTERM)
        _, errors = self.process.communicate(timeout=60)
        return self.process.returncode, errors


HEADER_SECONDS = 2.0  # short for these tests, and long for a client on a busy machine
SHORT = (
    "import vitrail.serve.server as s; s.MOST_CONNECTIONS = 20; "
    f"s.bounded_protocol.__defaults__ = ({HEADER_SECONDS},)"
)


@pytest.fixture(scope="module")
def server(small_model):
    running = Running(f"small={small_model}", prelude=SHORT)
    yield running
    if running.process.poll() is None:
        assert running.stop() == (0, "")


def read_all(connection):
    data = b""
    with suppress(ConnectionResetError):
        while part := connection.recv(65536):
            data += part
    return data


def test_connections_that_send_nothing_keep_nobody_out(server):
    with ExitStack() as stack:
        for _ in range(100):  # five times as many as may be open
            stack.enter_context(server.connect())
        assert server.predict()["results"][0]["top"]


def test_headers_that_do_not_come_end_the_connection(server):
    sent = (b"", b"GET /heal", b"GET /healthz HTTP/1.1\r\nhost: 127.0.0.1\r\n")
    start = time.monotonic()
    with ExitStack() as stack:
        connections = [stack.enter_context(server.connect()) for _ in sent]
        for connection, data in zip(connections, sent, strict=True):
            connection.sendall(data)
        assert [read_all(connection) for connection in connections] == [b""] * 3
    assert HEADER_SECONDS <= time.monotonic() - start < 30


def test_headers_that_drip_do_not_hold_a_connection(server):
    with server.connect() as connection, pytest.raises((ConnectionResetError, BrokenPipeError)):
        for i in range(300):  # for half a minute
            connection.sendall(b"GET / HTTP/1.1\r\n" if not i else b"a: b\r\n")
            time.sleep(0.1)


def test_long_headers_are_refused(server):
    with server.connect() as connection:
        connection.sendall(b"GET /healthz HTTP/1.1\r\nhost: 127.0.0.1\r\n")
        with suppress(OSError):  # closed meanwhile
            for _ in range(20):
                connection.sendall(b"x: " + b"a" * 16384 + b"\r\n")
                time.sleep(0.01)
        assert b"431" in read_all(connection).partition(b"\r\n")[0]
    assert server.predict()


def test_what_is_no_http_is_answered(server):
    with server.connect() as connection:
        connection.sendall(b"\x16\x03\x01 this is not HTTP\r\n\r\n")
        assert read_all(connection).startswith(b"HTTP/1.1 400")


def test_an_upload_that_is_too_long_sees_the_answer(server):
    with server.connect() as connection:
        head = f"POST /v1/models/small/predict HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-length: {4 << 30}\r\n"
        connection.sendall(head.encode() + b"content-type: image/jpeg\r\n\r\n")
        with suppress(OSError):  # closed meanwhile
            for _ in range(1000):
                connection.sendall(bytes(1 << 16))
        connection.settimeout(60)
        assert read_all(connection).startswith(b"HTTP/1.1 413")
    assert server.predict()


def test_several_requests_on_one_connection_keep_their_order(server):
    requests = b""
    for i, (path, image) in enumerate(
        (("predict", picture()), ("predict", b"no image"), ("features", picture()))
    ):
        head = f"POST /v1/models/small/{path} HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: image/jpeg\r\n"
        last = "connection: close\r\n" if i == 2 else ""
        requests += f"{head}{last}content-length: {len(image)}\r\n\r\n".encode() + image
    with server.connect() as connection:
        connection.sendall(requests)
        statuses = re.findall(rb"HTTP/1.1 (\d+)", read_all(connection))
    assert statuses == [b"200", b"422", b"200"]


def clients_of_the_page():
    return re.findall(r"^```text\n(import .*?)^```", PAGE, re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("number", [0, 1], ids=["python", "javascript"])
def test_the_clients_of_the_page(server, number, tmp_path):
    code = clients_of_the_page()[number]
    assert len(code.strip().splitlines()) <= 18
    command = [sys.executable, "client.py"] if number == 0 else [shutil.which("node"), "client.mjs"]
    if command[0] is None:
        pytest.skip("there is no node")
    code = code.replace("http://127.0.0.1:8000", server.address).replace("models/ti8-64", "models/small")
    (tmp_path / command[1]).write_text(code)
    (tmp_path / "photo.jpg").write_bytes(picture())
    done = subprocess.run(
        [*command, "photo.jpg"], cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) == 3 and "Chihuahua" in done.stdout


def test_the_command_line_as_a_client(server, tmp_path, vitrail_command):
    (tmp_path / "a.jpg").write_bytes(picture())
    (tmp_path / "b.jpg").write_bytes(b"no image")
    code, out, err = vitrail_command("predict", "small", tmp_path, "--server", server.address, "--json")
    content = json.loads(out)
    assert code == 2 and "b.jpg" in err
    expected = server.predict()["results"][0]["top"]
    (image,) = content["images"]
    assert [one["name"] for one in image["top"]] == [one["name"] for one in expected]
    for model, address in (("nope", server.address), ("small", "http://127.0.0.1:9")):
        code, _, err = vitrail_command("predict", model, tmp_path / "a.jpg", "--server", address)
        assert code == 2 and address in err


def test_sigterm_finishes_what_is_under_way(small_model):
    """Requests that were accepted are answered, later ones find no server, and the exit code is 0."""
    server = Running(f"small={small_model}")
    answers, failures, sent = [], [], threading.Barrier(17)
    image = picture(size=(1000, 1000))  # takes a while

    def ask():
        with server.connect() as connection:
            head = "POST /v1/models/small/predict HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-type: image/jpeg\r\n"
            connection.sendall(f"{head}content-length: {len(image)}\r\n\r\n".encode() + image)
            sent.wait(60)
            data = b""
            while b'"results"' not in data and (part := connection.recv(65536)):
                data += part
            (answers if b" 200 OK" in data else failures).append(data)

    threads = [threading.Thread(target=ask) for _ in range(16)]
    for thread in threads:
        thread.start()
    sent.wait(60)
    assert server.stop() == (0, "")
    for thread in threads:
        thread.join(60)
    assert len(answers) == 16 and not failures
    with pytest.raises(ConnectionRefusedError):
        server.connect()


def test_a_port_that_is_taken_is_named():
    with listen("127.0.0.1", 0) as first, pytest.raises(ConfigError, match="port"):
        listen("127.0.0.1", first.getsockname()[1])
    with pytest.raises(ConfigError):
        listen("no.such.host.invalid", 8000)
    assert most_connections() >= 1 and bounded_protocol(3)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["serve"], "model"),
        (["serve", "nope"], "nope"),
        (["serve", "ti8-64", "--host", "0.0.0.0", "--port", "0"], "key-file"),
        (["serve", "ti8-64", "--port", "0", "--key-file", "nowhere"], "nowhere"),
        (["serve", "a=ti8-64", "a=ti8-64", "--port", "0"], "two models"),
        (["serve", "ti8-64", "--port", "99999"], "99999"),
    ],
)
def test_mistakes_are_one_line(vitrail_command, words, told):
    code, _, err = vitrail_command(*words)
    assert code == 2 and told in err and err.count("\n") == 1
