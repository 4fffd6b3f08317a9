"""Models on the Hugging Face hub, by the names hub:OWNER/NAME and hub:OWNER/NAME@REVISION.

    name  --fetch-->  a folder in the hub's own cache, and the commit that it holds
    folder  --upload-->  one commit in a repository

Only safetensors and JSON are fetched, and nothing else in the folder is read: no torch file, no code. Sizes are
checked before. With HF_HUB_OFFLINE, and where the hub cannot be reached, the cache is used; HF_HOME, HF_HUB_CACHE,
HF_ENDPOINT and HF_TOKEN mean what they mean everywhere. A branch is looked up once in a process.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from vitrail.checkpoints.json_files import MAX_BYTES as MAX_JSON_BYTES
from vitrail.checkpoints.json_files import read_object
from vitrail.errors import CheckpointError, ConfigError
from vitrail.runtime.log import note, visible

PREFIX = "hub:"
NAME = re.compile(r"hub:(?P<repository>[\w.-]+(/[\w.-]+)?)(@(?P<revision>[\w./-]+))?")
CARDS = ("model.json", "config.json")  # a repository of a model has one of them
WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"
JSON_FILES = (*CARDS, "preprocessor_config.json", INDEX)
SHARD = re.compile(r"model-\d{5}-of-\d{5}\.safetensors")
MAX_FILES_BYTES = 64 << 30  # of a model


@dataclass(frozen=True)
class Fetched:
    """A model of the hub on this disk."""

    folder: Path
    repository: str
    revision: str  # the commit
    license: str  # as the repository states it; empty: not stated, or not known offline

    @property
    def provenance(self) -> dict[str, str]:
        return {"repository": self.repository, "revision": self.revision}


def is_hub_name(path_or_name: str | Path) -> bool:
    return isinstance(path_or_name, str) and path_or_name.startswith(PREFIX)


@cache
def fetch(name: str) -> Fetched:
    """Return a model of the hub by its name; CheckpointError says why there is none."""
    match = NAME.fullmatch(name)
    if match is None:
        raise ConfigError(f"{name!r} is not of the form hub:OWNER/NAME or hub:OWNER/NAME@REVISION")
    repository, revision = match["repository"], match["revision"] or "main"
    hub = import_hub()
    if hub.constants.HF_HUB_OFFLINE:
        return find_cached(repository, revision, "HF_HUB_OFFLINE is set")
    try:
        with naming_errors(repository, revision):
            return download(repository, revision)
    except UnreachableError as error:
        found = find_cached(repository, revision, str(error))
        note(f"{error}; using {repository} at {found.revision[:12]} from the cache")
        return found


def download(repository: str, revision: str) -> Fetched:
    """Fetch what is not in the cache yet."""
    hub = import_hub()
    info = hub.HfApi().model_info(repository, revision=revision, files_metadata=True)
    sizes = {file.rfilename: file.size or 0 for file in info.siblings or ()}
    names = choose_files(list(sizes), repository)
    if large := [name for name in names if name in JSON_FILES and sizes[name] > MAX_JSON_BYTES]:
        raise CheckpointError(f"{repository}: {large[0]} has {sizes[large[0]]:,} bytes, too many for JSON")
    if (total := sum(sizes[name] for name in names)) > MAX_FILES_BYTES:
        raise CheckpointError(f"{repository} has {total >> 30:,} GiB of weights; at most 64 GiB are read")
    # By the name of the branch, so that the cache knows its commit when there is no network.
    paths = [Path(hub.hf_hub_download(repository, name, revision=revision)) for name in names]
    if {path.parent.name for path in paths} != {info.sha}:
        raise CheckpointError(f"{repository} was changed while it was fetched: try again")
    card: Any = info.card_data.to_dict() if info.card_data else {}
    license = card.get("license_name") if card.get("license") == "other" else card.get("license")
    check_weights(paths[0].parent, repository)
    return Fetched(paths[0].parent, repository, str(info.sha), license if isinstance(license, str) else "")


def choose_files(names: list[str], repository: str) -> list[str]:
    """Return the files that make up a model; CheckpointError if there is none in safetensors."""
    weights = [name for name in names if name == WEIGHTS]
    if not weights and INDEX in names:
        weights = [name for name in names if SHARD.fullmatch(name)]
    chosen = [name for name in names if name in JSON_FILES] + weights
    if not weights or not set(CARDS) & set(chosen):
        there = ", ".join(sorted(map(visible, names))[:6]) or "nothing"
        raise CheckpointError(
            f"{repository} has no model that is read here, {WEIGHTS} with {' or '.join(CARDS)}; it has {there}"
        )
    return chosen


def find_cached(repository: str, revision: str, why: str) -> Fetched:
    """Return a model that was fetched before."""
    hub = import_hub()
    for card in CARDS:
        path = hub.try_to_load_from_cache(repository, card, revision=revision)
        if isinstance(path, str):
            folder = Path(path).parent
            check_weights(folder, repository)
            return Fetched(folder, repository, folder.name, "")
    raise CheckpointError(
        f"{why}, and {repository} at {revision} is not in the cache, {hub.constants.HF_HUB_CACHE}"
    )


def check_weights(folder: Path, repository: str) -> None:
    """Raise CheckpointError unless the weights in a folder are there, and all of them safetensors."""
    index, files = folder / INDEX, [folder / WEIGHTS]
    if not files[0].is_file() and index.is_file():
        places = read_object(index, follow_links=True).get("weight_map")
        names = set(places.values()) if isinstance(places, dict) else {"no weight_map"}
        if strange := [name for name in names if not isinstance(name, str) or not SHARD.fullmatch(name)]:
            raise CheckpointError(
                f"{repository}: {INDEX} names {strange[0]!r:.60}, which is no part of a model"
            )
        files = [folder / name for name in sorted(names)]
    for file in files:
        if not file.is_file():
            raise CheckpointError(
                f"{repository}: {file.name} is not in the cache: fetch it once with a network"
            )
        with file.open("rb") as stream:
            if stream.read(9)[8:] != b"{":
                raise CheckpointError(f"{repository}: {file.name} is not a .safetensors file")


# --- uploading ---


@dataclass(frozen=True)
class Pushed:
    """A commit on the hub."""

    repository: str
    revision: str  # the commit
    url: str


def upload(folder: Path, repository: str, *, private: bool, revision: str | None, message: str) -> Pushed:
    """Commit the files of a folder to a repository, which is made if it does not exist."""
    hub = import_hub()
    repository = repository.removeprefix(PREFIX)
    if not NAME.fullmatch(f"{PREFIX}{repository}"):
        raise ConfigError(f"{repository!r} is not of the form OWNER/NAME")
    if hub.constants.HF_HUB_OFFLINE:
        raise ConfigError("HF_HUB_OFFLINE is set: nothing can be pushed")
    if hub.get_token() is None:
        raise ConfigError("there is no token for the hub: log in with `hf auth login`, or set HF_TOKEN")
    api = hub.HfApi()
    files = [hub.CommitOperationAdd(path.name, path) for path in sorted(folder.iterdir())]
    with naming_errors(repository, revision or "main", writing=True):
        made = api.create_repo(repository, private=private or None, exist_ok=True)
        if revision is not None:
            api.create_branch(made.repo_id, branch=revision, exist_ok=True)
        commit = api.create_commit(made.repo_id, files, commit_message=message, revision=revision)
    return Pushed(made.repo_id, commit.oid, commit.commit_url)


# --- what may go wrong ---


class UnreachableError(CheckpointError):
    """The hub does not answer."""


@contextmanager
def naming_errors(repository: str, revision: str, *, writing: bool = False) -> Iterator[None]:
    """Turn the errors of huggingface_hub into ours, in plain words."""
    from huggingface_hub import errors

    known = import_hub().get_token() is not None
    try:
        yield
    except errors.GatedRepoError as error:
        url = f"{import_hub().constants.ENDPOINT}/{repository}"
        raise CheckpointError(
            f"{repository} is gated: accept its terms at {url}, and log in with `hf auth login`"
        ) from error
    except errors.RepositoryNotFoundError as error:
        hint = "the token may not see it" if known else "it needs a token: `hf auth login`, or HF_TOKEN"
        raise CheckpointError(
            f"there is no model {repository} on the hub; or it is private, and {hint}"
        ) from error
    except errors.RevisionNotFoundError as error:
        raise CheckpointError(f"{repository} has no branch, tag or commit {revision!r}") from error
    except errors.HFValidationError as error:
        raise ConfigError(f"{repository!r} is no name of a repository: {error}") from error
    except errors.HfHubHTTPError as error:
        code = getattr(error.response, "status_code", None)
        if code in (401, 403):
            what = "write to" if writing else "read"
            hint = (
                f"the token may not {what} it" if known else "it needs a token: `hf auth login`, or HF_TOKEN"
            )
            raise CheckpointError(f"the hub refuses access to {repository}: {hint}") from error
        if code is None or code >= 500:
            raise UnreachableError(f"the hub cannot be used now: {first_line(error)}") from error
        raise CheckpointError(f"the hub refuses {repository}: {first_line(error)}") from error
    except errors.LocalEntryNotFoundError as error:
        raise UnreachableError(f"the hub cannot be reached: {first_line(error)}") from error
    except Exception as error:
        # Connections fail with errors of the library below, whose HTTPError huggingface_hub's own is made from; while
        # files are uploaded, they are the cause of a RuntimeError.
        kinds = (ConnectionError, TimeoutError, *errors.HfHubHTTPError.__bases__)
        reason = (error.__cause__ or error) if isinstance(error, RuntimeError) else error
        if not isinstance(reason, kinds) or (isinstance(reason, OSError) and reason.filename is not None):
            raise  # a bug, or the disk
        raise UnreachableError(f"the hub cannot be reached: {first_line(reason)}") from error


def first_line(error: BaseException) -> str:
    return visible(str(error).strip().split("\n")[0][:300]) or type(error).__name__


@cache
def import_hub() -> Any:
    try:
        import huggingface_hub
        import huggingface_hub.constants
    except ImportError as error:
        raise ConfigError(
            "models of the hub need the package huggingface_hub, which is not installed: pip install 'vitrail[hub]'"
        ) from error
    return huggingface_hub
