"""Clips → the network's input: augmentation that is the same for all frames, and evaluation views.

Training does to a clip what ``transforms.py`` does to a picture, with random numbers drawn once for all frames: one crop, one flip, the
same operations at the same strength, one erased rectangle. Where left and right matter, ``hflip`` must be 0. Mixup and CutMix are those of
pictures (``mix_batch``); CutMix pastes the same box into all frames.
C channels, T frames, V views, H W pixels.
"""

from dataclasses import dataclass, replace

import torch
from torch import Tensor
from torchvision.transforms.v2 import functional as F

from pyramidvit.config import AugmentConfig
from pyramidvit.data.transforms import Transform, checked, eval_transform, normalize, resize_to_cover, train_transform
from pyramidvit.errors import UserError
from pyramidvit.types import Preprocess, Sample


def clip_train_transform(augment: AugmentConfig, preprocess: Preprocess) -> Transform:
    """A random view (C, T, *preprocess.size) of a clip (C, T, H, W), float32, normalised."""
    return _FrameByFrame(train_transform(augment, preprocess))


def clip_eval_transform(preprocess: Preprocess, *, clips: int = 1, crops: int = 1) -> Transform:
    """``clips`` × ``crops`` views of (C, clips * T, H, W), one clip after the other: (V, C, T, *preprocess.size), without V if it is 1.

    One crop is the centre, as for pictures. Three are the two ends and the middle of the longer side, with the short side resized to the
    input itself whatever ``preprocess.crop`` says, as published. The views of a clip follow each other.
    """
    if clips < 1 or crops not in (1, 3):
        raise UserError(f"Evaluation takes at least 1 clip of a video and 1 or 3 crops of a clip; got {clips} clips and {crops} crops.")
    return _Views(preprocess, clips, crops)


@dataclass(frozen=True)
class _FrameByFrame:
    """A transform of pictures, carried out on all frames at once: it draws its random numbers once."""

    transform: Transform

    def __call__(self, sample: Sample) -> Sample:
        done = self.transform(replace(sample, image=sample.image.transpose(0, 1)))
        return replace(done, image=done.image.transpose(0, 1).contiguous())


@dataclass(frozen=True)
class _Views:
    preprocess: Preprocess
    clips: int
    crops: int

    def __call__(self, sample: Sample) -> Sample:
        frames = sample.image.shape[1]
        if frames % self.clips:
            raise ValueError(f"{self.clips} clips of equally many frames can't make {frames} frames.")
        if self.crops == 1:
            crops = _FrameByFrame(eval_transform(self.preprocess))(sample).image[None]
        else:
            crops = self._three(checked(replace(sample, image=sample.image.transpose(0, 1)), self.preprocess))
        views = crops.unflatten(2, (self.clips, -1)).movedim(2, 0).flatten(0, 1)  # (clips * crops, C, T, H, W)
        return replace(sample, image=views[0].contiguous() if len(views) == 1 else views.contiguous())

    def _three(self, frames: Tensor) -> Tensor:
        """(T, C, H, W) → (3, C, T, H, W): both ends and the middle of the side that reaches further than the input."""
        H, W = self.preprocess.size
        image = resize_to_cover(frames, (H, W), self.preprocess.interpolation)
        image = normalize(image, self.preprocess).transpose(0, 1)
        top, left = image.shape[-2] - H, image.shape[-1] - W
        ends = image[..., :H, :W], F.center_crop(image, [H, W]), image[..., top:, left:]
        return torch.stack(ends)
