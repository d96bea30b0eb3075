"""Pictures with annotated objects → class names and items per split, whatever the format of the annotations.

Formats, told by content, the first that is found: COCO json, VIA json, YOLO text, VOC xml, one mask picture per object. The readers give
what the files say; here it becomes valid. Classes are matched by name, never by the number they have in a file; those of the training
split, in the order in which it declares them, hold in every split. Data without a val split gets one, drawn from seed and names alone.
Shapes: N objects. Boxes are xyxy in absolute pixels, right and lower edges exclusive.

What becomes of a box that is wrong, by ``on_bad_box``. Less than a pixel beyond the border is rounding, always cut off.

| box                                     | error   | fix                | drop |
|-----------------------------------------|---------|--------------------|------|
| right of left or top of bottom exchanged| refused | exchanged back     | out  |
| reaches out of the picture              | refused | cut at the border  | out  |
| wholly outside, or without area         | refused | out                | out  |
| absent, or of a mask without a pixel    | refused | out                | out  |
| mask unusable or absent, but needed     | refused | out                | out  |
| not finite                              | refused | refused            | out  |

A picture that a split names twice is refused, whatever ``on_bad_box`` says: its objects may stand there once or twice.
"""

import hashlib
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import zip_longest
from pathlib import Path
from typing import Any, Literal

from pyramidvit.data.annotations import RawData, RawSplit, drawn_order, share_of
from pyramidvit.data.box_items import BoxItem, Cleaner
from pyramidvit.data.coco import read_coco
from pyramidvit.data.findings import Finding, Level, number_of
from pyramidvit.data.listing import did_you_mean, inside, relative
from pyramidvit.data.object_masks import read_object_masks
from pyramidvit.data.via import read_via
from pyramidvit.data.voc import read_voc
from pyramidvit.data.yolo import read_yolo
from pyramidvit.errors import UserError

OnBadBox = Literal["error", "fix", "drop"]


@dataclass(frozen=True)
class BoxData:
    """Pictures with objects. ``splits`` has "train" and "val", each maybe empty; ``findings`` are what reading brought up.

    ``ids`` are the numbers of the classes in the source, for results in its terms; ``source`` says how to read the same data again.
    """

    root: Path
    classes: tuple[str, ...]
    splits: Mapping[str, tuple[BoxItem, ...]]
    format: str
    made_split: bool = False
    findings: tuple[Finding, ...] = ()
    ids: Mapping[str, int | str] = field(default_factory=dict)
    source: Mapping[str, Any] = field(default_factory=dict)

    @property
    def fingerprint(self) -> str:
        """Of names, sizes and annotations."""
        return box_fingerprint(self)

    @property
    def remarks(self) -> tuple[str, ...]:
        """What reading brought up."""
        return tuple(finding.message for finding in self.findings)

    def to_json(self) -> dict[str, Any]:
        """Plain data: which pictures are in which split, and where the annotations are; ``root`` is the one absolute path."""
        splits = {split: [relative(item.path, self.root) for item in items] for split, items in self.splits.items()}
        root, classes = str(self.root.absolute()), [*self.classes]
        return {"root": root, "classes": classes, "splits": splits, "made_split": self.made_split, "source": {**self.source}}

    @classmethod
    def from_json(cls, content: Mapping[str, Any], root: Path | None = None) -> "BoxData":
        """The data that ``to_json`` described, its annotations read again; ``root`` is where it is now, if it has moved."""
        try:
            base = Path(content["root"]) if root is None else root
            source, classes = dict(content["source"]), [str(name) for name in content["classes"]]
            saved = {split: [base / inside(path, "the saved split") for path in content["splits"][split]] for split in ("train", "val")}
            file, made_split = source.pop("file"), bool(content["made_split"])
            place = base if file is None else base / inside(file, "the saved split")
        except (KeyError, TypeError, ValueError) as error:
            raise UserError(f"The saved split is not one that we wrote ({type(error).__name__}: {error}); start a new run.") from error
        data = read_box_data(place, classes=classes, **source)
        items = {item.path: item for split in data.splits.values() for item in split}
        if lost := [path for paths in saved.values() for path in paths if path not in items]:
            raise UserError(
                f"{number_of(len(lost), 'picture', 'pictures')} of the saved split are not in {base} any more, such as {lost[0]}."
            )
        splits = {split: tuple(items[path] for path in paths) for split, paths in saved.items()}
        return cls(data.root, data.classes, splits, data.format, made_split, data.findings, data.ids, data.source)


def read_box_data(
    root: str | Path,
    *,
    val_share: float = 0.2,
    seed: int = 0,
    classes: Sequence[str] | None = None,
    masks: bool = False,
    on_bad_box: OnBadBox = "error",
    strict: bool = True,
) -> BoxData:
    """Find format, classes and splits of a folder, or of one annotation file.

    With ``masks``, every object needs an outline, and items carry it. The class list is ``classes``, or that of the training split; a
    class that it lacks is a UserError. What would make training wrong is a UserError too, or with ``strict=False``, for a check, an
    error among the findings, with boxes as after "fix".
    """
    given = Path(root)
    raw = _read(given)
    for split in raw.splits.values():
        if not split.pictures:
            if errors := [one for one in raw.findings if one.level == "error"]:
                raise UserError(_refusal(given, errors))
            raise UserError(f"The {raw.format} annotations of {given} name no pictures in one of their splits; remove that split.")
    first = raw.splits.get("train") or raw.splits.get("all") or raw.splits["val"]
    names = tuple(classes) if classes is not None else _classes_of(first)
    for name, split in raw.splits.items():
        _refuse_unknown(name, split, names, given)
    index = {name: number for number, name in enumerate(names)}
    cleaner = Cleaner(raw.root, index, masks, "drop" if on_bad_box == "drop" else "fix")
    splits = {name: tuple(cleaner.item(picture) for picture in split.pictures) for name, split in raw.splits.items()}
    learned = splits.get("train", splits.get("all", ())) if classes is None else ()
    twice = [finding for name, split in raw.splits.items() for finding in _named_twice(name, split, raw.root)]
    findings = (*raw.findings, *twice, *_flaw_findings(cleaner, on_bad_box), *_nothing_to_learn(learned))
    if strict and (errors := [one for one in findings if one.level == "error"]):
        raise UserError(_refusal(given, errors))
    file = relative(given, raw.root) if given.is_file() else None
    source = {"file": file, "val_share": val_share, "seed": seed, "masks": masks, "on_bad_box": on_bad_box}
    made_split = "val" not in splits
    both = _split(splits.get("all", splits.get("train", ())), raw.root, val_share, seed) if made_split else splits
    return BoxData(raw.root, names, {"train": (), **both}, raw.format, made_split, findings, dict(first.ids), source)


def box_fingerprint(data: BoxData) -> str:
    """SHA-256 over relative paths, sizes of the files in bytes (-1 for what can't be read), class names and all annotations."""
    lines: list[bytes] = []
    for item in (item for items in data.splits.values() for item in items):
        try:
            size = item.path.stat().st_size
        except OSError:
            size = -1
        names = "\t".join(data.classes[label] for label in item.labels)
        head = f"{relative(item.path, data.root)}\t{size}\t{names}\n".encode("utf-8", "surrogateescape")
        lines.append(head + item.digest())
    return hashlib.sha256(b"".join(sorted(lines))).hexdigest()


def find_annotations(root: Path) -> RawData | None:
    """What the annotations in a folder say, in the first format that is found; None when there are none."""
    for reader in (read_coco, read_via, read_yolo, read_voc, read_object_masks):
        if (data := reader(root)) is not None:
            return data
    return None


def _read(given: Path) -> RawData:
    if given.is_dir():
        if (found := find_annotations(given)) is not None:
            return found
        raise UserError(
            f"No annotated objects in {given}: expected COCO or VIA json, a YOLO data.yaml with images/ and labels/, VOC Annotations/ with "
            "JPEGImages/, or images/ with one mask picture per object in masks/<name>/."
        )
    if not given.is_file():
        raise UserError(f"There is no folder or file {given}.{did_you_mean(given.name, (path.name for path in given.parent.glob('*')))}")
    root = given.parent.parent if given.parent.name.lower() == "annotations" else given.parent
    readers = {".json": (read_coco, read_via), ".yaml": (read_yolo,), ".yml": (read_yolo,)}.get(given.suffix.lower(), ())
    for reader in readers:
        if (data := reader(root, given)) is not None:
            return data
    raise UserError(f"{given} holds no annotated objects: expected a COCO or VIA json or a YOLO data.yaml, or give the folder of the data.")


def _classes_of(split: RawSplit) -> tuple[str, ...]:
    return split.classes or tuple(sorted({one.name for picture in split.pictures for one in picture.objects}))


def _refuse_unknown(name: str, split: RawSplit, classes: tuple[str, ...], root: Path) -> None:
    known = set(classes)
    unknown = Counter(one.name for picture in split.pictures for one in picture.objects if one.name not in known)
    if unknown:
        what = ", ".join(f"{label!r} ({count} objects)" for label, count in unknown.most_common(5))
        hint = did_you_mean(next(iter(unknown)), classes)
        some = ", ".join(classes[:10]) + (" …" if len(classes) > 10 else "")
        raise UserError(
            f"The {name} split of {root} has {len(unknown)} classes that the class list does not have: {what}.{hint} "
            f"Known are {len(classes)} classes: {some}. Rename or remove the others, or add training pictures of them."
        )
    if not classes:
        raise UserError(f"{root} has pictures, but not one object in its {name} split, so there is nothing to learn.")


def has_objects(items: Sequence[BoxItem]) -> bool:
    """Whether there is anything to find; crowds are not."""
    return any(not item.crowd.all() for item in items)


def _nothing_to_learn(items: Sequence[BoxItem]) -> Iterator[Finding]:
    if items and not has_objects(items):
        text = f"no single object in the {number_of(len(items), 'picture', 'pictures')} of train, so nothing can be learned."
        yield Finding("error", "no-objects", text)


def _named_twice(name: str, split: RawSplit, root: Path) -> Iterator[Finding]:
    ids: dict[Path, list[str]] = defaultdict(list)
    for picture in split.pictures:
        ids[picture.path].append(repr(picture.id))
    twice = {relative(path, root): f"under the ids {', '.join(known)}" for path, known in ids.items() if len(known) > 1}
    if twice:
        text = f"{number_of(len(twice), 'picture is', 'pictures are')} named more than once in {name}: name each once, with all objects."
        yield Finding("error", "named-twice", text, tuple(twice), tuple(twice.values()))


def _split(items: tuple[BoxItem, ...], root: Path, val_share: float, seed: int) -> dict[str, tuple[BoxItem, ...]]:
    """Hold out a share of the pictures with objects, and of those without; never the last training picture of a class, if it can be."""
    by_path = {item.path: item for item in items}
    left = Counter(label for item in items for label in set(item.labels.tolist()))
    held: set[Path] = set()
    for filled in (True, False):
        group = drawn_order([item.path for item in items if bool(len(item.labels)) is filled], root, seed)
        wanted = len(held) + share_of(len(group), val_share) if group else 0
        spare = [path for path in group if all(left[label] > 1 for label in by_path[path].labels.tolist())] or group
        for path in spare:
            labels = set(by_path[path].labels.tolist())
            if len(held) < wanted and (spare is group or all(left[label] > 1 for label in labels)):
                held.add(path)
                left.subtract(labels)
    return {"train": tuple(item for item in items if item.path not in held), "val": tuple(item for item in items if item.path in held)}


def _flaw_findings(cleaner: Cleaner, on_bad_box: OnBadBox) -> list[Finding]:
    """One for each kind of flaw, with what was done."""
    done = {"error": "would be", "fix": "was", "drop": "was"}[on_bad_box]
    findings: list[Finding] = []
    for kind, places in cleaner.flaws.items():
        text, remedy = cleaner.kinds[kind]
        refused = on_bad_box == "error" or (on_bad_box == "fix" and kind == "not-finite")
        level: Level = "error" if refused else "warning"
        action = "left out" if on_bad_box == "drop" else remedy
        advice = "mend them, or drop them with --on-bad-box drop" if kind == "not-finite" else "mend them, or pass --on-bad-box fix or drop"
        outcome = (
            f"{advice} (with fix, each {done} {action})"
            if refused and kind != "not-finite"
            else advice
            if refused
            else f"each {done} {action}"
        )
        message = f"{number_of(len(places), 'object', 'objects')} {text}: {outcome}."
        findings.append(Finding(level, f"box-{kind}", message, tuple(path for path, _ in places), tuple(reason for _, reason in places)))
    return findings


def _refusal(root: Path, errors: list[Finding]) -> str:
    lines = [f"The annotations of {root} would make training wrong:"]
    for finding in errors:
        lines.append(f"  {finding.message}")
        places = zip_longest(finding.paths[:3], finding.details[: min(len(finding.paths), 3)])
        lines += [f"    {path}: {reason}" if reason else f"    {path}" for path, reason in places]
    return "\n".join(lines)
