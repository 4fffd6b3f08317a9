"""The server under load, beside the engine alone on the same images and LitServe; its memory; kills.

    python -m benchmarks.serving --litserve PYTHON        all of docs/results/serving.md, in about 20 minutes
    python -m benchmarks.serving load --model ti8-64      a part of it, a model of it
    python -m benchmarks.serving memory --minutes 2

Prints what it does as it goes, and at the end the tables as Markdown. Clients are connections of one process that
each send an image, wait for the answer, and send the next. Every answer is compared with the engine's. PYTHON is an
interpreter in whose environment vitrail and litserve are installed; without it, LitServe is left out.
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

PARTS = ("load", "memory", "kills")
FIRST = 20.0  # seconds of load after which memory is compared with later
STEP = 30.0  # seconds between two looks at the memory
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
            if self.process.poll() is not None:
                raise SystemExit(f"{self.process.args} ended with exit code {self.process.returncode}")
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
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def serve_command(model: str) -> list[str]:
    return [sys.executable, "-m", "vitrail", "serve", f"m={model}", "--port", "0", "--deadline", "60"]


def run_litserve(
    arguments: argparse.Namespace, model: str, images: list[bytes], expected: list[Any]
) -> Result:
    port, batch, wait, workers = 18765, arguments.batch, 0.005, arguments.workers
    with tempfile.TemporaryDirectory() as folder:
        script = Path(folder) / "server.py"
        script.write_text(LITSERVE)
        words = [model, str(port), str(batch), str(wait), str(workers)]
        server = Running([arguments.litserve, str(script), *words], port)
        try:
            requests = [request_bytes("/predict", image, True) for image in images]
            return server.load(requests, expected, arguments.clients, arguments.seconds)
        finally:
            server.stop(signal.SIGINT)


def say(words: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {words}", file=sys.stderr, flush=True)


def table(head: str, rows: list[list[str]]) -> list[str]:
    columns = head.split("; ")
    return ["| " + " | ".join(row) + " |" for row in (columns, ["---"] * len(columns), *rows)] + [""]


def row_of(name: str, result: Result, engine: float) -> list[str]:
    p50, p99 = np.percentile(np.array(result.times or [0.0]) * 1e3, [50, 99])
    share = result.cpu / (result.seconds + WARMUP)
    return [
        name, f"{result.speed:.1f}", f"{result.speed / engine:.1%}",
        f"{1e3 * result.server_cpu / max(1, result.all_answers):.2f} ms", f"{p50:.0f} ms", f"{p99:.0f} ms",
        f"{share:.0%} of a core", str(result.wrong), str(dict(result.failures) or "none"),
    ]  # fmt: skip


class Benchmark:
    """The images, and the lines of the report."""

    def __init__(self, arguments: argparse.Namespace, files: list[str]) -> None:
        self.arguments, self.files = arguments, files
        self.images = [Path(path).read_bytes() for path in files]
        self.requests = [request_bytes("/v1/models/m/predict", image, False) for image in self.images]
        self.starts: list[float] = []

    def start(self, model: str) -> Running:
        server = Running(serve_command(model))
        self.starts.append(server.seconds)
        return server

    def load(self, name: str, model: str) -> list[str]:
        """Compare the server with the engine before and after it, and with LitServe."""
        rows, shares, ratios = [], [], []
        arguments = self.arguments
        for number in range(1, arguments.rounds + 1):
            say(f"{name}, round {number} of {arguments.rounds}: the engine alone")
            before = run_engine(model, self.files, arguments.seconds / 3)
            say(f"the server, {arguments.seconds:g} s")
            server = self.start(model)
            ours = server.load(self.requests, before["top"], arguments.clients, arguments.seconds)
            server.stop()
            theirs = None
            if arguments.litserve:
                say("LitServe")
                theirs = run_litserve(arguments, model, self.images, before["top"])
            say("the engine alone")
            after = run_engine(model, self.files, arguments.seconds / 3)
            engine = statistics.mean((before["speed"], after["speed"]))
            cpu = statistics.mean((before["cpu"], after["cpu"]))
            speeds = f"{before['speed']:.1f}, {after['speed']:.1f}"
            rows.append(["engine alone, before and after", speeds, "", f"{1e3 * cpu:.2f} ms", *[""] * 5])
            rows.append(row_of("vitrail serve", ours, engine))
            shares.append(ours.speed / engine)
            if theirs is not None:
                rows.append(row_of("LitServe", theirs, engine))
                ratios.append(ours.speed / theirs.speed)
        lines = table(
            f"{name}; images/s; of the engine; CPU of an image; p50; p99; client; wrong; lost", rows
        )
        lines += [f"{name}: {spread(shares, '.1%')} of the engine alone"]
        lines += [f"{name}: {spread(ratios, '.2f')} times the throughput of LitServe"] if ratios else []
        return [*lines, ""]

    def memory(self, model: str) -> list[str]:
        """Load for long; look at the memory as it goes."""
        expected = run_engine(model, self.files, 1.0)["top"]
        server = self.start(model)
        say(f"memory: {FIRST:g} s of load, then {self.arguments.minutes:g} minutes")
        asyncio.run(load(server.port, self.requests, expected, self.arguments.clients, FIRST - WARMUP))
        first, rises, wrong, failures = server.resident(), [], 0, Counter[str]()
        for i in range(int(self.arguments.minutes * 60 / STEP)):
            result = asyncio.run(
                load(server.port, self.requests, expected, self.arguments.clients, STEP - WARMUP)
            )
            rises.append(server.resident() - first)
            wrong += result.wrong
            failures += result.failures
            say(f"{(i + 1) * STEP / 60:.1f} minutes: {rises[-1]:+.1f} MB, {result.speed:.1f} images/s")
        server.stop()
        minutes = [f"{(i + 1) * STEP / 60:g}" for i in range(len(rises))][1::2]
        return [
            f"After {FIRST:g} s of load: {first:.0f} MB; at most {max(rises):+.1f} MB in {self.arguments.minutes:g} "
            f"minutes; wrong {wrong}, lost {dict(failures) or 'none'}",
            "",
            *table(
                "; ".join(["minutes", *minutes]), [["MB above", *(f"{rise:+.1f}" for rise in rises[1::2])]]
            ),
        ]

    def kills(self, model: str) -> list[str]:
        """Kill and restart the server under load, by turns with SIGTERM and SIGKILL."""
        expected = run_engine(model, self.files, 1.0)["top"]
        right, wrong, lost = Counter[str](), Counter[str](), Counter[str]()
        codes: dict[str, set[int]] = {"SIGTERM": set(), "SIGKILL": set()}
        for i in range(self.arguments.kills):
            server = self.start(model)
            number = signal.SIGKILL if i % 2 else signal.SIGTERM
            name = signal.Signals(number).name
            timer = threading.Timer(WARMUP + 1 + 0.1 * (i % 7), server.process.send_signal, [number])
            timer.start()
            result = asyncio.run(load(server.port, self.requests, expected, self.arguments.clients, 3.0))
            codes[name].add(server.process.wait(60))
            # A client that comes after the end finds no server: nothing that was sent is lost.
            broken = sum(n for kind, n in result.failures.items() if kind != "ConnectionRefusedError")
            right[name] += result.all_answers
            wrong[name] += result.wrong
            lost[name] += broken
            say(f"kill {i + 1} of {self.arguments.kills}, {name}: {result.all_answers} right, {broken} lost")
        rows = [
            [name, str(right[name]), str(wrong[name]), str(lost[name]), ", ".join(map(str, sorted(seen)))]
            for name, seen in codes.items()
        ]
        return table("stop; right answers; wrong; requests lost; exit codes", rows)


def spread(values: list[float], form: str) -> str:
    if len(values) == 1:
        return f"{values[0]:{form}} (n = 1)"
    low, high = f"{min(values):{form}}", f"{max(values):{form}}"
    return f"{statistics.median(values):{form}} ({low} to {high}, n = {len(values)})"


def write_random(name: str, folder: Path) -> str:
    """Write a model with random weights and a head that does not answer alike for all images."""
    import torch

    import vitrail

    torch.manual_seed(0)
    model = vitrail.create(name, classes=1000, image_size=224)
    torch.nn.init.normal_(model.head.classifier.weight, std=0.05)  # type: ignore[union-attr, arg-type]
    vitrail.save(model, folder / "random")
    return str(folder / "random")


def hardware() -> str:
    import torch
    import uvicorn

    lines = Path("/proc/cpuinfo").read_text().splitlines()
    name = next((line.partition(": ")[2] for line in lines if line.startswith("model name")), "a CPU")
    return (
        f"{os.cpu_count()} cores of {name}, load {os.getloadavg()[0]:.1f} at the start; torch {torch.__version__}, "
        f"uvicorn {uvicorn.__version__}; {time.strftime('%Y-%m-%d')}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("parts", nargs="*", help=f"of {', '.join(PARTS)}; if unset, all")
    parser.add_argument(
        "--model", help="one model; if unset, load has ti8-64 and a random S/16, the others ti8-64"
    )
    parser.add_argument("--images", help="folder of photographs; if unset, 64 are drawn")
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--litserve", help="interpreter with litserve")
    parser.add_argument("--batch", type=int, default=16, help="images that litserve computes together")
    parser.add_argument("--workers", type=int, default=2, help="processes of litserve that compute")
    parser.add_argument("--minutes", type=float, default=10.0, help="of load, for the memory")
    parser.add_argument("--kills", type=int, default=20)
    arguments = parser.parse_args()
    if wrong := set(arguments.parts) - set(PARTS):
        parser.error(f"{wrong.pop()!r} is not one of {', '.join(PARTS)}")
    with tempfile.TemporaryDirectory() as folder:
        place = arguments.images
        if place is None:
            from vitrail.bench.photographs import write_photographs

            place = write_photographs(Path(folder) / "photographs", seed=0)
        paths = sorted(Path(place).rglob("*"))
        files = [str(path) for path in paths if path.suffix.lower() in (".jpg", ".jpeg")]
        benchmark = Benchmark(arguments, files)
        size = statistics.mean(map(len, benchmark.images)) / 1e3
        lines = [
            f"{hardware()}",
            f"{len(files)} JPEG files of {size:.0f} kB on average; {arguments.clients} clients",
            "",
        ]
        parts, model = arguments.parts or PARTS, arguments.model
        if "load" in parts:
            lines += benchmark.load(Path(model or "ti8-64").name, model or "ti8-64")
            if model is None:
                lines += benchmark.load("S/16, random weights", write_random("S/16", Path(folder)))
        if "memory" in parts:
            lines += benchmark.memory(model or "ti8-64")
        if "kills" in parts:
            lines += benchmark.kills(model or "ti8-64")
        starts = benchmark.starts
        lines += [f"Seconds from the command to the address: {spread(starts, '.1f')}"]
        print("\n".join(lines))


if __name__ == "__main__":
    main()
