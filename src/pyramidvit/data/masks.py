"""Pictures with a mask file each → class names and items per split.

Layouts: ``images/`` beside ``masks/`` (or semantic, labels, annotations, SegmentationClass …), with or without train/ and val/ in or above
them; or masks beside the pictures, named like them plus ``_mask``. Files are paired by name without suffix, in folders and below.
Splits come from folders, or from the pictures that COCO json or ImageSets/Segmentation lists name, or are drawn from seed and names alone.

Class names are ``classes``, or those of a file in the root: class_names.json, classes.txt and the like (a list, names by number, or a csv
of name, r, g, b), or else as many numbers as the first masks have values. A network that was trained on other data finds its classes
by their names.
"""

import hashlib
import unicodedata
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from pyramidvit.data.annotations import choose_splits, drawn_order, pictures_below, read_json, share_of, split_of, unknown_names
from pyramidvit.data.coco import is_coco
from pyramidvit.data.findings import Finding, number_of
from pyramidvit.data.folders import SUFFIXES, VAL_NAMES
from pyramidvit.data.listing import entries_of, first_of, inside, read_lines, relative
from pyramidvit.data.mask_classes import settle_code
from pyramidvit.data.mask_items import Colour, MaskCode, MaskItem, read_mask
from pyramidvit.errors import UserError

_IMAGES = ("images", "image", "imgs", "img", "jpegimages", "pictures", "photos")
_MASKS = ("masks", "mask", "semantic", "segmentationclass", "segmentation", "annotations", "labels", "label", "gt", "ground_truth")
_ENDINGS = ("_mask", "_masks", "-mask", "_label", "_labels", "_seg", "_segmentation", "_gt", "_l")
_LOOKED_AT = 64
"""Masks that are read, spread over the data, to find out what values there are."""
Pair = tuple[Path, Path]


@dataclass(frozen=True)
class MaskData:
    """Pictures with masks. ``splits`` has "train" and "val", each maybe empty; ``findings`` are what reading brought up."""

    root: Path
    code: MaskCode
    splits: Mapping[str, tuple[MaskItem, ...]]
    made_split: bool = False
    findings: tuple[Finding, ...] = ()

    @property
    def classes(self) -> tuple[str, ...]:
        return self.code.classes

    @property
    def fingerprint(self) -> str:
        """Of names and sizes, and of what values mean."""
        return mask_fingerprint(self)

    @property
    def remarks(self) -> tuple[str, ...]:
        """What reading brought up."""
        return tuple(finding.message for finding in self.findings)

    def to_json(self) -> dict[str, Any]:
        """Plain data with paths relative to ``root``, which is the one absolute path."""
        splits = {
            split: [[relative(item.path, self.root), relative(item.mask, self.root)] for item in items]
            for split, items in self.splits.items()
        }
        code = self.code
        meaning = {
            "value_map": [[*pair] for pair in code.value_map.items()],
            "colours": [[[*colour], label] for colour, label in code.colours.items()],
            "reduce_zero": code.reduce_zero,
            "order": [*code.order],
        }
        root = str(self.root.absolute())
        return {"root": root, "classes": [*self.classes], "splits": splits, "made_split": self.made_split, "masks": meaning}

    @classmethod
    def from_json(cls, content: Mapping[str, Any], root: Path | None = None) -> "MaskData":
        """What ``to_json`` gave; ``root`` is where the data is now, if it has moved."""
        try:
            base, masks = Path(content["root"]) if root is None else root, content["masks"]
            colours = {(int(r), int(g), int(b)): int(label) for (r, g, b), label in masks["colours"]}
            value_map = {int(value): int(label) for value, label in masks["value_map"]}
            order = tuple(int(number) for number in masks.get("order", ()))
            code = MaskCode(tuple(map(str, content["classes"])), value_map, colours, bool(masks["reduce_zero"]), order)
            splits = {
                split: tuple(
                    MaskItem(base / inside(path, "the saved split"), base / inside(mask, "the saved split"), code)
                    for path, mask in content["splits"][split]
                )
                for split in ("train", "val")
            }
            return cls(base, code, splits, bool(content["made_split"]))
        except (KeyError, TypeError, ValueError) as error:
            raise UserError(f"The saved split is not one that we wrote ({type(error).__name__}: {error}); start a new run.") from error


def read_mask_data(
    root: str | Path,
    *,
    val_share: float = 0.2,
    seed: int = 0,
    classes: Sequence[str] | None = None,
    value_map: Mapping[int, int] | None = None,
    colours: Mapping[str, Colour] | None = None,
    reduce_zero: bool = False,
    trained: Sequence[str] | None = None,
    strict: bool = True,
) -> MaskData:
    """Find pairs, classes and splits of a folder.

    ``colours`` of classes by name are for RGB masks; ``trained`` are the classes of a network, whose numbers hold then. What would make
    training wrong is a UserError, or with ``strict=False``, for a check, an error among the findings.
    """
    root = Path(root)
    if not root.is_dir():
        raise UserError(f"There is no folder {root}; segmentation takes a folder with images/ and masks/.")
    findings: list[Finding] = []
    pairs = {split: _pairs(*place, root, findings) for split, place in _places(root, findings).items()}
    if not any(pairs.values()):
        raise UserError(f"No pictures with masks in {root}: expected images/ and masks/ with files of the same names.")
    if "all" in pairs:
        pairs = _listed(pairs["all"], root, findings) or pairs
    made_split = "val" not in pairs
    if made_split:
        found = pairs.get("all", pairs.get("train", []))
        held = set(drawn_order([path for path, _ in found], root, seed)[: share_of(len(found), val_share)])
        pairs = {"train": [pair for pair in found if pair[0] not in held], "val": [pair for pair in found if pair[0] in held]}
    values = _values([mask for split in pairs.values() for _, mask in split])
    code = settle_code(root, values, classes, colours, MaskCode((), dict(value_map or {}), {}, reduce_zero), trained, findings)
    if strict and (errors := [one for one in findings if one.level == "error"]):
        lines = [f"{one.message} {', '.join(one.paths[:3])}{' …' if len(one.paths) > 3 else ''}".rstrip() for one in errors]
        raise UserError(f"The masks of {root} would make training wrong:\n  " + "\n  ".join(lines))
    splits = {split: tuple(MaskItem(path, mask, code) for path, mask in pairs.get(split, [])) for split in ("train", "val")}
    return MaskData(root, code, splits, made_split, tuple(findings))


def has_masks(root: Path) -> bool:
    """Whether a folder holds pictures with mask files."""
    return any(_pairs(*place, root, []) for place in _places(root, []).values())


def mask_fingerprint(data: MaskData) -> str:
    """SHA-256 over relative paths and sizes in bytes (-1 for what can't be read) of pictures and masks, and what values mean."""
    code = data.code
    meaning = (code.classes, sorted(code.value_map.items()), sorted(code.colours.items()), code.reduce_zero)
    lines = [repr((*meaning, code.order) if code.order else meaning)]
    for item in (item for items in data.splits.values() for item in items):
        for path in (item.path, item.mask):
            try:
                size = path.stat().st_size
            except OSError:
                size = -1
            lines.append(f"{relative(path, data.root)}\t{size}\n")
    return hashlib.sha256("".join(sorted(lines)).encode("utf-8", "surrogateescape")).hexdigest()


def _places(root: Path, findings: list[Finding]) -> dict[str, Pair]:
    """Folders of pictures and masks of each split, or of "all"; the same folder twice when masks are beside the pictures."""
    images, masks = first_of(root, _IMAGES), first_of(root, _MASKS)
    if images and masks:
        by_split = {split_of(folder, root): folder for folder in entries_of(masks, [])[0]}
        found = {folder: split for folder in entries_of(images, [])[0] if (split := split_of(folder, root)) in by_split and split}
        chosen = choose_splits(found, root, findings)
        return {split: (folder, by_split[found[folder]]) for split, folder in chosen.items()} or {"all": (images, masks)}
    found = {folder: split for folder in entries_of(root, [])[0] if (split := split_of(folder, root))}
    places = choose_splits(found, root, findings) or {"all": root}
    return {split: (first_of(place, _IMAGES) or place, first_of(place, _MASKS) or place) for split, place in places.items()}


def _pairs(images: Path, masks: Path, root: Path, findings: list[Finding]) -> list[Pair]:
    by_name = {_name(path, masks): path for path in pictures_below(masks)}
    shortened = {_without_ending(name): path for name, path in by_name.items()}
    shortened.pop(None, None)
    pictures = [path for path in pictures_below(images) if images != masks or _without_ending(_name(path, masks)) is None]
    pairs: list[Pair] = []
    alone: list[str] = []
    for path in pictures:
        name = _name(path, images)
        mask = shortened.get(name) or (by_name.get(name) if images != masks else None)
        if mask is None:
            alone.append(relative(path, root))
        else:
            pairs.append((path, mask))
    if alone and (pairs or images != masks):
        text = (
            f"{number_of(len(alone), 'picture has', 'pictures have')} no mask of the same name in {relative(masks, root)}/: add or remove."
        )
        findings.append(Finding("error", "no-mask", text, tuple(alone)))
    used = {mask for _, mask in pairs}
    unused = [relative(path, root) for path in by_name.values() if path not in used and (images != masks or path not in pictures)]
    if unused:
        text = f"{number_of(len(unused), 'mask has', 'masks have')} no picture of the same name, left out."
        findings.append(Finding("note", "unused-masks", text, tuple(unused)))
    return pairs


def _name(path: Path, folder: Path) -> str:
    return unicodedata.normalize("NFC", path.relative_to(folder).with_suffix("").as_posix())


def _without_ending(name: str) -> str | None:
    return next((name[: -len(ending)] for ending in _ENDINGS if name.lower().endswith(ending)), None)


def _listed(pairs: list[Pair], root: Path, findings: list[Finding]) -> dict[str, list[Pair]]:
    """Splits that lists name; empty when there are none. Names are those of pictures, with or without folders and suffix."""
    by_name: dict[str, list[Pair]] = defaultdict(list)
    for pair in pairs:
        parts = _name(pair[0], root).split("/")
        for start in range(len(parts)):
            by_name["/".join(parts[start:])].append(pair)
    lists = _lists(root)
    splits: dict[str, list[Pair]] = {}
    for split, file in choose_splits({file: split_of(file, root) for file in lists}, root, findings).items():
        if missing := [name for name in lists[file] if _plain(name) not in by_name]:
            findings.append(unknown_names(missing, split, relative(file, root), "picture and mask"))
        wanted = {pair for name in lists[file] for pair in by_name.get(_plain(name), ())}
        splits[split] = [pair for pair in pairs if pair in wanted]
    return splits


def _plain(name: str) -> str:
    path = Path(unicodedata.normalize("NFC", name.replace("\\", "/")))
    return (path.with_suffix("") if path.suffix.lower() in SUFFIXES else path).as_posix()


def _lists(root: Path) -> dict[Path, list[str]]:
    """Files that say which pictures are in a split, and the names in them."""
    folder = root / "ImageSets" / "Segmentation"
    files = [file for file in sorted(folder.glob("*.txt")) if file.stem in ("train", *VAL_NAMES)] if folder.is_dir() else []
    if files:
        return {file: [line.strip() for line in read_lines(file) if line.strip()] for file in files}
    files = [file for file in entries_of(root, [])[1] if file.suffix.lower() == ".json" and split_of(file, root)]
    lists: dict[Path, list[str]] = {}
    for file in [file for file in files if file.name.startswith("instances")] or files:
        if is_coco(content := read_json(file)):
            if not all(isinstance(entry, Mapping) for entry in content["images"]):
                raise UserError(f"{file} is damaged: its images must be a list of mappings with a file_name each.")
            lists[file] = [str(entry.get("file_name")) for entry in content["images"]]
    return lists


def _values(masks: Sequence[Path]) -> set[int]:
    """Values in masks spread over the data; those in colour have none."""
    values: set[int] = set()
    for path in masks[:: max(len(masks) // _LOOKED_AT, 1)]:
        try:
            mask = read_mask(path)
        except UserError:  # said by whoever needs it
            continue
        if mask.ndim == 2 or (mask[..., :1] == mask).all():
            values.update(np.unique(mask if mask.ndim == 2 else mask[..., 0]).tolist())
    return values
