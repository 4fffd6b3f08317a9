"""The verb that uploads a model to the Hugging Face hub."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Literal

from tyro.conf import Positional, arg

from vitrail.cli.verb import COMMON, READING, Common, ModelPath, Output, Reading
from vitrail.errors import ConfigError

MOST_SAMPLES = 4


def push(
    model: ModelPath,
    repository: Annotated[Positional[str], arg(metavar="REPO")],
    *,
    to: Literal["bundle", "timm", "huggingface"] = "bundle",
    private: bool = False,
    revision: str | None = None,
    message: str = "Add a model",
    sample: tuple[str, ...] = (),
    license: str = "",
    reading: Reading = READING,
    common: Common = COMMON,
) -> Output:
    """Upload a model to the Hugging Face hub, with a card that tells its scores, origin and license.

    Args:
        model: an included model (ti8-64), a bundle, a run, or any supported checkpoint
        repository: OWNER/NAME; it is made if it does not exist. A README.md that is there is replaced
        to: the format; bundle keeps everything, huggingface is for transformers, timm for timm
        private: make the repository private, if it does not exist yet
        revision: a branch; if unset, main
        message: of the commit
        sample: up to 4 images for the picture of the card, with the model's answers; if unset, its filters
        license: license of the weights, if the model states none: an SPDX identifier such as MIT, or a sentence
    """
    from vitrail.checkpoints import formats
    from vitrail.checkpoints.license import complete_license, describe_license, restrictions, stated_license
    from vitrail.inference.images import find_images
    from vitrail.inspection.figures import draw_card
    from vitrail.runtime.device import pick

    images = find_images(sample) if sample else []
    if len(images) > MOST_SAMPLES:
        raise ConfigError(f"--sample names {len(images)} images; a card shows at most {MOST_SAMPLES}")
    loaded = formats.load(model, **reading.arguments())
    if license:
        formats.state_license(loaded, license, model)
    with TemporaryDirectory() as folder:
        picture = Path(folder, "picture.png")
        draw_card(loaded.to(pick(common.device)), images, picture)
        pushed = formats.push(
            loaded, repository, to=to, private=private, revision=revision, message=message, picture=picture
        )
    name = f"hub:{pushed.repository}@{pushed.revision}"
    rows = [["pushed", pushed.url], ["name", name], ["license", describe_license(loaded.license)]]
    result = {"model": model, "repository": pushed.repository, "revision": pushed.revision, "url": pushed.url}
    output = Output(common, ["", ""], rows, result | {"license": complete_license(loaded.license)})
    if limits := restrictions(loaded.license):
        output.after.append(f"By its license this model is for {limits} only; the card says so.")
    elif "weights" not in stated_license(loaded.license):
        output.after.append("Others may not use a model without a license: state one with --license.")
    return output
