"""The server under load, beside the engine alone on the same images, and beside LitServe.

    python -m benchmarks.serving --model ti8-64 --seconds 60
    python -m benchmarks.serving --model ti8-64 --seconds 20 --rounds 3 --litserve PYTHON
    python -m benchmarks.serving --model ti8-64 --kills 20

Clients are connections of one process that each send an image, wait for the answer, and send the next. Every answer
is compared with the engine's. PYTHON is an interpreter in whose environment vitrail and litserve are installed.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import itertools
import json
import os
import re
import resource
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

PORT = re.compile(rb"http://[^:]+:(\d+)")
WARMUP = 3.0  # seconds of load before anything is counted
ENGINE = """
import json, sys, time
import vitrail
from vitrail.inference.predict import predict_each
model, seconds, files = vitrail.load(sys.argv[1]), float(sys.argv[2]), sys.argv[3:]
top = [[one[0] for one in p[:2]] + [one[1] for one in p[:2]] for p in predict_each(model, files, 2, num_workers=None)]
n, start, cpu = 0, time.perf_counter(), time.process_time()
while time.perf_counter() - start < seconds:
    many = files * max(1, 64 // len(files))
    n += sum(1 for _ in predict_each(model, many, num_workers=None))
cpu = (time.process_time() - cpu) / n
print(json.dumps({"speed": n / (time.perf_counter() - start), "cpu": cpu, "top": top}))
"""
LITSERVE = """
import sys, torch, vitrail, litserve
from vitrail.data.preprocess import parse
from vitrail.inference.predict import class_names
name, port, batch, wait, workers = sys.argv[1], *map(float, sys.argv[2:6])
class Api(litserve.LitAPI):
    def setup(self, device):
        torch.set_num_threads(max(1, torch.get_num_threads() // int(workers)))
        self.model = vitrail.load(name)
        self.pipeline, self.names = parse(self.model.preprocess), class_names(self.model)
    def decode_request(self, request):
        return self.pipeline.load(request["image"].file.read())
    def batch(self, inputs):
        return self.pipeline.device(torch.stack(inputs))
    def unbatch(self, output):
        return list(output)
    def predict(self, x):
        if x.ndim == 3:
            x = self.pipeline.device(x[None])
            return self.predict(x)[0]
        with torch.no_grad():
            return self.model(x).softmax(dim=1)
    def encode_response(self, p):
        value, c = p.topk(5)
        top = [{"name": self.names[i], "probability": v} for v, i in zip(value.tolist(), c.tolist())]
        return {"results": [{"top": top}]}
if __name__ == "__main__":
    api = Api(max_batch_size=int(batch), batch_timeout=wait)
    server = litserve.LitServer(api, accelerator="cpu", workers_per_device=int(workers), timeout=120)
    server.run(port=int(port), host="127.0.0.1", num_api_servers=1, generate_client_file=False, log_level="error")
"""


@dataclass
class Result:
    """What the clients saw."""

    answers: int = 0
    seconds: float = 0.0
    cpu: float = 0.0  # seconds of the client process
    server_cpu: float = 0.0  # seconds of the server's processes, warm-up included
    all_answers: int = 0  # those of the warm-up included
    times: list[float] = field(default_factory=list)
    wrong: int = 0
    failures: Counter[str] = field(default_factory=Counter)  # connections that broke, and other statuses

    @property
    def speed(self) -> float:
        return self.answers / self.seconds


def request_bytes(path: str, image: bytes, multipart: bool) -> bytes:
    kind = b"application/octet-stream"
    if multipart:
        edge = b"vitrail-benchmark"
        head = b'--%s\r\ncontent-disposition: form-data; name="image"; filename="a.jpg"\r\n\r\n' % edge
        image, kind = head + image + b"\r\n--%s--\r\n" % edge, b"multipart/form-data; boundary=" + edge
    head = f"POST {path} HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-length: {len(image)}\r\n".encode()
    return head + b"content-type: " + kind + b"\r\n\r\n" + image


async def exchange(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, data: bytes
) -> tuple[int, bytes, bool]:
    """Send a request; return status, body, and whether the server closes the connection."""
    writer.write(data)
    head = await reader.readuntil(b"\r\n\r\n")
    length = int(re.search(rb"content-length: (\d+)", head, re.IGNORECASE)[1])  # type: ignore[index]
    body = await reader.readexactly(length)
    return int(head[9:12]), body, b"connection: close" in head.lower()


def is_right(body: bytes, expected: list[Any]) -> bool:
    """Compare the first choice; where the first two are as probable, either may be it."""
    first, second, p, q = expected
    top = json.loads(body)["results"][0]["top"][0]
    return abs(top["probability"] - p) < 1e-3 and (
        top["name"] == first or (p - q < 1e-4 and top["name"] == second)
    )


async def one_client(
    port: int,
    requests: list[bytes],
    expected: list[Any],
    first: int,
    until: float,
    result: Result,
    start: float,
) -> None:
    writer = None
    for i in itertools.count(first):
        if time.perf_counter() > until:
            break
        began = time.perf_counter()
        try:
            if writer is None:
                reader, writer = await asyncio.open_connection("127.0.0.1", port)
            status, body, closes = await exchange(reader, writer, requests[i % len(requests)])
        except (OSError, asyncio.IncompleteReadError) as error:
            result.failures[type(error).__name__] += 1
            writer = None
            await asyncio.sleep(0.05)
            continue
        if closes:
            writer.close()
            writer = None
        now = time.perf_counter()
        if status != 200:
            result.failures[f"status {status}"] += 1
            await asyncio.sleep(0.05)
        elif not is_right(body, expected[i % len(requests)]):
            result.wrong += 1
        else:
            result.all_answers += 1
            if began > start:
                result.answers += 1
                result.times.append(now - began)
    if writer is not None:
        writer.close()


async def load(port: int, requests: list[bytes], expected: list[Any], clients: int, seconds: float) -> Result:
    """Let the clients ask for `seconds`, after a warm-up."""
    result, now = Result(), time.perf_counter()
    start = now + WARMUP
    cpu = resource.getrusage(resource.RUSAGE_SELF)
    step = max(1, len(requests) // clients)
    tasks = [
        one_client(port, requests, expected, i * step, start + seconds, result, start) for i in range(clients)
    ]
    await asyncio.gather(*tasks)
    after = resource.getrusage(resource.RUSAGE_SELF)
    result.seconds = seconds
    result.cpu = after.ru_utime + after.ru_stime - cpu.ru_utime - cpu.ru_stime
    return result


class Running:
    """A server in a process of its own."""

    def __init__(self, command: list[str], port: int = 0) -> None:
        start = time.perf_counter()
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        self.port = port
        if not port:
            assert self.process.stdout is not None
            line = self.process.stdout.readline()
            self.port = int(PORT.search(line)[1])  # type: ignore[index]
        else:
            asyncio.run(self.wait())
        self.seconds = time.perf_counter() - start

    async def wait(self) -> None:
        while True:
            try:
                reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
                writer.write(b"GET /health HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n")
                head = await reader.readuntil(b"\r\n\r\n")
                writer.close()
                if b" 200 " in head:
                    return
            except (OSError, asyncio.IncompleteReadError):
                pass
            await asyncio.sleep(0.2)

    def resident(self) -> float:
        """Return MB."""
        text = Path(f"/proc/{self.process.pid}/status").read_text()
        return int(re.search(r"VmRSS:\s+(\d+)", text)[1]) / 1e3  # type: ignore[index]

    def cpu(self) -> float:
        """Return the seconds that the process and those below it have computed."""
        parents, seconds = {}, {}
        for path in Path("/proc").glob("[0-9]*/stat"):
            with contextlib.suppress(OSError):
                fields = path.read_text().rpartition(")")[2].split()
                number = int(path.parent.name)
                parents[number] = int(fields[1])
                seconds[number] = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
        own = {self.process.pid}
        while more := {child for child, parent in parents.items() if parent in own} - own:
            own |= more
        return sum(seconds.get(number, 0.0) for number in own)

    def load(self, requests: list[bytes], expected: list[Any], clients: int, seconds: float) -> Result:
        before = self.cpu()
        result = asyncio.run(load(self.port, requests, expected, clients, seconds))
        result.server_cpu = self.cpu() - before
        return result

    def stop(self, number: int = signal.SIGTERM) -> int:
        self.process.send_signal(number)
        try:
            return self.process.wait(60)
        except subprocess.TimeoutExpired:
            self.process.kill()
            return self.process.wait()


def run_engine(model: str, files: list[str], seconds: float) -> dict[str, Any]:
    done = subprocess.run(
        [sys.executable, "-c", ENGINE, model, str(seconds), *files],
        capture_output=True,
        text=True,
        check=True,
    )
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def serve_command(model: str) -> list[str]:
    return [sys.executable, "-m", "vitrail", "serve", f"m={model}", "--port", "0"]


def show(name: str, result: Result, engine: float, engine_cpu: float) -> None:
    times = np.array(result.times) * 1e3
    p50, p99 = np.percentile(times, [50, 99]) if len(times) else (0.0, 0.0)
    print(
        f"  {name:10} {result.speed:7.1f} images/s = {result.speed / engine:6.1%} of the engine   p50 {p50:6.1f} ms  "
        f"p99 {p99:6.1f} ms   cpu {1e3 * result.server_cpu / max(1, result.all_answers):.2f} ms for an image, engine "
        f"{1e3 * engine_cpu:.2f}   client {result.cpu / (result.seconds + WARMUP):.0%} of a core   "
        f"wrong {result.wrong}  failures {dict(result.failures)}",
        flush=True,
    )


def compare(arguments: argparse.Namespace, files: list[str], images: list[bytes]) -> None:
    model, seconds = arguments.model, arguments.seconds
    shares, pairs = [], []
    for round_ in range(arguments.rounds):
        before = run_engine(model, files, seconds / 2)
        server = Running(serve_command(model))
        requests = [request_bytes("/v1/models/m/predict", image, False) for image in images]
        first = server.resident()
        ours = server.load(requests, before["top"], arguments.clients, seconds)
        grown = server.resident()
        server.stop()
        after = run_engine(model, files, seconds / 2)
        speeds = [before["speed"], after["speed"]]
        engine, cpu = statistics.mean(speeds), statistics.mean((before["cpu"], after["cpu"]))
        print(
            f"round {round_ + 1}: engine alone {speeds[0]:.1f} and {speeds[1]:.1f} images/s; the server started in "
            f"{server.seconds:.1f} s; memory {first:.0f} -> {grown:.0f} MB"
        )
        show("vitrail", ours, engine, cpu)
        shares.append(ours.speed / engine)
        if arguments.litserve:
            theirs = run_litserve(arguments, images, before["top"])
            show("litserve", theirs, engine, cpu)
            pairs.append(ours.speed / theirs.speed)
    print(
        f"share of the engine: median {statistics.median(shares):.1%} ({min(shares):.1%} to {max(shares):.1%})"
    )
    if pairs:
        print(f"litserve x {statistics.median(pairs):.2f} ({min(pairs):.2f} to {max(pairs):.2f})")


def run_litserve(arguments: argparse.Namespace, images: list[bytes], expected: list[Any]) -> Result:
    port, batch, wait, workers = 18765, arguments.batch, 0.005, arguments.workers
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder) / "server.py"
        script.write_text(LITSERVE)
        words = [arguments.model, str(port), str(batch), str(wait), str(workers)]
        server = Running([arguments.litserve, str(script), *words], port)
        try:
            requests = [request_bytes("/predict", image, True) for image in images]
            return server.load(requests, expected, arguments.clients, arguments.seconds)
        finally:
            server.stop(signal.SIGINT)


def soak(arguments: argparse.Namespace, files: list[str], images: list[bytes]) -> None:
    """Load for long; print the memory as it goes."""
    expected = run_engine(arguments.model, files, 1.0)["top"]
    server = Running(serve_command(arguments.model))
    requests = [request_bytes("/v1/models/m/predict", image, False) for image in images]
    asyncio.run(load(server.port, requests, expected, arguments.clients, 20.0))
    first = server.resident()
    print(f"after the first 20 s: {first:.0f} MB")
    for _ in range(int(arguments.soak * 2)):
        result = asyncio.run(load(server.port, requests, expected, arguments.clients, 30.0 - WARMUP))
        print(
            f"  {server.resident():.0f} MB ({server.resident() - first:+.1f}), {result.speed:.1f} images/s, "
            f"wrong {result.wrong}, failures {dict(result.failures)}",
            flush=True,
        )
    server.stop()


def kill(arguments: argparse.Namespace, files: list[str], images: list[bytes]) -> None:
    """Kill and restart the server under load, by turns with SIGKILL and SIGTERM."""
    expected = run_engine(arguments.model, files, 1.0)["top"]
    requests = [request_bytes("/v1/models/m/predict", image, False) for image in images]
    total: Counter[str] = Counter()
    for i in range(arguments.kills):
        server = Running(serve_command(arguments.model))
        number = signal.SIGKILL if i % 2 else signal.SIGTERM

        delay = WARMUP + 1 + 0.1 * (i % 7)
        timer = threading.Timer(delay, server.process.send_signal, [number])
        timer.start()
        result = asyncio.run(load(server.port, requests, expected, arguments.clients, 3.0))
        code = server.process.wait(60)
        broken = {name: n for name, n in result.failures.items() if name != "ConnectionRefusedError"}
        name = signal.Signals(number).name
        print(
            f"  {name}: {result.answers} right, {result.wrong} wrong, {broken or 'none lost'}, exit code {code}"
        )
        total.update({"right": result.answers, "wrong": result.wrong})
        total.update({f"{name} {kind}": n for kind, n in broken.items()})
    print(dict(total))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--model", default="ti8-64")
    parser.add_argument("--images", help="folder of photographs; if unset, 64 are drawn")
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--litserve", help="interpreter with litserve")
    parser.add_argument("--batch", type=int, default=16, help="images that litserve computes together")
    parser.add_argument("--workers", type=int, default=2, help="processes of litserve that compute")
    parser.add_argument("--soak", type=float, default=0.0, help="minutes of load, for the memory")
    parser.add_argument("--kills", type=int, default=0)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        place = arguments.images
        if place is None:
            from vitrail.bench.photographs import write_photographs

            place = write_photographs(Path(folder), seed=0)
        files = sorted(
            str(path) for path in Path(place).rglob("*") if path.suffix.lower() in (".jpg", ".jpeg")
        )
        images = [Path(path).read_bytes() for path in files]
        size = statistics.mean(map(len, images)) / 1e3
        print(f"{arguments.model}: {len(images)} images of {size:.0f} kB on average, {arguments.clients} clients, "
              f"{os.cpu_count()} cores")  # fmt: skip
        job = soak if arguments.soak else kill if arguments.kills else compare
        job(arguments, files, images)


if __name__ == "__main__":
    main()
