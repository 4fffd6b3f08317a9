"""The JSON answer of every endpoint."""

from __future__ import annotations

import json
from typing import Any

from starlette.responses import Response


def answer(content: Any, status: int = 200, **headers: str) -> Response:
    text = json.dumps(content, allow_nan=False, ensure_ascii=False, separators=(",", ":"))
    headers = {
        "cache-control": "no-store",
        **{name.replace("_", "-"): value for name, value in headers.items()},
    }
    return Response(text.encode("utf-8", "replace"), status, headers, "application/json")
