"""Pictures → the network's input: augmentation for training, one fixed view for evaluation, mixing of whole batches.

The training recipe is that of DeiT and PVT: random resized crop → flips → RandAugment (rand-m9-mstd0.5-inc1) → normalise → random erasing
with noise; then mixup or CutMix on the batch. Random numbers come from torch's global generator, which the loader seeds for each picture.
Shapes: B batch, C channels, H W pixels; images are (C, H, W), uint8 0..255 or float32 0..1 until they are normalised. Any dimensions may
come before these three: what is random is drawn once for all, which is how clips pass through as (T, C, H, W).
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor
from torchvision.transforms import v2
from torchvision.transforms.v2 import functional as F

from pyramidvit.config import AugmentConfig
from pyramidvit.errors import UserError
from pyramidvit.types import Batch, ClassTarget, Preprocess, Sample

Transform = Callable[[Sample], Sample]
_LONGEST = 8
"""Evaluation cuts off, before resizing, what reaches further than this many inputs along the long side: it would be cropped away anyway."""


def train_transform(augment: AugmentConfig, preprocess: Preprocess) -> Transform:
    """A random view of (C, *preprocess.size), float32, normalised."""
    return _TrainTransform(augment, preprocess)


def eval_transform(preprocess: Preprocess) -> Transform:
    """The centre of (C, *preprocess.size), float32, normalised: the whole input covers the share ``crop`` of the resized picture."""
    return _EvalTransform(preprocess)


class _TrainTransform:
    def __init__(self, augment: AugmentConfig, preprocess: Preprocess) -> None:
        self.augment, self.preprocess = augment, preprocess
        height, width = preprocess.size
        low, high = (ratio * width / height for ratio in augment.crop_ratio)  # relative to the input, so that wide inputs get wide crops
        mode = v2.InterpolationMode(preprocess.interpolation)
        self.crop = v2.RandomResizedCrop([height, width], augment.crop_scale, (low, high), interpolation=mode)
        self.erase = v2.RandomErasing(augment.erasing, value="random")  # pyright: ignore[reportArgumentType]  "random": noise per pixel

    def __call__(self, sample: Sample) -> Sample:
        augment = self.augment
        image = self._crop(checked(sample, self.preprocess))
        if torch.rand(()) < augment.hflip:
            image = F.horizontal_flip(image)
        if torch.rand(()) < augment.vflip:
            image = F.vertical_flip(image)
        image = rand_augment(image, augment, self.preprocess.mean)
        return replace(sample, image=self.erase(normalize(image, self.preprocess)))

    def _crop(self, image: Tensor) -> Tensor:
        box = self.crop.make_params([image])
        height, width = max(box["height"], 1), max(box["width"], 1)  # thin pictures round down to nothing
        size, mode = list(self.preprocess.size), self.crop.interpolation
        return _settle(F.resized_crop(image, box["top"], box["left"], height, width, size, interpolation=mode, antialias=True))


@dataclass(frozen=True)
class _EvalTransform:
    preprocess: Preprocess

    def __call__(self, sample: Sample) -> Sample:
        preprocess = self.preprocess
        image = checked(sample, preprocess)
        height, width = preprocess.size
        target = (round(height / preprocess.crop), round(width / preprocess.crop))
        image = resize_to_cover(image, target, preprocess.interpolation)
        return replace(sample, image=normalize(F.center_crop(image, [height, width]), preprocess))


def resize_to_cover(image: Tensor, size: tuple[int, int], interpolation: str) -> Tensor:
    """Smallest picture of the same shape that covers ``size``: for square sizes, the short side becomes ``size``."""
    (height, width), (H, W) = image.shape[-2:], size
    if height * W < width * H:  # the picture is wider than the size: height decides
        width = min(width, math.ceil(_LONGEST * W * height / H))
        target = [H, max(W, H * width // height)]
    else:
        height = min(height, math.ceil(_LONGEST * H * width / W))
        target = [max(H, W * height // width), W]
    image = F.center_crop(image, [height, width])
    return _settle(F.resize(image, target, interpolation=v2.InterpolationMode(interpolation), antialias=True))


def denormalize(image: Tensor, preprocess: Preprocess) -> Tensor:
    """A normalised (C, H, W) back to uint8, to look at."""
    mean, std = (torch.tensor(values, device=image.device).view(-1, 1, 1) for values in (preprocess.mean, preprocess.std))
    return ((image.float() * std + mean) * 255).round().clamp(0, 255).to(torch.uint8)


def checked(sample: Sample, preprocess: Preprocess) -> Tensor:
    """The image, if it has as many channels as the network takes."""
    if sample.image.shape[-3] != preprocess.in_chans:
        what = f"{sample.path} has {sample.image.shape[-3]} channels, but mean and std have {preprocess.in_chans} values"
        raise UserError(f"{what}; set in_chans, mean and std to the number of bands of the pictures.")
    return sample.image


def _settle(image: Tensor) -> Tensor:
    """Planes one after the other, which is what everything but resizing is fast on; bicubic overshoot of float pictures cut off."""
    image = image.contiguous()
    return image if image.dtype == torch.uint8 else image.clamp_(0, 1)


def normalize(image: Tensor, preprocess: Preprocess) -> Tensor:
    """(..., C, H, W) uint8 or float32 0..1 → float32 by mean and std."""
    image = F.to_dtype(image.contiguous(), torch.float32, scale=True)
    return F.normalize(image, list(preprocess.mean), list(preprocess.std))


@dataclass(frozen=True)
class _Strength:
    """``level`` 0..1, ``sign`` -1 or 1 and ``fill``, the mean colour in the values of the picture, for one operation."""

    level: float
    sign: int
    fill: list[float]

    @property
    def factor(self) -> float:
        """0.1 to 1.9; 1 changes nothing."""
        return 1 + self.sign * 0.9 * self.level


def _white(image: Tensor) -> int:
    return 255 if image.dtype == torch.uint8 else 1


Pair = tuple[float, float]


def _affine(image: Tensor, s: _Strength, *, degrees: float = 0, shear: Pair = (0, 0)) -> Tensor:
    """Turn by degrees, shear by slopes (x, y); each times level and sign."""
    strength = s.sign * s.level
    angles = [math.degrees(math.atan(strength * slope)) for slope in shear]
    mode = v2.InterpolationMode.BILINEAR
    return F.affine(image, strength * degrees, [0, 0], 1.0, angles, interpolation=mode, fill=s.fill)


def _shift(image: Tensor, s: _Strength, axis: int, share: float) -> Tensor:
    """Move by whole pixels, ``share`` of the side times level and sign; the same as an affine map at a fraction of its time."""
    side = image.shape[axis]
    pixels = round(s.sign * s.level * share * side)
    moved = torch.tensor(s.fill).to(image.dtype).view(-1, 1, 1).expand(image.shape).contiguous()
    kept = side - abs(pixels)
    moved.narrow(axis, max(pixels, 0), kept).copy_(image.narrow(axis, max(-pixels, 0), kept))
    return moved


def _solarize_add(image: Tensor, s: _Strength) -> Tensor:
    white = _white(image)
    half, step = (128, int(110 * s.level)) if white == 255 else (128 / 255, 110 / 255 * s.level)
    return torch.where(image < half, image + step, image)  # 127 + 110 stays below white


Op = Callable[[Tensor, _Strength], Tensor]
GEOMETRY: dict[str, Op] = {
    "rotate": lambda image, s: _affine(image, s, degrees=30),
    "shear_x": lambda image, s: _affine(image, s, shear=(0.3, 0)),
    "shear_y": lambda image, s: _affine(image, s, shear=(0, 0.3)),
    "translate_x": lambda image, s: _shift(image, s, -1, 0.45),
    "translate_y": lambda image, s: _shift(image, s, -2, 0.45),
}
"""Operations for any number of channels."""
COLOUR: dict[str, Op] = {
    "autocontrast": lambda image, _: F.autocontrast(image),
    "equalize": lambda image, _: F.equalize(image),
    "invert": lambda image, _: F.invert(image),
    "posterize": lambda image, s: F.posterize(image, max(1, 4 - int(4 * s.level))),
    "solarize": lambda image, s: F.solarize(image, _white(image) * (1 - s.level)),
    "solarize_add": _solarize_add,
    "color": lambda image, s: F.adjust_saturation(image, s.factor),
    "contrast": lambda image, s: F.adjust_contrast(image, s.factor),
    "brightness": lambda image, s: F.adjust_brightness(image, s.factor),
    "sharpness": lambda image, s: F.adjust_sharpness(image, s.factor),
}
"""Operations that mean something on grey and RGB only: left out when the network takes any other number of channels."""


def rand_augment(image: Tensor, augment: AugmentConfig, mean: tuple[float, ...]) -> Tensor:
    """``rand_ops`` operations drawn with repetition; each is carried out with probability one half, as published, at its own magnitude."""
    ops = list((GEOMETRY | COLOUR if image.shape[-3] in (1, 3) else GEOMETRY).values())
    fill = [value * _white(image) for value in mean]
    for _ in range(augment.rand_ops):
        index, sign = int(torch.randint(len(ops), ())), 1 - 2 * int(torch.randint(2, ()))
        magnitude = augment.rand_magnitude + augment.rand_magnitude_std * float(torch.randn(()))
        if torch.rand(()) < 0.5:
            image = ops[index](image, _Strength(min(max(magnitude / 10, 0), 1), sign, fill))
    return image


def mix_batch(batch: Batch, augment: AugmentConfig, generator: torch.Generator) -> Batch:
    """Mixup or CutMix of each picture with the one before it in the batch, one share for all; any batch size, 0 and 1 too.

    CutMix pastes the same box into every picture; the share is that of the pixels which stay, counted after the box was cut at the border.
    """
    seed = int(torch.randint(2**62, (), generator=generator))  # always one number, so that the stream does not depend on the batch
    rng = np.random.default_rng(seed)
    if len(batch) == 0 or rng.random() >= augment.mix_prob or not (augment.mixup or augment.cutmix):
        return batch
    cutmix = augment.cutmix > 0 and (augment.mixup == 0 or rng.random() < augment.cutmix_share)
    alpha = augment.cutmix if cutmix else augment.mixup
    share = float(rng.beta(alpha, alpha))
    others = batch.images.roll(1, 0)
    if cutmix:
        (H, W), images = batch.images.shape[-2:], batch.images.clone()
        height, width = (round(side * math.sqrt(1 - share)) for side in (H, W))
        top, left = int(rng.integers(H)) - height // 2, int(rng.integers(W)) - width // 2
        rows, columns = slice(max(top, 0), min(top + height, H)), slice(max(left, 0), min(left + width, W))
        images[..., rows, columns] = others[..., rows, columns]
        share = 1 - (rows.stop - rows.start) * (columns.stop - columns.start) / (H * W)
    else:
        images = torch.lerp(others, batch.images, share)
    targets: list[ClassTarget] = []
    for own, other in zip(batch.targets, (batch.targets[-1], *batch.targets[:-1]), strict=True):
        if not isinstance(own, ClassTarget) or not isinstance(other, ClassTarget) or own.other is not None:
            raise UserError("Mixup and CutMix need exactly one class per picture; set mixup and cutmix to 0 for other tasks.")
        targets.append(ClassTarget(own.label, other.label, share))
    return replace(batch, images=images, targets=tuple(targets))
