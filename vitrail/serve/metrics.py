"""Counters and histograms of the server, in the text format of Prometheus."""

from __future__ import annotations

import os
import threading
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

Labels = tuple[tuple[str, str], ...]
SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
IMAGES = (1, 2, 4, 8, 16, 32, 64)
ESCAPES = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})
ABOUT = {
    "vitrail_requests_total": ("counter", "Requests by endpoint and status code."),
    "vitrail_request_seconds": ("histogram", "Seconds from the headers of a request to its answer."),
    "vitrail_images_total": (
        "counter",
        "Images by model and result: ok, unreadable, rejected, late, failed.",
    ),
    "vitrail_batch_images": ("histogram", "Images that were computed together."),
    "vitrail_swaps_total": ("counter", "Models that changed on disk, by result: swapped, refused."),
    "vitrail_queue_images": ("gauge", "Images that wait to be decoded or computed."),
    "vitrail_explain_queue": ("gauge", "Explanations that wait."),
    "vitrail_connections": ("gauge", "Open connections."),
    "vitrail_resident_bytes": ("gauge", "Memory of the process."),
}


@dataclass
class Histogram:
    """Numbers of values up to each bound, their count and their sum."""

    bounds: Sequence[float]
    counts: list[int] = field(default_factory=list)
    total: float = 0.0

    def __post_init__(self) -> None:
        self.counts = [0] * (len(self.bounds) + 1)

    def add(self, value: float) -> None:
        place = next((i for i, bound in enumerate(self.bounds) if value <= bound), len(self.bounds))
        self.counts[place] += 1
        self.total += value


class Metrics:
    """Counters and histograms by name and labels; threads may share one."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.counters: dict[tuple[str, Labels], int] = {}
        self.histograms: dict[tuple[str, Labels], Histogram] = {}

    def count(self, name: str, by: int = 1, **labels: str) -> None:
        key = (name, tuple(labels.items()))
        with self.lock:
            self.counters[key] = self.counters.get(key, 0) + by

    def observe(self, name: str, value: float, bounds: Sequence[float], **labels: str) -> None:
        key = (name, tuple(labels.items()))
        with self.lock:
            if key not in self.histograms:
                self.histograms[key] = Histogram(bounds)
            self.histograms[key].add(value)

    def text(self, gauges: Iterable[tuple[str, Labels, float]] = ()) -> str:
        """Write all of them, and `gauges`: (name, labels, value now)."""
        with self.lock:
            samples: list[tuple[str, Labels, str, float]] = [
                (name, labels, "", value) for (name, labels), value in self.counters.items()
            ]
            for (name, labels), histogram in self.histograms.items():
                below = 0
                for bound, n in zip((*histogram.bounds, "+Inf"), histogram.counts, strict=True):
                    below += n
                    samples.append((name, (*labels, ("le", str(bound))), "_bucket", below))
                samples.append((name, labels, "_sum", histogram.total))
                samples.append((name, labels, "_count", below))
        samples += [(name, labels, "", value) for name, labels, value in gauges]
        lines: list[str] = []
        for name, (kind, about) in ABOUT.items():
            own = [sample for sample in samples if sample[0] == name]
            if own:
                lines += [f"# HELP {name} {about}", f"# TYPE {name} {kind}"]
                lines += [f"{name}{suffix}{braces(labels)} {value}" for _, labels, suffix, value in own]
        return "\n".join(lines) + "\n"


def resident_bytes() -> int:
    """Return the memory of this process; 0 where the system does not say."""
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return 0


def braces(labels: Labels) -> str:
    inside = ",".join(f'{name}="{value.translate(ESCAPES)}"' for name, value in labels)
    return f"{{{inside}}}" if inside else ""
