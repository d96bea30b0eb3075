"""Pictures with boxes or label maps → the network's input, truth and picture kept aligned.

Training: the picture and its truth are resized, cropped and flipped alike, colours are distorted, and the target is in pixels of the
input. Evaluation: only the picture is resized; the target stays in pixels of the original, where predictions are compared with it.
The recipes are those of the published PVT detectors and segmentors. Random numbers come from torch's global generator, which the loader
seeds for each picture. Shapes: N objects, C channels, H W pixels; images are (C, H, W), uint8 0..255 or float32 0..1 until normalised.
"""

from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn
from torchvision.transforms import v2
from torchvision.transforms.v2 import functional as F

from pyramidvit.config import DenseConfig
from pyramidvit.data.dense_targets import (
    Size,
    crop_target,
    flip_target,
    one_class_rules,
    pad_target,
    present,
    resize_target,
)
from pyramidvit.data.transforms import Transform, checked, normalize
from pyramidvit.types import Preprocess, Sample, Target

_SHORTEST = 32
"""Of an input's side: thin pictures are stretched to it, since the coarsest map needs a cell."""
_CROP_TRIES = 10


def train_transform(augment: DenseConfig, preprocess: Preprocess) -> Transform:
    """A random view, float32, normalised; its target (BoxTarget or MaskTarget) in pixels of the view."""
    return _TrainTransform(augment, preprocess)


def eval_transform(augment: DenseConfig, preprocess: Preprocess) -> Transform:
    """The whole picture, resized, float32, normalised; the target stays in pixels of the original."""
    return _EvalTransform(augment, preprocess)


@dataclass(frozen=True)
class _TrainTransform:
    augment: DenseConfig
    preprocess: Preprocess

    def __call__(self, sample: Sample) -> Sample:
        augment = self.augment
        view = _View(checked(sample, self.preprocess), sample.target, augment)
        if augment.crop_first > 0 and torch.rand(()) < augment.crop_first:
            view = view.resized(kept_size(view.size, _choose(augment.crop_shorts), None))
            view = view.cropped([_between(*(min(side, limit) for limit in augment.crop_sides)) for side in view.size])
        view = view.resized(self._size(view.size))
        if augment.random_crop is not None:
            view = self._crop(view, augment.random_crop)
        for probability, axis in ((augment.flip_x, -1), (augment.flip_y, -2)):
            if torch.rand(()) < probability:
                view = view.flipped(axis)
        image = distort(view.image) if augment.distort else view.image
        image = normalize(image, self.preprocess)
        target = present(view.target)
        if augment.random_crop is not None:
            image, target = _pad(image, target, augment.random_crop)
        return replace(sample, image=image, target=target)

    def _size(self, size: Size) -> Size:
        augment = self.augment
        low, high = augment.scale
        factor = low + (high - low) * float(torch.rand(())) if low < high else low
        if augment.resize == "fixed":
            return _at_least(augment.input_size[0] * factor), _at_least(augment.input_size[1] * factor)
        short = _choose(augment.shorts) if augment.shorts else augment.short
        return kept_size(size, short * factor, augment.long * factor)

    def _crop(self, view: "_View", size: Size) -> "_View":
        cropped = view.cropped(size)
        for _ in range(_CROP_TRIES - 1):
            if self.augment.most_of_one >= 1 or not one_class_rules(cropped.target, self.augment.most_of_one):
                break
            cropped = view.cropped(size)
        return cropped


@dataclass(frozen=True)
class _EvalTransform:
    augment: DenseConfig
    preprocess: Preprocess

    def __call__(self, sample: Sample) -> Sample:
        augment = self.augment
        image = checked(sample, self.preprocess)
        height, width = image.shape[-2:]
        size = augment.input_size if augment.resize == "fixed" else kept_size((height, width), augment.short, augment.long)
        size = (-(-size[0] // augment.multiple) * augment.multiple, -(-size[1] // augment.multiple) * augment.multiple)
        return replace(sample, image=normalize(_resize(image, size, augment), self.preprocess))


@dataclass(frozen=True)
class _View:
    """A picture and its truth on the way; all steps treat both alike."""

    image: Tensor
    target: Target | None
    augment: DenseConfig

    @property
    def size(self) -> Size:
        return self.image.shape[-2], self.image.shape[-1]

    def resized(self, size: Size) -> "_View":
        if size == self.size:
            return self
        return replace(self, image=_resize(self.image, size, self.augment), target=resize_target(self.target, self.size, size))

    def cropped(self, size: "Size | list[int]") -> "_View":
        """A random place; sides that are smaller stay as they are."""
        height, width = (min(side, wanted) for side, wanted in zip(self.size, size, strict=True))
        top, left = _between(0, self.size[0] - height), _between(0, self.size[1] - width)
        image = self.image[..., top : top + height, left : left + width]
        return replace(self, image=image, target=crop_target(self.target, top, left, (height, width)))

    def flipped(self, axis: int) -> "_View":
        return replace(self, image=self.image.flip(axis), target=flip_target(self.target, axis, self.size))


def kept_size(size: Size, short: float, long: float | None) -> Size:
    """(height, width) of the same shape, as large as ``short`` and ``long`` allow; each side rounded to the nearest, 32 at least."""
    factor = short / min(size)
    if long is not None:
        factor = min(factor, long / max(size))
    return _at_least(size[0] * factor), _at_least(size[1] * factor)


def distort(image: Tensor) -> Tensor:
    """Brightness ±1/8 of the range, contrast and saturation by 0.5 to 1.5, hue ±18 degrees, each with probability one half.

    Contrast comes before or after the colours, by chance. Pictures that are not RGB keep saturation and hue.
    """
    white = 255.0 if image.dtype == torch.uint8 else 1.0
    dtype, image = image.dtype, image.float() / white
    if torch.rand(()) < 0.5:
        image = (image + (float(torch.rand(())) - 0.5) / 4).clamp_(0, 1)
    contrast_first, with_contrast, factor = torch.rand(()) < 0.5, torch.rand(()) < 0.5, 0.5 + float(torch.rand(()))
    if with_contrast and contrast_first:
        image = (image * factor).clamp_(0, 1)
    if image.shape[0] == 3:
        if torch.rand(()) < 0.5:
            image = F.adjust_saturation(image, 0.5 + float(torch.rand(())))
        if torch.rand(()) < 0.5:
            image = F.adjust_hue(image, (float(torch.rand(())) - 0.5) / 10)
    if with_contrast and not contrast_first:
        image = (image * factor).clamp_(0, 1)
    return (image * white).round().to(dtype) if dtype == torch.uint8 else image


def _pad(image: Tensor, target: Target | None, size: Size) -> tuple[Tensor, Target | None]:
    """Zeros on the right and below of a normalised picture."""
    margins = (0, max(size[1] - image.shape[-1], 0), 0, max(size[0] - image.shape[-2], 0))
    if not any(margins):
        return image, target
    return nn.functional.pad(image, margins), pad_target(target, margins)


def _resize(image: Tensor, size: Size, augment: DenseConfig) -> Tensor:
    if (image.shape[-2], image.shape[-1]) == size:
        return image
    image = F.resize(image, list(size), interpolation=v2.InterpolationMode(augment.resampling), antialias=augment.antialias)
    return image if image.dtype == torch.uint8 else image.clamp_(0, 1)


def _at_least(side: float) -> int:
    return max(int(side + 0.5), _SHORTEST)


def _between(low: int, high: int) -> int:
    """A whole number from ``low`` to ``high``, both included."""
    return low + int(torch.randint(high - low + 1, ()))


def _choose(sides: tuple[int, ...]) -> int:
    return sides[int(torch.randint(len(sides), ()))]
