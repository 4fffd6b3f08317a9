"""Verbs that show what is in a data set by its features: data map, data next."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from tyro.conf import Positional, arg

from vitrail.cli.verb import COMMON, EXTRACTING, READING, Common, Extracting, Output, Reading
from vitrail.errors import ConfigError

if TYPE_CHECKING:
    from vitrail.curate.map_data import Map

DataPath = Annotated[Positional[str], arg(metavar="DATA")]
Colour = Literal["label", "prediction", "error"]


def data_map(
    data: DataPath,
    *,
    out: str,
    model: str = "ti8-64",
    split: str | None = None,
    predictions: Literal["out-of-fold", "model", "none"] = "out-of-fold",
    colour: Colour = "label",
    projection: Literal["auto", "tsne", "pca"] = "auto",
    most: int = 10_000,
    thumbnails: int = 64,
    seed: int = 0,
    extracting: Extracting = EXTRACTING,
    reading: Reading = READING,
    common: Common = COMMON,
) -> Output:
    """Draw a data set as a map: similar images are near to each other. A picture, and a page to look around in.

    Args:
        data: a data set
        out: folder for map.png and map.html
        model: an included model (ti8-64), a bundle, a run, any supported checkpoint, or an exported file
        split: which part of the data set; if unset, train, or the only one
        predictions: out-of-fold: by a classifier on the features, which has not seen the image; model: by the model
        colour: what the points of the picture are coloured by; the page has all three
        projection: auto: t-SNE if openTSNE is installed (pip install "vitrail[map]"), else principal components
        most: images; of more, so many of each class in proportion are chosen by the seed
        thumbnails: pixels of the longer side of the small pictures on the page; 0: none
        seed: of the projection and the choice
    """
    from vitrail.curate.build_index import open_images
    from vitrail.curate.map_data import map_data
    from vitrail.curate.map_page import check_map_folder, write_map

    folder = Path(out)
    check_map_folder(folder)
    if colour != "label" and predictions == "none":
        raise ConfigError(f"--colour {colour} needs predictions: leave out --predictions none")
    source, _ = open_images(data, split)
    found = map_data(
        reading.open(model, common.device), source, predictions=predictions, projection=projection, most=most,
        seed=seed, extraction=extracting.extraction(),
    )  # fmt: skip
    if found.errors is None and colour != "label":
        raise ConfigError(f"--colour {colour}: there are no predictions, since there is only one class")
    about, picture = describe_map(found, model, predictions), folder / "map.png"
    page = write_map(found, folder, title=f"Map of {source.name}", about=about, thumbnails=thumbnails)
    draw_picture(found, colour, about, picture)
    rows, result = tabulate_map(found)
    result |= {"data": data, "model": model, "predictions": predictions, "seed": seed}
    result |= {"page": str(page), "picture": str(picture)}
    after = [f"Page: {page}", f"Picture: {picture}"]
    if projection == "auto" and found.projection != "t-SNE":
        after.append('t-SNE shows groups better: pip install "vitrail[map]"')
    return Output(common, ["", ""], rows, result, after=after)


def count_images(found: Map) -> str:
    return f"{len(found):,}" + ("" if len(found) == found.images else f" of {found.images:,}")


def describe_map(found: Map, model: str, predictions: str) -> str:
    """Return a sentence on what the map shows, and on how many labels are predicted."""
    from vitrail.evaluators.score import format_accuracy

    about = f"{found.source.name}: {count_images(found)} images, features of {model}, by {found.projection}"
    if found.errors is None:
        return about
    by = "out of fold" if predictions == "out-of-fold" else f"by {model}"
    return f"{about}; predicted {by}, {format_accuracy(1 - found.errors.mean(), len(found))} as labelled"


def tabulate_map(found: Map) -> tuple[list[list[str]], dict[str, Any]]:
    """Return what the map holds, for the table and for --json."""
    errors = None if found.errors is None else int(found.errors.sum())
    rows = [
        ["images", count_images(found)],
        ["classes", f"{len(found.source.class_names):,}"],
        ["places", found.projection],
        ["predicted otherwise", "" if errors is None else f"{errors:,}"],
    ]
    result = {"split": found.source.name, "images": len(found), "of": found.images}
    return rows, result | {"projection": found.projection, "errors": errors}


def draw_picture(found: Map, colour: Colour, about: str, path: Path) -> None:
    """Draw the points of the map, coloured by one of their classes or by whether these differ."""
    from vitrail.curate.map_data import colours
    from vitrail.data.readers.class_names import readable
    from vitrail.inspection.drawing import draw_map

    groups, names = found.labels, [readable(name) for name in found.class_names]
    ink = colours(len(names))
    if colour == "prediction" and found.predicted is not None:
        groups = found.predicted
    elif colour == "error" and found.errors is not None:
        groups, names = found.errors.astype(int), ["predicted as labelled", "predicted as another class"]
        ink = ["#b9c2cd", "#d6453a"]
    draw_map(found.xy, groups, names, ink, path, title=f"{found.source.name} by {colour}", about=about)


def data_next(
    data: DataPath,
    *,
    unlabelled: str,
    number: Annotated[int, arg(aliases=("-n",))] = 100,
    model: str = "ti8-64",
    out: str = "next.csv",
    sheet: str | None = None,
    split: str | None = None,
    extracting: Extracting = EXTRACTING,
    reading: Reading = READING,
    common: Common = COMMON,
) -> Output:
    """List the images to label next: ambiguous ones, whose labels say most about all the others.

    Args:
        data: a data set with labels
        unlabelled: folder of images without labels, or a glob pattern
        number: images to choose
        model: an included model (ti8-64), a bundle, a run, any supported checkpoint, or an exported file
        out: file for the list (CSV): fill in its column `label`, then use it as ?labels=FILE
        sheet: PNG file for a contact sheet
        split: which part of the data set; if unset, all of it
    """
    from vitrail.curate.next_labels import check_list, draw_suggestions, labelled_images, suggest, write_list
    from vitrail.data.contact_sheet import check_sheet
    from vitrail.data.readers.class_names import readable

    if number < 1:
        raise ConfigError(f"--number must be at least 1, not {number}")
    check_list(Path(out))
    if sheet is not None:
        check_sheet(sheet)
    labelled = labelled_images(data, split)
    loaded = reading.open(model, common.device)
    suggestions, counts = suggest(loaded, labelled, unlabelled, number, extracting.extraction())
    write_list(suggestions, Path(out))
    if sheet is not None:
        draw_suggestions(suggestions, Path(sheet))
    rows = [
        ["labelled images", f"{len(labelled):,}"],
        ["unlabelled images", f"{counts['images']:,}"],
        ["unreadable", f"{counts['unreadable']:,}"],
        ["labelled already", f"{counts['known']:,}"],
        ["to label", f"{len(suggestions):,}"],
        ["the first", ", ".join(f"{s.name} ({readable(s.predicted)}?)" for s in suggestions[:3])],
    ]
    result: dict[str, Any] = {"data": data, "unlabelled": unlabelled, "model": model, "out": out}
    result |= {"sheet": sheet, "labelled": len(labelled), **counts, "to_label": []}
    for one in suggestions:
        entry = {"path": str(one.path), "file_name": one.name, "predicted": one.predicted}
        result["to_label"].append(entry | {"margin": round(one.margin, 4)})
    after = [f"The list is {out}: fill in its column `label`, then use '{unlabelled}?labels={out}'"]
    return Output(common, ["", ""], rows, result, after=after)
