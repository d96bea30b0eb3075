"""Typed values that cross file boundaries; valid by construction, the empty case included.

Shapes: B batch, C channels, H W pixels, K classes, N objects.
Pixels: picture coordinates are absolute pixels of the upright original file, x to the right, y down.
"""

from dataclasses import dataclass, field, replace
from math import inf, isfinite
from typing import Any, Literal

import torch
from torch import Tensor

from pyramidvit.errors import UserError

Interpolation = Literal["bilinear", "bicubic"]


@dataclass(frozen=True)
class Preprocess:
    """How a decoded picture becomes the network's input; travels inside every weights file.

    ``size`` is (height, width) of the input. ``crop`` is the share of the resized picture that the centre crop keeps: 0.875 means
    resize the short side to size / 0.875, then crop. ``mean`` and ``std`` are per channel, on values from 0 to 1; their number is the
    number of channels. ``value_range`` is what maps to 0 and 1 in pictures deeper than 8 bits (None: the full range of the file's type).
    """

    size: tuple[int, int] = (224, 224)
    crop: float = 0.875
    interpolation: Interpolation = "bicubic"
    mean: tuple[float, ...] = (0.485, 0.456, 0.406)
    std: tuple[float, ...] = (0.229, 0.224, 0.225)
    value_range: tuple[float, float] | None = None

    def __post_init__(self) -> None:
        if len(self.mean) != len(self.std):
            raise UserError(f"mean has {len(self.mean)} values and std has {len(self.std)}; both need one value per channel.")
        if not self.mean or not all(map(isfinite, self.mean)):
            raise UserError(f"mean needs a finite number for every channel, got {self.mean}.")
        if not all(isfinite(value) and value > 0 for value in self.std):
            raise UserError(f"std needs a finite number above 0 for every channel, got {self.std}.")
        if min(self.size) < 32:
            raise UserError(f"Input size {self.size[0]}x{self.size[1]} is too small: height and width must be at least 32.")
        if not 0 < self.crop <= 1:
            raise UserError(f"crop is the share of the picture that is kept, above 0 and at most 1; got {self.crop}.")
        if self.value_range is not None and not -inf < self.value_range[0] < self.value_range[1] < inf:
            raise UserError(f"value_range needs two finite numbers, the first below the second; got {self.value_range}.")

    @property
    def in_chans(self) -> int:
        return len(self.mean)

    @classmethod
    def for_channels(cls, in_chans: int, **settings: Any) -> "Preprocess":
        """ImageNet statistics for 3 channels, their averages for any other number."""
        defaults = cls()
        if in_chans != 3:
            mean, std = sum(defaults.mean) / 3, sum(defaults.std) / 3
            settings = {"mean": (mean,) * in_chans, "std": (std,) * in_chans} | settings
        return replace(defaults, **settings)


@dataclass(frozen=True)
class ClassTarget:
    """One class of a picture; after mixing, ``label`` holds ``share`` of the truth and ``other`` the rest."""

    label: int
    other: int | None = None
    share: float = 1.0

    def __post_init__(self) -> None:
        if self.label < 0 or not 0 <= self.share <= 1:
            raise ValueError(f"A class target needs label >= 0 and 0 <= share <= 1, got label {self.label} and share {self.share}.")


@dataclass(frozen=True)
class MaskTarget:
    """Class of every pixel: ``labels`` (H, W) uint8 or int64, 255 = ignore."""

    labels: Tensor

    def __post_init__(self) -> None:
        if self.labels.ndim != 2:
            raise ValueError(f"A semantic mask is (H, W), got {tuple(self.labels.shape)}.")


@dataclass(frozen=True)
class Rle:
    """A mask as COCO's compressed run lengths: column by column, zeros first. ``size`` is (height, width)."""

    size: tuple[int, int]
    counts: bytes


@dataclass(frozen=True)
class BoxTarget:
    """Objects of a picture: ``boxes`` (N, 4) float32 xyxy pixels, ``labels`` (N,) int64, ``masks`` (N, H, W) bool or None.

    ``crowd`` (N,) bool marks regions of many objects, which are neither learned nor counted as missed (None: there are none). ``areas``
    (N,) float32 are in pixels, as annotated, for metrics by size (None: those of the masks or boxes).
    """

    boxes: Tensor
    labels: Tensor
    masks: Tensor | None = None
    crowd: Tensor | None = None
    areas: Tensor | None = None

    def __post_init__(self) -> None:
        N = len(self.labels)
        if self.boxes.shape != (N, 4) or (self.masks is not None and (self.masks.ndim != 3 or len(self.masks) != N)):
            masks = None if self.masks is None else tuple(self.masks.shape)
            raise ValueError(
                f"{N} labels need boxes ({N}, 4) and masks ({N}, H, W), got boxes {tuple(self.boxes.shape)} and masks {masks}."
            )
        for name, values in (("crowd", self.crowd), ("areas", self.areas)):
            if values is not None and values.shape != (N,):
                raise ValueError(f"{N} labels need as many values of {name}, got {tuple(values.shape)}.")


Target = ClassTarget | MaskTarget | BoxTarget


@dataclass(frozen=True)
class Sample:
    """One picture with its truth. ``image`` (C, H, W): uint8 0..255, or float32 0..1 (before normalisation).

    Clips are (C, T, H, W). ``size`` is (height, width) of the upright original; ``path`` names the file in messages.
    """

    image: Tensor
    target: Target | None
    path: str
    size: tuple[int, int]


@dataclass(frozen=True)
class BadSample:
    """A file that could not be used, in the place of its sample; it is counted and logged, never replaced by another one."""

    path: str
    reason: str


@dataclass(frozen=True)
class Batch:
    """Pictures (B, C, H, W) or clips (B, C, T, H, W) of one step, float32, normalised; B may be 0 when every file was bad.

    ``targets``, ``paths``, ``sizes`` and ``valid`` have B entries: ``sizes`` are (height, width) of the upright originals, ``valid`` those
    of the part of each image that is picture; below and to the right of it are zeros that make all equally large. ``skipped`` names what
    was left out under ``--on-bad-sample skip``.
    """

    images: Tensor
    targets: tuple[Target | None, ...]
    paths: tuple[str, ...]
    sizes: tuple[tuple[int, int], ...]
    valid: tuple[tuple[int, int], ...]
    skipped: tuple[BadSample, ...] = ()

    def __post_init__(self) -> None:
        counts = {len(self.images), len(self.targets), len(self.paths), len(self.sizes), len(self.valid)}
        if len(counts) != 1:
            raise ValueError(f"images, targets, paths, sizes and valid of a batch must be equally many, got {sorted(counts)}.")

    def __len__(self) -> int:
        return len(self.paths)

    def to(self, device: torch.device) -> "Batch":
        return replace(self, images=self.images.to(device, non_blocking=True))


@dataclass(frozen=True)
class ClassScores:
    """Prediction for one picture: ``probabilities`` (K,) float32 on the CPU, sum 1, in the order of ``classes``."""

    path: str
    classes: tuple[str, ...]
    probabilities: Tensor = field(repr=False)

    def __post_init__(self) -> None:
        if self.probabilities.shape != (len(self.classes),):
            raise ValueError(f"{len(self.classes)} classes need as many probabilities, got {tuple(self.probabilities.shape)}.")

    @property
    def label(self) -> int:
        return int(self.probabilities.argmax())

    def top(self, k: int = 5) -> list[tuple[str, float]]:
        """The k best classes (fewer if there are fewer), best first, as (name, probability)."""
        values, order = self.probabilities.topk(min(k, len(self.classes)))
        return [(self.classes[int(i)], float(p)) for i, p in zip(order, values, strict=True)]

    def to_json(self, k: int = 5) -> dict[str, Any]:
        return {"path": self.path, "top": [{"class": name, "probability": round(p, 6)} for name, p in self.top(k)]}


@dataclass(frozen=True)
class SegMap:
    """Class of every pixel of one picture: ``labels`` (H, W) uint8 (int64 for more than 255 classes), at the size of the original."""

    path: str
    classes: tuple[str, ...]
    labels: Tensor = field(repr=False)

    def __post_init__(self) -> None:
        if self.labels.ndim != 2:
            raise ValueError(f"A label map is (H, W), got {tuple(self.labels.shape)}.")

    def shares(self) -> dict[str, float]:
        """Share of the picture that each class covers; classes that are absent are left out."""
        shares = torch.bincount(self.labels.flatten().long(), minlength=len(self.classes)) / max(self.labels.numel(), 1)
        return {name: float(share) for name, share in zip(self.classes, shares, strict=False) if share > 0}

    def to_json(self) -> dict[str, Any]:
        return {"path": self.path, "size": list(self.labels.shape), "shares": {name: round(s, 6) for name, s in self.shares().items()}}


@dataclass(frozen=True)
class Detections:
    """Objects found in one picture, best first: ``boxes`` (N, 4) float32 xyxy pixels, ``labels`` (N,) int64, ``scores`` (N,) float32.

    ``size`` is (height, width) of the upright original, which boxes and ``masks`` refer to; all tensors are on the CPU.
    """

    path: str
    classes: tuple[str, ...]
    size: tuple[int, int]
    boxes: Tensor = field(repr=False)
    labels: Tensor = field(repr=False)
    scores: Tensor = field(repr=False)
    masks: tuple[Rle, ...] | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        N = len(self.scores)
        if self.boxes.shape != (N, 4) or self.labels.shape != (N,) or (self.masks is not None and len(self.masks) != N):
            raise ValueError(f"{N} scores need boxes ({N}, 4), labels ({N},) and as many masks, got boxes {tuple(self.boxes.shape)}.")

    def __len__(self) -> int:
        return len(self.scores)

    def above(self, score: float) -> "Detections":
        """Those with at least this score."""
        keep = self.scores >= score
        masks = None if self.masks is None else tuple(mask for mask, kept in zip(self.masks, keep, strict=True) if kept)
        return replace(self, boxes=self.boxes[keep], labels=self.labels[keep], scores=self.scores[keep], masks=masks)

    def to_json(self) -> dict[str, Any]:
        """Boxes as COCO writes them, (x, y, width, height), with class names instead of ids."""
        objects: list[dict[str, Any]] = []
        for index, (box, label, score) in enumerate(zip(self.boxes, self.labels, self.scores, strict=True)):
            x, y, right, bottom = map(float, box)
            sides = [round(value, 3) for value in (x, y, right - x, bottom - y)]
            entry: dict[str, Any] = {"class": self.classes[int(label)], "score": round(float(score), 6), "bbox": sides}
            if self.masks is not None:
                entry["segmentation"] = {"size": list(self.masks[index].size), "counts": self.masks[index].counts.decode("ascii")}
            objects.append(entry)
        return {"path": self.path, "size": list(self.size), "objects": objects}


Prediction = ClassScores | SegMap | Detections
"""What a task predicts for one picture."""

Cell = str | int | float | None
"""What a table holds; None is shown as a dash."""


@dataclass(frozen=True)
class Table:
    """Rows under named columns, for reports; units belong in the column's name."""

    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    title: str = ""
    note: str = ""

    def __post_init__(self) -> None:
        if wrong := [row for row in self.rows if len(row) != len(self.columns)]:
            raise ValueError(f"A table with {len(self.columns)} columns needs as many cells in each row, got {wrong[0]!r}.")


@dataclass(frozen=True)
class Picture:
    """An encoded picture for reports: the bytes of a PNG or JPEG file."""

    data: bytes = field(repr=False)
    caption: str = ""


@dataclass(frozen=True)
class Section:
    """A part of a report: text, then tables, then pictures. ``small`` pictures share rows; ``folded`` parts open on a click."""

    title: str
    text: str = ""
    tables: tuple[Table, ...] = ()
    pictures: tuple[Picture, ...] = ()
    small: bool = False
    folded: bool = False
