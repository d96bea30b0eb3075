"""Where weights come from: a file, a published name, or a repository of the Hugging Face hub."""

import logging
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from torch import Tensor

from pyramidvit.errors import UserError
from pyramidvit.weights.download import cache_folder, fetch, is_offline, verify
from pyramidvit.weights.layouts import unwrapped
from pyramidvit.weights.own import WeightsMeta, read
from pyramidvit.weights.pickles import read_pickle
from pyramidvit.weights.zoo import SSV2, ZOO, Published, class_names, clip_of, find

SUFFIXES = (".safetensors", ".pth", ".pt", ".pyth", ".pkl", ".ckpt", ".bin")

WRAPPERS = ("model_state", "state_dict", "model", "state_dict_ema", "model_ema", "ema")
"""Under which training programs keep the tensors of a checkpoint, or what holds them."""

TASKS = {"classify": "classify", "retinanet": "detect", "mask_rcnn": "instances", "semantic_fpn": "segment"}
"""Head of a published file → what it was trained for."""

HUB_FILES = ("model.safetensors", "pytorch_model.bin")


def obtain(source: str | Path, *, offline: bool = False) -> tuple[dict[str, Tensor], WeightsMeta | None]:
    """Tensors of what `locate` finds, and what is known of them: by the file itself or by our table of published files, else None.

    ``#name`` behind the source chooses one of several networks in a file: the one under that key, or whose tensors' names begin with it.
    Pickled files are read as data, see `read_foreign`.
    """
    place, part = split_part(source)
    path, record = locate(place, offline=offline)
    try:
        with path.open("rb") as file:
            start = file.read(9)
    except OSError as error:
        raise UserError(f"Can't read {path}: {error.strerror or error}.") from None
    if start.startswith((b"PK\x03\x04", b"\x80")) and not start.endswith(b"{"):  # a safetensors header may begin like a pickle
        tensors, meta = read_foreign(path, record, part), None
    else:
        tensors, meta = read(path)
        tensors = tensors if part is None else _begun_with(part, tensors, path)
    return tensors, meta or (None if record is None else described(record))


def split_part(source: str | Path) -> tuple[str | Path, str | None]:
    """The source, and the name of the network in it behind a ``#``, if there is one."""
    place, mark, part = str(source).rpartition("#")
    return (place, part) if mark and "/" not in part and not os.path.exists(source) else (source, None)


def described(record: Published) -> WeightsMeta:
    """A published file's description, as ours carry it."""
    preprocess, clips = record.preprocess, clip_of(record.model)
    size, interpolation = preprocess.size, preprocess.interpolation
    task = "video" if clips else TASKS[record.head]
    config: dict[str, Any] = {"task": task, "model": {"name": record.model}, "data": {"mean": preprocess.mean, "std": preprocess.std}}
    if record.head == "classify":
        config["augment"] = {"size": size, "crop": preprocess.crop, "interpolation": interpolation}
    else:
        multiple = 32 if task == "segment" else 1
        config["dense"] = {"short": size[0], "long": size[1], "resampling": interpolation, "multiple": multiple}
    if clips:
        config["clip"] = {"frames": clips[0], "stride": clips[1], "segments": record.classes == SSV2}
    return WeightsMeta(record.model, task, class_names(record.classes), preprocess, config, record.numbers)


def locate(source: str | Path, *, offline: bool = False) -> tuple[Path, Published | None]:
    """The file that a path, a published name (`pvt_v2_b2.in1k`) or `hf:owner/name` means, fetched if need be; and its record.

    UserError with the nearest names when it means nothing.
    """
    text = str(source)
    if text.startswith("hf:"):
        return _from_hub(Published(text, text, "", {}), offline), None
    there = os.path.exists(text)  # False, where Path.exists raises, for names that are too long
    if text in ZOO and not there:
        record = ZOO[text]
        return (_from_hub if record.url.startswith("hf:") else fetch)(record, offline=offline), record
    if isinstance(source, str) and "/" not in text and "." in text and not text.endswith(SUFFIXES) and not there:
        find(text)  # says which names are near
    if text and os.path.isdir(text):
        inside = Path(text, "weights", "best.safetensors")
        raise UserError(f"{text} is a folder; expected a file of weights{f', such as {inside}' if inside.is_file() else ' in it'}.")
    if not os.path.isfile(text):
        raise UserError(
            f"There is no weights file {text[:300] or repr(text)}. Expected a file, a published name such as pvt_v2_b2.in1k "
            "(`pyramidvit weights` lists them), or hf:owner/name."
        )
    return Path(text), None


def _from_hub(record: Published, offline: bool) -> Path:
    """The weights of a repository on the hub, in the hub's own cache under ours; ``@revision`` may follow the name."""
    try:
        from huggingface_hub import hf_hub_download  # noqa: PLC0415 - an extra
        from huggingface_hub.errors import EntryNotFoundError, HfHubHTTPError, HFValidationError  # noqa: PLC0415
    except ImportError:
        raise UserError(f"{record.url} needs the Hugging Face client: pip install 'pyramidvit[hub]'.") from None
    repository, _, revision = record.url.removeprefix("hf:").partition("@")
    offline = offline or is_offline()
    reason = ""
    for name in HUB_FILES:
        try:
            with _quiet("huggingface_hub"):
                file = hf_hub_download(
                    repository, name, revision=revision or None, cache_dir=cache_folder() / "hub", local_files_only=offline
                )
        except (EntryNotFoundError, HfHubHTTPError, HFValidationError, OSError) as error:
            reason = str(error).strip().splitlines()[0][:300]
            continue
        verify(Path(file), cache_folder() / f"hub-{repository.replace('/', '--')}-{revision or 'main'}-{name}", record)
        return Path(file)
    how = "the network is not to be used, and the cache has neither" if offline else "neither could be fetched"
    raise UserError(f"Can't get {' or '.join(HUB_FILES)} from {record.url}: {how} ({reason}). Check the name, or give a file.")


@contextmanager
def _quiet(library: str) -> Iterator[None]:
    """Without a library's remarks about its own retries: what came of them is said once, by our error."""
    logger = logging.getLogger(library)
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        logger.setLevel(level)


def read_foreign(path: Path, record: Published | None = None, part: str | None = None) -> dict[str, Tensor]:
    """The tensors of a pickled file, out of what training programs wrap them in, by their own names; ``part`` as in `obtain`.

    UserError when it holds anything that would have to be run, no tensors, or several networks of which none is chosen.
    """
    content = read_pickle(path)
    if part is not None and isinstance(content, Mapping) and isinstance(content.get(part), Mapping):
        content, part = content[part], None
    while isinstance(content, Mapping) and (inside := _networks(content)):
        if len(inside) > 1:
            names = " and ".join(inside)
            raise UserError(f"{path} holds several networks, under {names}: name one of them behind the file, as in {path}#{inside[-1]}.")
        content = content[inside[0]]
    tensors = {str(key): value for key, value in content.items() if isinstance(value, Tensor)} if isinstance(content, Mapping) else {}
    if not tensors:
        raise UserError(
            f"{path} holds no state dict, but {_outline(content)}. Expected tensors by name, alone or under "
            f"{', '.join(WRAPPERS)}; what lies under another name is chosen by that name behind the file, as in {path}#name."
        )
    tensors = tensors if part is None else _begun_with(part, tensors, path)
    return blue_last(tensors) if record is not None and record.bgr else tensors


def _networks(content: Mapping[Any, Any]) -> list[str]:
    """Under which names of a checkpoint networks lie, or what holds them."""
    return [
        key
        for key, value in content.items()
        if isinstance(key, str) and isinstance(value, Mapping) and (_is_state_dict(value) or (key in WRAPPERS and _holds_more(value)))
    ]


def _holds_more(content: Mapping[Any, Any]) -> bool:
    return any(isinstance(value, Tensor | Mapping) for value in content.values())


def _is_state_dict(content: Mapping[Any, Any]) -> bool:
    return any(isinstance(value, Tensor) and "." in str(key) for key, value in content.items())


def _begun_with(part: str, tensors: Mapping[str, Tensor], path: Path) -> dict[str, Tensor]:
    """The tensors whose names begin with ``part``, without it."""
    names = unwrapped(tensors)
    chosen = {key.removeprefix(f"{part}."): tensor for key, tensor in names.items() if key.startswith(f"{part}.")}
    if not chosen:
        first = sorted({key.split(".")[0][:40] for key in names})
        raise UserError(f"{path} holds nothing under {part!r}; its names begin with {', '.join(first[:10])}{', …' if first[10:] else ''}.")
    return chosen


def _outline(content: Any) -> str:
    """What a file holds in place of tensors, in a few words."""
    if not isinstance(content, Mapping):
        return f"a {type(content).__name__}"
    keys = [f"{key[:40]} ({_size(value)})" for key, value in content.items() if isinstance(key, str)]
    return f"{', '.join(keys[:10])}{', …' if keys[10:] else ''}" if keys else f"a dict of {len(content)} without names"


def _size(value: Any) -> str:
    return f"{len(value)} entries" if isinstance(value, Mapping) else type(value).__name__


def blue_last(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Weights of a network that saw pictures with blue first, for pictures with red first."""
    return {key: tensor.flip(1) if key.endswith("patch_embed.proj.weight") else tensor for key, tensor in tensors.items()}
