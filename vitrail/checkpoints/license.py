"""The license of a model's weights, and of the data that they were trained on.

    {"weights": text, "data": text}   each an SPDX identifier or a sentence; what is left out is unknown

The author of the weights states it, and everything trained or converted from them inherits it: model.license, the
entry `license` of model.json and of the config.json of timm's and transformers' folders, and the README.md of those.
Nothing is guessed: a license that is not stated is unknown.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from vitrail.errors import ConfigError

UNKNOWN = "unknown"
PARTS = ("weights", "data")
MAX_TEXT = 2_000  # characters of each
CARD = "README.md"  # beside the weights, as the Hugging Face hub has it
FURTHER = "; trained further on data of unknown license"


def check_license(license: Any) -> None:
    """Raise ConfigError unless it is a dict of texts."""
    fits = isinstance(license, dict) and all(
        part in PARTS and isinstance(text, str) and len(text) <= MAX_TEXT for part, text in license.items()
    )
    if not fits:
        raise ConfigError(
            f"license {str(license)[:60]!r} is not of the form {{'weights': TEXT, 'data': TEXT}}, each of at most "
            f"{MAX_TEXT:,} characters"
        )


def complete_license(license: Mapping[str, str]) -> dict[str, str]:
    """Return both parts, "unknown" for one that is not stated."""
    return {part: license.get(part) or UNKNOWN for part in PARTS}


def stated_license(license: Mapping[str, str]) -> dict[str, str]:
    """Return the parts that are stated."""
    return {part: text for part, text in license.items() if text and text != UNKNOWN}


def describe_license(license: Mapping[str, str]) -> str:
    return "; ".join(f"{part}: {text}" for part, text in complete_license(license).items())


def restrictions(license: Mapping[str, str]) -> str:
    """Return what a license limits the use to, as far as its words say so; empty: nothing that is known."""
    words = set(
        re.findall(
            r"[a-z]+", " ".join(stated_license(license).values()).lower().replace("-commercial", "commercial")
        )
    )
    limits = ["non-commercial use"] if words & {"nc", "noncommercial"} else []
    limits += ["research"] if "research" in words else []
    limits += ["use without changes"] if words & {"nd", "noderivatives", "noderivs"} else []
    return " and ".join(limits)


def inherit_license(license: Mapping[str, str]) -> dict[str, str]:
    """Return the license of a model trained from one with `license`, on further data of unknown license."""
    stated = stated_license(license)
    if "data" in stated and not stated["data"].endswith(FURTHER):
        stated["data"] += FURTHER
    return stated


def find_license(card: Mapping[str, Any] | None, readme: str = "") -> dict[str, str]:
    """Return the license in a config.json, our entry or the text in timm's pretrained_cfg; else in a README.md."""
    card = card or {}
    settings = card.get("pretrained_cfg")
    stated = card.get("license") or (settings.get("license") if isinstance(settings, dict) else None)
    stated = {"weights": stated} if isinstance(stated, str) else stated
    texts = {part: stated.get(part) for part in PARTS} if isinstance(stated, dict) else {}
    found = stated_license({part: text[:MAX_TEXT] for part, text in texts.items() if isinstance(text, str)})
    return found or license_of_readme(readme)


def license_of_readme(readme: str) -> dict[str, str]:
    """Return the license in the metadata of a README.md on the hub: its name where it is none of the usual ones."""
    head = re.match(r"---\r?\n(.*?)\r?\n---", readme, re.DOTALL)
    entries = (
        dict(re.findall(r"^(license|license_name|license_link): *(\S.*?) *$", head[1], re.MULTILINE))
        if head
        else {}
    )
    name = entries.get("license", "").strip("'\"")
    if name == "other":
        words = [entries[key].strip("'\"") for key in ("license_name", "license_link") if key in entries]
        name = ", ".join(word for word in words if word != UNKNOWN)
    return stated_license({"weights": name[:MAX_TEXT]})


def license_metadata(license: Mapping[str, str]) -> list[str]:
    """Return the lines about the license in the hub's metadata."""
    text = complete_license(license)["weights"]
    if re.fullmatch(r"[A-Za-z0-9.+-]+", text):
        return [f"license: {text.lower()}"]
    name = re.sub(r"[^a-z0-9.]+", "-", text.lower()).strip("-.")[:80]
    return ["license: other", f"license_name: {name}"]


def model_card(license: Mapping[str, str]) -> str:
    """Return a README.md: the hub's metadata, and the same for people."""
    text = complete_license(license)
    lines = ["---", *license_metadata(license), "---", "", "# License", ""]
    return "\n".join([*lines, *(f"- {part}: {' '.join(text[part].split())}" for part in PARTS), ""])
