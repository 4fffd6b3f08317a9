"""Verbs that show what is in a data set by its features: data map, data next."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from tyro.conf import Positional, arg

from vitrail.cli.verb import COMMON, READING, Common, Output, Reading

DataPath = Annotated[Positional[str], arg(metavar="DATA")]


def data_map(
    data: DataPath,
    *,
    out: str,
    model: str = "ti8-64",
    split: str | None = None,
    predictions: Literal["out-of-fold", "model", "none"] = "out-of-fold",
    colour: Literal["label", "prediction", "error"] = "label",
    projection: Literal["auto", "tsne", "pca"] = "auto",
    most: int = 10_000,
    thumbnails: int = 64,
    seed: int = 0,
    which: str = "pre_logits",
    batch_size: int = 64,
    num_workers: int = 0,
    max_bad: float = 0.01,
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
        which: features: pre_logits (the input of the classifier), token, mean, layer3 (any layer), ...
        batch_size: images in a forward pass
        num_workers: processes that decode
        max_bad: share of the images that may be broken
    """
    from pathlib import Path

    from vitrail.curate.build_index import open_images
    from vitrail.curate.map_data import colours, map_data
    from vitrail.curate.map_page import check_map_folder, write_map
    from vitrail.data.readers.class_names import readable
    from vitrail.errors import ConfigError
    from vitrail.evaluators.score import format_accuracy
    from vitrail.inference.exported import open_model
    from vitrail.inference.features import Extraction
    from vitrail.inspection.drawing import draw_map
    from vitrail.runtime.device import pick

    folder = Path(out)
    check_map_folder(folder)
    if colour != "label" and predictions == "none":
        raise ConfigError(f"--colour {colour} needs predictions: leave out --predictions none")
    source, _ = open_images(data, split)
    loaded = open_model(model, **reading.arguments()).to(pick(common.device))
    found = map_data(
        loaded, source, predictions=predictions, projection=projection, most=most, seed=seed,
        extraction=Extraction(which, batch_size=batch_size, num_workers=num_workers, max_bad=max_bad),
    )  # fmt: skip
    errors = found.errors
    if errors is None and colour != "label":
        raise ConfigError(f"--colour {colour}: there are no predictions, since there is only one class")
    chosen = "" if len(found) == found.images else f" of {found.images:,}"
    about = f"{source.name}: {len(found):,}{chosen} images, features of {model}, by {found.projection}"
    if errors is not None:
        by = "out of fold" if predictions == "out-of-fold" else f"by {model}"
        about += f"; predicted {by}, {format_accuracy(1 - errors.mean(), len(errors))} as labelled"
    page = write_map(found, folder, title=f"Map of {source.name}", about=about, thumbnails=thumbnails)
    groups, names = found.labels, [readable(name) for name in found.class_names]
    if colour == "error" and errors is not None:
        groups, names = errors.astype(int), ["predicted as labelled", "predicted as another class"]
    elif colour == "prediction" and found.predicted is not None:
        groups = found.predicted
    ink = ["#b9c2cd", "#d6453a"] if colour == "error" else colours(len(names))
    draw_map(
        found.xy, groups, names, ink, folder / "map.png", title=f"{source.name} by {colour}", about=about
    )
    rows = [
        ["images", f"{len(found):,}{chosen}"],
        ["classes", f"{len(source.class_names):,}"],
        ["places", found.projection],
        ["predicted otherwise", "" if errors is None else f"{int(errors.sum()):,}"],
    ]
    after = [f"Page: {page}", f"Picture: {folder / 'map.png'}"]
    if projection == "auto" and found.projection != "t-SNE":
        after.append('t-SNE shows groups better: pip install "vitrail[map]"')
    result: dict[str, Any] = {"data": data, "split": source.name, "model": model, "images": len(found)}
    result |= {"of": found.images, "projection": found.projection, "predictions": predictions, "seed": seed}
    result |= {"errors": None if errors is None else int(errors.sum())}
    result |= {"page": str(page), "picture": str(folder / "map.png")}
    return Output(common, ["", ""], rows, result, after=after)


def data_next(
    data: DataPath,
    *,
    unlabelled: str,
    number: Annotated[int, arg(aliases=("-n",))] = 100,
    model: str = "ti8-64",
    out: str = "next.csv",
    sheet: str | None = None,
    split: str | None = None,
    which: str = "pre_logits",
    batch_size: int = 64,
    num_workers: int = 0,
    max_bad: float = 0.01,
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
        which: features: pre_logits (the input of the classifier), token, mean, layer3 (any layer), ...
        batch_size: images in a forward pass
        num_workers: processes that decode
        max_bad: share of the images that may be broken
    """
    from pathlib import Path

    from vitrail.curate.next_labels import check_list, draw_suggestions, labelled_images, suggest, write_list
    from vitrail.data.contact_sheet import check_sheet
    from vitrail.data.readers.class_names import readable
    from vitrail.errors import ConfigError
    from vitrail.inference.exported import open_model
    from vitrail.inference.features import Extraction
    from vitrail.runtime.device import pick

    if number < 1:
        raise ConfigError(f"--number must be at least 1, not {number}")
    check_list(Path(out))
    if sheet is not None:
        check_sheet(sheet)
    labelled = labelled_images(data, split)
    loaded = open_model(model, **reading.arguments()).to(pick(common.device))
    extraction = Extraction(which, batch_size=batch_size, num_workers=num_workers, max_bad=max_bad)
    suggestions, counts = suggest(loaded, labelled, unlabelled, number, extraction)
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
    result: dict[str, Any] = {
        "data": data,
        "unlabelled": unlabelled,
        "model": model,
        "out": out,
        "sheet": sheet,
    }
    result |= {"labelled": len(labelled), **counts, "to_label": []}
    for one in suggestions:
        entry = {"path": str(one.path), "file_name": one.name, "predicted": one.predicted}
        result["to_label"].append(entry | {"margin": round(one.margin, 4)})
    after = [f"The list is {out}: fill in its column `label`, then use '{unlabelled}?labels={out}'"]
    return Output(common, ["", ""], rows, result, after=after)
