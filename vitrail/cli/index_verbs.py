"""The verbs on indexes: index, search."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from tyro.conf import Positional, arg

from vitrail.cli.verb import COMMON, EXTRACTING, READING, Common, Extracting, Output, Reading

IndexPath = Annotated[Positional[str], arg(metavar="INDEX")]


def index(
    data: Annotated[Positional[str], arg(metavar="DATA")],
    *,
    out: str,
    model: str = "ti8-64",
    split: str | None = None,
    unlabelled: bool = False,
    precision: Literal["float16", "int8"] = "float16",
    thumbnails: int = 96,
    extracting: Extracting = EXTRACTING,
    reading: Reading = READING,
    common: Common = COMMON,
) -> Output:
    """Write the features of a data set to a folder for `vitrail search`; an interrupted run continues.

    Args:
        data: a data set; with --unlabelled a folder of images, or a glob pattern
        out: folder for the index
        model: an included model (ti8-64), a bundle, a run, any supported checkpoint, or an exported file
        split: which part of the data set; if unset, train
        unlabelled: the images have no labels
        precision: float16 is searched exactly; int8, for millions of images, is several times faster, and the best
            matches are compared again in float16
        thumbnails: pixels of the longer side of the small pictures that the index keeps; 0: none
    """
    from vitrail.curate.build_index import build_index

    built = build_index(
        reading.open(model, common.device), data, out, split=split, labelled=not unlabelled, name=model,
        precision=precision, thumbnails=thumbnails, extraction=extracting.extraction(),
    )  # fmt: skip
    card = built.card
    size = sum(file.stat().st_size for file in built.folder.iterdir())
    rows = [
        ["images", f"{len(built):,}"],
        ["unreadable", f"{card['broken']:,}"],
        ["classes", f"{len(card['class_names']):,}"],
        ["features", f"{card['which']}, {card['width']:,} numbers, {card['precision']}"],
        ["size", f"{size / 2**20:,.1f} MiB"],
    ]
    result: dict[str, Any] = {
        name: card[name]
        for name in ("model", "which", "precision", "data", "split", "images", "broken", "width")
    }
    result |= {"out": out, "classes": len(card["class_names"]), "bytes": size}
    return Output(common, ["", ""], rows, result, after=[f"Next: vitrail search {out} IMAGE"])


def search(
    index: IndexPath,
    images: Annotated[Positional[tuple[str, ...]], arg(metavar="IMAGE...")],
    *,
    top: int = 5,
    model: str | None = None,
    sheet: str | None = None,
    reading: Reading = READING,
    common: Common = COMMON,
) -> Output:
    """Show the images of an index that are nearest to others, by the cosine of their features.

    Args:
        index: folder that `vitrail index` wrote
        images: files, folders or glob patterns; images that cannot be read are named at the end (exit code 2)
        top: images to show for each
        model: the model that the index was made with; if unset, an included one
        sheet: PNG file for the images, each with those found
    """
    from pathlib import Path

    from vitrail.curate.index import open_index
    from vitrail.curate.search_images import draw_matches, model_of, search_images
    from vitrail.data.contact_sheet import check_sheet
    from vitrail.data.readers.class_names import readable
    from vitrail.errors import ImageError
    from vitrail.inference.images import find_images

    opened = open_index(index)
    if sheet is not None:
        check_sheet(sheet)
    loaded = reading.open(model_of(opened, model), common.device)
    paths = find_images(images)
    matches, errors = search_images(opened, loaded, paths, top)
    if len(errors) == len(paths):
        raise ImageError(errors[0])
    read = [i for i in range(len(paths)) if i not in errors]
    output = Output(
        common, ["image", ">similarity", "class", "in the index"], [], {"index": index, "images": []}
    )
    for i in read:
        for one in matches[i]:
            label = "" if one.label_name is None else readable(one.label_name)
            output.rows.append(["", f"{one.similarity:.3f}", label, one.key])
        output.rows[-len(matches[i])][0] = str(paths[i])
        output.result["images"].append(
            {"path": str(paths[i]), "neighbours": [one._asdict() for one in matches[i]]}
        )
    if sheet is not None:
        names = [paths[i].name for i in read]
        draw_matches(opened, [paths[i] for i in read], names, [matches[i] for i in read], Path(sheet))
        output.after.append(f"Drawn in {sheet}")
    output.problems += [errors[i] for i in sorted(errors)]
    output.result |= {"sheet": sheet, "errors": output.problems}
    return output
