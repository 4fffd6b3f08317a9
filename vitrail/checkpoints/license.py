"""The license of a model's weights, and of the data that they were learned from.

    {"weights": text, "data": text}   each an SPDX identifier or a sentence; what is left out is unknown

It is stated by who made the weights and inherited by whatever is trained or converted from them: model.license, the
entry `license` of model.json and of the config.json of timm's and transformers' folders, and the README.md of those.
Nothing is guessed: where nobody stated a license, it is unknown.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from vitrail.errors import ConfigError

UNKNOWN = "unknown"
PARTS = ("weights", "data")
MOST = 2_000  # characters of each
CARD = "README.md"  # beside the weights, as the Hugging Face hub has it
FURTHER = "; trained further on data of unknown license"


def check_license(license: Any) -> None:
    """ConfigError unless it is a dict of texts."""
    fits = isinstance(license, dict) and all(
        part in PARTS and isinstance(text, str) and len(text) <= MOST for part, text in license.items()
    )
    if not fits:
        raise ConfigError(
            f"license {str(license)[:60]!r} is not of the form {{'weights': TEXT, 'data': TEXT}}, each of at most "
            f"{MOST:,} characters"
        )


def both_parts(license: Mapping[str, str]) -> dict[str, str]:
    """Both parts, as they are written down."""
    return {part: license.get(part) or UNKNOWN for part in PARTS}


def known(license: Mapping[str, str]) -> dict[str, str]:
    """The parts that somebody stated."""
    return {part: text for part, text in license.items() if text and text != UNKNOWN}


def in_words(license: Mapping[str, str]) -> str:
    return "; ".join(f"{part}: {text}" for part, text in both_parts(license).items())


def inherited(license: Mapping[str, str]) -> dict[str, str]:
    """That of a model trained from one with `license`: what is known still holds, for data of its own besides."""
    made = known(license)
    if "data" in made and not made["data"].endswith(FURTHER):
        made["data"] += FURTHER
    return made


def license_in(card: Mapping[str, Any] | None) -> dict[str, str]:
    """What someone's config.json states: our entry, or the text that timm's pretrained_cfg has."""
    card = card or {}
    settings = card.get("pretrained_cfg")
    given = card.get("license") or (settings.get("license") if isinstance(settings, dict) else None)
    given = {"weights": given} if isinstance(given, str) else given
    texts = {part: given.get(part) for part in PARTS} if isinstance(given, dict) else {}
    return known({part: text[:MOST] for part, text in texts.items() if isinstance(text, str)})


def unwritten_license(license: Mapping[str, str]) -> list[str]:
    """What is said by a format that has no place for it."""
    return (
        [f"the license is not written, pass it on with the file: {in_words(license)}"]
        if known(license)
        else []
    )


def model_card(license: Mapping[str, str]) -> str:
    """README.md: the hub's metadata, and the same for people."""
    text = both_parts(license)
    spoken = re.sub(r"[^a-z0-9.]+", "-", text["weights"].lower()).strip("-.")[:80]
    identifier = re.fullmatch(r"[A-Za-z0-9.+-]+", text["weights"])
    head = (
        [f"license: {text['weights'].lower()}"]
        if identifier
        else ["license: other", f"license_name: {spoken}"]
    )
    lines = ["---", *head, "---", "", "# License", ""]
    return "\n".join([*lines, *(f"- {part}: {' '.join(text[part].split())}" for part in PARTS), ""])
