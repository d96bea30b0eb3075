"""Video classification: a clip in, one class out; all but reading, views and pictures is that of pictures.

B batch, V views, K classes, T frames, H W pixels.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from pyramidvit.config import RunConfig
from pyramidvit.data.clip_check import check_clips
from pyramidvit.data.clip_reader import ClipReader, ClipSampling, as_sample
from pyramidvit.data.clip_transforms import clip_eval_transform, clip_train_transform
from pyramidvit.data.clips import find_clips, read_clip_data
from pyramidvit.data.findings import CheckReport
from pyramidvit.data.folders import ClassData
from pyramidvit.data.samples import LabelledFile, SampleDataset
from pyramidvit.data.video import VideoError, VideoOptions
from pyramidvit.draw import annotate_clip, annotate_timeline, mosaic
from pyramidvit.errors import UserError
from pyramidvit.models import BACKBONES, Classifier
from pyramidvit.tasks.classify import ClassifyTask
from pyramidvit.tasks.pictures import eight_bits
from pyramidvit.types import Film, Sample, Timeline


class VideoTask(ClassifyTask):
    """Which of K actions a clip shows. In evaluation a video may be seen in V views, whose probabilities are averaged."""

    name = "video"
    title = "Video classification"
    things = "clips"

    def __init__(self, config: RunConfig, classes: Sequence[str], data: ClassData | None = None) -> None:
        super().__init__(config, classes, data)
        self.sampling, self.options = sampling_of(config), video_options(config)  # says at once what can't go together

    @classmethod
    def read_data(cls, root: Path, config: RunConfig, classes: Sequence[str] | None = None) -> ClassData:
        """Class folders or a list of clips; ``classes`` are those of a trained network."""
        return read_clip_data(root, val_share=config.data.val_share, seed=config.loop.seed, classes=classes)

    @classmethod
    def check_data(cls, root: Path, config: RunConfig) -> CheckReport:
        """Clips, classes and splits; every clip is decoded to its end."""
        return check_clips(cls.read_data(root, config), video_options(config), sampling_of(config), workers=config.data.workers)

    @property
    def views(self) -> int:
        """Network inputs per video in evaluation."""
        return self.config.clip.clips * self.config.clip.crops

    @property
    def input_shape(self) -> tuple[int, ...]:
        return (self.preprocess.in_chans, self.config.clip.frames, *self.preprocess.size)

    def reader(self, training: bool) -> Callable[[LabelledFile], Sample]:
        return ClipReader(self.sampling, self.options, training, 1 if training else self.config.clip.clips)

    def dataset(self, split: str) -> SampleDataset:
        """The clips of "train" (augmented) or "val" (all their views)."""
        data = super().dataset(split)
        data.views = 1 if split == "train" else self.views
        return data

    def transform(self, training: bool) -> Callable[[Sample], Sample]:
        settings = self.config.clip
        if training:
            look = clip_train_transform(self.config.augment, self.preprocess)
        else:
            look = clip_eval_transform(self.preprocess, clips=settings.clips, crops=settings.crops)
        return _Shuffled(look, 1 if training else settings.clips) if settings.shuffle_frames else look

    def read(self, source: str | Path | np.ndarray) -> tuple[Film, Sample]:
        """Frames with their times, and the sample made of them; BadFileError when there are none."""
        if isinstance(source, np.ndarray):
            fits = source.ndim == 4 and source.shape[3] == self.options.in_chans and min(source.shape) > 0 and source.dtype == np.uint8
            if not fits:
                raise VideoError("array", f"expected (T, H, W, {self.options.in_chans}) uint8, got {source.shape} {source.dtype}.")
        film = ClipReader(self.sampling, self.options, clips=self.config.clip.clips).film(source)
        return film, as_sample(film.frames, "array" if isinstance(source, np.ndarray) else source)

    def files_in(self, folder: Path) -> list[Path]:
        return find_clips(folder)

    def check_network(self, model: Classifier) -> None:
        if len(model.backbone.input_shape) != 4:
            names = [name for name, (_, config) in BACKBONES.items() if len(getattr(config, "size", ())) == 3]
            raise UserError(f"{self.config.model.name} takes pictures, and the data are clips: choose --model {', '.join(names)}.")

    def inflates(self, tensors: Mapping[str, Tensor]) -> bool:
        """Where no kernel reaches over frames, they are those of pictures."""
        return not any(tensor.ndim == 5 and tensor.shape[2] > 1 for tensor in tensors.values())

    def thumbnail(self, path: str) -> np.ndarray:
        """Four moments of a clip."""
        options = self.options if self.options.reader == "torchcodec" else replace(self.options, short_side=112)
        return mosaic(list(ClipReader(self.sampling, options).read(path)))

    def draw(self, image: Film, prediction: Any) -> Image.Image:
        film = replace(image, frames=eight_bits(image.frames))
        return annotate_timeline(film, prediction) if isinstance(prediction, Timeline) else annotate_clip(film, prediction)

    def changed(self, **settings: Any) -> "VideoTask":
        """The same task with other settings of clips."""
        config = self.config.model_copy(update={"clip": self.config.clip.model_copy(update=settings)})
        return type(self)(config, self.classes, cast(ClassData | None, self.data))


@dataclass(frozen=True)
class _Shuffled:
    """Frames of each of ``clips`` clips in random order, then the transform."""

    transform: Callable[[Sample], Sample]
    clips: int

    def __call__(self, sample: Sample) -> Sample:
        frames = sample.image.shape[1] // self.clips
        order = torch.cat([clip * frames + torch.randperm(frames) for clip in range(self.clips)])
        return self.transform(replace(sample, image=sample.image[:, order]))


def sampling_of(config: RunConfig) -> ClipSampling:
    """Which moments of a video make a clip under these settings."""
    clip = config.clip
    return ClipSampling(clip.frames, clip.stride, clip.fps, clip.segments, clip.short_clips)


def video_options(config: RunConfig) -> VideoOptions:
    """How videos are decoded under these settings."""
    data, clip = config.data, config.clip
    return VideoOptions(
        data.in_chans,
        data.orientation,
        clip.short_side,
        clip.frame_rate,
        max_pixels=data.max_pixels,
        time_limit=clip.time_limit,
        reader=clip.reader,
    )
