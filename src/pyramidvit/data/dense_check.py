"""The data doctor for boxes and label maps: counts, sizes, what is wrong with annotations and files, and anchors that fit."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import numpy as np

from pyramidvit.config import DenseConfig
from pyramidvit.data.anchor_fit import AnchorFit, Anchors, fit_anchors
from pyramidvit.data.box_items import BoxItem
from pyramidvit.data.boxes import BoxData, has_objects
from pyramidvit.data.dense_transforms import kept_size
from pyramidvit.data.file_check import Entry, Facts, examine_files, file_findings
from pyramidvit.data.findings import CheckReport, Finding, Level, class_findings, most_serious_first, number_of, split_findings
from pyramidvit.data.folders import SUFFIXES
from pyramidvit.data.image import ImageInfo, ReadOptions
from pyramidvit.data.mask_items import IGNORE, MaskItem
from pyramidvit.data.masks import MaskData
from pyramidvit.data.orientation import turn_between
from pyramidvit.errors import BadFileError
from pyramidvit.types import Table

_SMALL, _LARGE = 32**2, 96**2
"""COCO's limits of area between small, medium and large objects, in pixels of the original."""
_MOSTLY, _NEARLY_ALL = 0.5, 0.95
Progress = Callable[[int, int], None] | None


def check_box_data(
    data: BoxData,
    options: ReadOptions,
    *,
    view: DenseConfig | None = None,
    anchors: Anchors | None = None,
    workers: int | None = None,
    on_progress: Progress = None,
) -> CheckReport:
    """Look over annotated objects and their pictures; ``data`` read with ``strict=False`` reports what would be refused.

    ``view`` and ``anchors`` are those of the training, to see whether the anchors reach the objects (published defaults if not given).
    """
    wrong: list[tuple[str, str]] = []
    items = [(split, item) for split, items in data.splits.items() for item in items]

    def on_file(number: int, facts: Facts) -> None:
        if facts.more:
            wrong.append((items[number][1].path.relative_to(data.root).as_posix(), facts.more))

    entries = [Entry(split, item.path, item.digest(), _size_check(item)) for split, item in items]
    tally = examine_files(entries, data.root, options, workers=workers, on_file=on_file, on_progress=on_progress)
    counts = {split: _counts(data.classes, [item.labels for item in items]) for split, items in data.splits.items()}
    fit = fit_anchors(_boxes_in_view(data.splits["train"], view or DenseConfig()), anchors or Anchors())
    classes = class_findings(counts, "objects", drawn=data.made_split)
    findings = [*data.findings, *split_findings(data.splits), *classes, *_object_findings(data), *_anchors(fit)]
    if wrong:
        text = f"{number_of(len(wrong), 'picture has', 'pictures have')} another size than the annotations say: mend them."
        findings.append(Finding("error", "other-size", text, tuple(path for path, _ in wrong), tuple(reason for _, reason in wrong)))
    findings += [*file_findings(tally, options, len(data.splits["val"])), *_unused(data.root, [item.path for _, item in items])]
    return CheckReport(
        str(data.root),
        counts,
        tally.sizes,
        dict(tally.modes.most_common()),
        most_serious_first(findings),
        "objects",
        (_sizes_table(data), *([_anchor_table(fit)] if fit else [])),
        {"format": data.format, "anchors": _anchors_json(fit)},
    )


def check_mask_data(data: MaskData, options: ReadOptions, *, workers: int | None = None, on_progress: Progress = None) -> CheckReport:
    """Look over pictures and their label maps; counts are pictures that show a class. Every mask is read once."""
    wrong: list[tuple[str, str]] = []
    pixels = {split: np.zeros(IGNORE + 1, np.int64) for split in data.splits}
    shown = {split: np.zeros(IGNORE + 1, np.int64) for split in data.splits}
    unlabelled: list[str] = []
    items = [(split, item) for split, items in data.splits.items() for item in items]

    def on_file(number: int, facts: Facts) -> None:
        split, item = items[number]
        path = item.mask.relative_to(data.root).as_posix()
        if isinstance(facts.more, str):
            wrong.append((path, facts.more))
        elif facts.more is not None:
            pixels[split] += facts.more
            shown[split] += facts.more > 0
            if not facts.more[:IGNORE].any():
                unlabelled.append(path)

    entries = [Entry(split, item.path, more=_mask_check(item)) for split, item in items]
    tally = examine_files(entries, data.root, options, workers=workers, on_file=on_file, on_progress=on_progress)
    counts = {split: {name: int(n[k]) for k, name in enumerate(data.classes)} for split, n in shown.items()}
    classes = class_findings(counts, drawn=data.made_split)
    findings = [*data.findings, *split_findings(data.splits), *classes, *_ignored_pixels(pixels, unlabelled)]
    if wrong:
        text = f"{number_of(len(wrong), 'mask', 'masks')} can't be used and would stop the training: mend or remove."
        findings.append(Finding("error", "bad-mask", text, tuple(path for path, _ in wrong), tuple(reason for _, reason in wrong)))
    files = [path for _, item in items for path in (item.path, item.mask)]
    findings += [*file_findings(tally, options, len(data.splits["val"])), *_unused(data.root, files)]
    table = _shares_table(data.classes, pixels)
    modes = dict(tally.modes.most_common())
    return CheckReport(str(data.root), counts, tally.sizes, modes, most_serious_first(findings), "pictures showing class", (table,))


def _size_check(item: BoxItem) -> Callable[[ImageInfo], str | None]:
    def check(info: ImageInfo) -> str | None:
        try:
            turn_between(item.path, item.size, (info.height, info.width))
        except BadFileError as error:
            return error.reason
        return None

    return check


def _mask_check(item: MaskItem) -> Callable[[ImageInfo], np.ndarray | str]:
    """Pixels of each value, or what is wrong."""

    def check(info: ImageInfo) -> np.ndarray | str:
        try:
            labels = item.target((info.height, info.width)).labels
        except BadFileError as error:
            return error.reason
        return np.bincount(labels.numpy().reshape(-1), minlength=IGNORE + 1)

    return check


def _counts(classes: tuple[str, ...], labels: list[np.ndarray]) -> dict[str, int]:
    number = Counter(int(label) for one in labels for label in one)
    return {name: number[index] for index, name in enumerate(classes)}


def _object_findings(data: BoxData) -> Iterator[Finding]:
    for split, items in data.splits.items():
        if split == "val" and items and not has_objects(items):
            text = f"no single object in the {len(items)} pictures of val, so there is no AP to measure and the last weights are kept."
            yield Finding("warning", "unmeasurable", text + " Add pictures with objects.")
        empty = tuple(item.path.relative_to(data.root).as_posix() for item in items if len(item.labels) == 0)
        if empty:
            level: Level = "warning" if len(empty) > len(items) / 2 else "note"
            text = f"{len(empty)} of {len(items)} pictures of {split} without objects, which teach what to leave alone."
            yield Finding(level, "empty-pictures", text, empty)
    crowds = sum(int(item.crowd.sum()) for items in data.splits.values() for item in items)
    if crowds:
        yield Finding("note", "crowds", f"{number_of(crowds, 'crowd', 'crowds')}, neither learned nor counted as missed.")


def _boxes_in_view(items: tuple[BoxItem, ...], view: DenseConfig) -> np.ndarray:
    """Boxes (N, 4) of single objects, in pixels of the network's input."""
    boxes: list[np.ndarray] = []
    for item in items:
        if item.size is not None:
            size = view.input_size if view.resize == "fixed" else kept_size(item.size, view.short, view.long)
            y, x = size[0] / item.size[0], size[1] / item.size[1]
            boxes.append(item.boxes[~item.crowd] * (x, y, x, y))
    return np.concatenate(boxes) if boxes else np.zeros((0, 4))


def _anchors(fit: AnchorFit | None) -> Iterator[Finding]:
    if fit is None or (fit.proposed == fit.present and fit.reached[0] >= 0.95):
        return
    text = f"{1 - fit.reached[0]:.0%} of the training objects overlap no anchor by half at this input size and are hardly learned"
    if fit.proposed != fit.present:
        ratios = " ".join(f"{ratio:g}" for ratio in fit.proposed.ratios)
        text += f": pass --anchor-scale {fit.proposed.scale:g} --anchor-ratios {ratios}, which leaves {1 - fit.reached[1]:.0%}"
    if fit.reached[1] < 0.95:
        text += "; a larger input would help small objects" if fit.proposed.scale < 4 else "; other strides or more octaves would help"
    yield Finding("warning" if fit.reached[0] < 0.95 else "note", "anchors", text + ".")


def _anchor_table(fit: AnchorFit) -> Table:
    rows = [
        (name, anchors.scale, ", ".join(f"{ratio:g}" for ratio in anchors.ratios), f"{reached:.1%}", mean)
        for name, anchors, reached, mean in _both(fit)
    ]
    strides = ", ".join(map(str, fit.present.strides))
    note = f"{fit.objects} training objects in pixels of the input; strides {strides}; octave steps: {fit.present.octaves}."
    columns = ("anchors", "scale", "ratios", "objects reached (IoU 0.5)", "mean best IoU")
    return Table(columns, tuple(rows if fit.proposed != fit.present else rows[:1]), note=note)


def _anchors_json(fit: AnchorFit | None) -> dict[str, object] | None:
    if fit is None:
        return None
    return {name: anchors.to_json() | {"reached": reached, "mean_iou": mean} for name, anchors, reached, mean in _both(fit)}


def _both(fit: AnchorFit) -> list[tuple[str, Anchors, float, float]]:
    return [("present", fit.present, fit.reached[0], fit.mean_iou[0]), ("proposed", fit.proposed, fit.reached[1], fit.mean_iou[1])]


def _sizes_table(data: BoxData) -> Table:
    """Sides of objects, as the square root of their areas in pixels of the original, and COCO's three sizes."""
    items = [item for items in data.splits.values() for item in items]
    labels = np.concatenate([np.empty(0, np.int64), *(item.labels for item in items)])
    areas = np.concatenate([np.empty(0, np.float32), *(item.areas for item in items)])
    rows: list[tuple[str | int, ...]] = []
    common = Counter(labels.tolist()).most_common(12)
    for name, chosen in [("all", areas), *((data.classes[index], areas[labels == index]) for index, _ in common)]:
        if len(chosen):
            sides = np.sqrt(chosen)
            split = (int((chosen < _SMALL).sum()), int(((chosen >= _SMALL) & (chosen < _LARGE)).sum()), int((chosen >= _LARGE).sum()))
            rows.append((name, round(float(sides.min())), round(float(np.median(sides))), round(float(sides.max())), *split))
    return Table(("side of objects", "smallest", "median", "largest", "small", "medium", "large"), tuple(rows))


def _shares_table(classes: tuple[str, ...], pixels: Mapping[str, np.ndarray]) -> Table:
    """Shares of labelled pixels; that of ignored ones of all."""
    rows: list[tuple[str, ...]] = []
    labelled = {split: max(int(counts[:IGNORE].sum()), 1) for split, counts in pixels.items()}
    order = sorted(range(len(classes)), key=lambda index: -int(pixels["train"][index]))
    for index in order[:12]:
        rows.append((classes[index], *(f"{counts[index] / labelled[split]:.2%}" for split, counts in pixels.items())))
    rows.append(("ignored (of all)", *(f"{counts[IGNORE] / max(int(counts.sum()), 1):.2%}" for counts in pixels.values())))
    return Table(("pixels of class", *pixels), tuple(rows))


def _ignored_pixels(pixels: Mapping[str, np.ndarray], unlabelled: list[str]) -> Iterator[Finding]:
    counts = sum(pixels.values(), np.zeros(IGNORE + 1, np.int64))
    share = int(counts[IGNORE]) / max(int(counts.sum()), 1)
    if share > _MOSTLY:
        level: Level = "error" if share > _NEARLY_ALL else "warning"
        text = f"{share:.0%} of all pixels are {IGNORE}, which means ignored; if it is a class, pass --mask-map {IGNORE}:<its number>."
        yield Finding(level, "mostly-ignored", text)
    if unlabelled:
        yield Finding("note", "unlabelled", f"{number_of(len(unlabelled), 'mask', 'masks')} with no label at all.", tuple(unlabelled))


def _unused(root: Path, used: list[Path]) -> Iterator[Finding]:
    """Pictures that lie among the others and are not in the data."""
    known = set(used)
    folders = sorted({path.parent for path in used})
    unused = [path for folder in folders if folder.is_dir() for path in sorted(folder.iterdir()) if path not in known]
    names = tuple(path.relative_to(root).as_posix() for path in unused if path.suffix.lower() in SUFFIXES)
    if names:
        yield Finding(
            "note", "unused-pictures", f"{number_of(len(names), 'picture', 'pictures')} among the others, but in no split.", names
        )
