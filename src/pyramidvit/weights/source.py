"""Where weights come from: a file, a published name, or a repository of the Hugging Face hub."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from pyramidvit.errors import UserError
from pyramidvit.weights.download import cache_folder, fetch, is_offline, verify
from pyramidvit.weights.own import WeightsMeta, read
from pyramidvit.weights.pickles import read_pickle
from pyramidvit.weights.zoo import SSV2, ZOO, Published, class_names, find

SUFFIXES = (".safetensors", ".pth", ".pt", ".pyth", ".pkl", ".ckpt", ".bin")

WRAPPERS = ("model_state", "state_dict", "model", "state_dict_ema", "model_ema")
"""Under which training programs keep the tensors of a checkpoint; the first that is there counts."""

HUB_FILES = ("model.safetensors", "pytorch_model.bin")


def obtain(source: str | Path, *, offline: bool = False) -> tuple[dict[str, Tensor], WeightsMeta | None]:
    """Tensors of what `locate` finds, and what is known of them: by the file itself or by our table of published files, else None.

    Pickled files are read as data, see `read_foreign`.
    """
    path, record = locate(source, offline=offline)
    with path.open("rb") as file:
        start = file.read(9)
    pickled = start.startswith((b"PK\x03\x04", b"\x80")) and not start.endswith(b"{")  # a safetensors header may begin like a pickle
    tensors, meta = (read_foreign(path, record), None) if pickled else read(path)
    return tensors, meta or (None if record is None else described(record))


def described(record: Published) -> WeightsMeta | None:
    """A published file's description, as ours carry it; None where inputs keep their shape."""
    preprocess = record.preprocess
    if preprocess is None:
        return None
    clips = re.search(r"_(\d+)x(\d)$", record.model)
    config: dict[str, Any] = {
        "task": "video" if clips else record.head,
        "model": {"name": record.model},
        "data": {"mean": preprocess.mean, "std": preprocess.std},
        "augment": {"size": preprocess.size, "crop": preprocess.crop, "interpolation": preprocess.interpolation},
    }
    if clips:
        config["clip"] = {"frames": int(clips[1]), "stride": int(clips[2]), "segments": record.classes == SSV2}
    return WeightsMeta(record.model, config["task"], class_names(record.classes), preprocess, config, record.numbers)


def locate(source: str | Path, *, offline: bool = False) -> tuple[Path, Published | None]:
    """The file that a path, a published name (`pvt_v2_b2.in1k`) or `hf:owner/name` means, fetched if need be; and its record.

    UserError with the nearest names when it means nothing.
    """
    text = str(source)
    if text.startswith("hf:"):
        return _from_hub(Published(text, text, "", {}), offline), None
    if text in ZOO and not Path(text).exists():
        record = ZOO[text]
        return (_from_hub if record.url.startswith("hf:") else fetch)(record, offline=offline), record
    if isinstance(source, str) and "/" not in text and "." in text and not text.endswith(SUFFIXES) and not Path(text).exists():
        find(text)  # says which names are near
    if not Path(text).is_file():
        raise UserError(
            f"There is no weights file {text}. Expected a file, a published name such as pvt_v2_b2.in1k (`pyramidvit weights` lists them), "
            "or hf:owner/name."
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
            file = hf_hub_download(repository, name, revision=revision or None, cache_dir=cache_folder() / "hub", local_files_only=offline)
        except (EntryNotFoundError, HfHubHTTPError, HFValidationError, OSError) as error:
            reason = str(error).strip().splitlines()[0][:300]
            continue
        verify(Path(file), cache_folder() / f"hub-{repository.replace('/', '--')}-{revision or 'main'}-{name}", record)
        return Path(file)
    how = "the network is not to be used, and the cache has neither" if offline else "neither could be fetched"
    raise UserError(f"Can't get {' or '.join(HUB_FILES)} from {record.url}: {how} ({reason}). Check the name, or give a file.")


def read_foreign(path: Path, record: Published | None = None) -> dict[str, Tensor]:
    """The tensors of a pickled file, out of what training programs wrap them in, by their own names.

    UserError when it holds anything that would have to be run, or no tensors.
    """
    content = read_pickle(path)
    while isinstance(content, Mapping) and not _is_state_dict(content):
        wrapper = next((name for name in WRAPPERS if isinstance(content.get(name), Mapping)), None)
        content = None if wrapper is None else content[wrapper]
    if content is None or not isinstance(content, Mapping):
        raise UserError(f"{path} holds no state dict; expected tensors by name, alone or under {', '.join(WRAPPERS)}.")
    tensors = {str(key): value for key, value in content.items() if isinstance(value, Tensor)}
    return blue_last(tensors) if record is not None and record.bgr else tensors


def _is_state_dict(content: Mapping[Any, Any]) -> bool:
    return any(isinstance(value, Tensor) for value in content.values()) and not any(name in content for name in WRAPPERS)


def blue_last(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Weights of a network that saw pictures with blue first, for pictures with red first."""
    return {key: tensor.flip(1) if key.endswith("patch_embed.proj.weight") else tensor for key, tensor in tensors.items()}
