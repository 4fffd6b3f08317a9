"""A classifier that was learned here -> an ONNX file with its preprocessing and class names, as a zip file.

    bundle ──► `vitrail export`, a process of its own ──► model.onnx, compared with the bundle ──► zip

The process gives way to others and ends with the server; one is exported at a time.
"""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path
from subprocess import DEVNULL, PIPE
from typing import BinaryIO

from vitrail.serve.finetuning import background_command, background_environment
from vitrail.serve.learning import Conflict, Learned, Learning, zip_folder
from vitrail.serve.predictor import Overloaded

SECONDS = 600.0
AGAIN = 10  # seconds after which a refused export may be asked for again


async def export_onnx(learning: Learning, learned: Learned, what: str) -> BinaryIO:
    """Return the zip file, open and unlinked."""
    if learning.exporting:
        raise Overloaded("another file is being exported: try again later", AGAIN)
    learning.exporting = True
    try:
        with tempfile.TemporaryDirectory() as folder:
            bundle = await asyncio.to_thread(learning.bundle, learned, what, Path(folder))
            out = Path(folder) / "onnx"
            await run_export(bundle, out)
            return await asyncio.to_thread(zip_folder, out, f"{learned.collection.name}-{what}-onnx")
    finally:
        learning.exporting = False


async def run_export(bundle: Path, out: Path) -> None:
    """Run `vitrail export`; raise Conflict with its last words if it fails."""
    process = await asyncio.create_subprocess_exec(
        *background_command(), "export", str(bundle), str(out), "--no-timing",
        stdin=DEVNULL, stdout=DEVNULL, stderr=PIPE, env=background_environment(),
    )  # fmt: skip
    try:
        async with asyncio.timeout(SECONDS):
            _, errors = await process.communicate()
    except TimeoutError:
        raise Conflict(f"it was not exported within {SECONDS:g} seconds") from None
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if process.returncode:
        lines = errors.decode("utf-8", "replace").strip().splitlines()
        words = lines[-1].removeprefix("error: ") if lines else "the process ended without a message"
        raise Conflict(f"it cannot be exported: {words}")
