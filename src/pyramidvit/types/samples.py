"""What networks learn from: a file with its truth, and batches of them.

Shapes: B batch, C channels, T frames, H W pixels, N objects.
Pixels: picture coordinates are absolute pixels of the upright original file, x to the right, y down.
"""

from dataclasses import dataclass, replace
from math import inf, isfinite
from typing import Any, Literal

import numpy as np
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
class Film:
    """Frames of a clip to look at, (T, H, W, C), and their ``times`` (T,) in seconds, within its ``duration``."""

    frames: np.ndarray
    times: np.ndarray
    duration: float

    def __post_init__(self) -> None:
        if self.frames.ndim != 4 or self.times.shape != self.frames.shape[:1] or 0 in self.frames.shape:
            raise ValueError(f"A film has (T, H, W, C) frames and as many times, got {self.frames.shape} and {self.times.shape}.")


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
