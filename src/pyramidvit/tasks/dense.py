"""What segmentation and detection share: views of whole pictures, a backbone under a head, pictures of mistakes."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from PIL import Image
from torch import nn

from pyramidvit.config import RunConfig
from pyramidvit.data.dense_transforms import eval_transform, train_transform
from pyramidvit.data.image import ImageError, read_image
from pyramidvit.draw import encode_png
from pyramidvit.errors import UserError
from pyramidvit.models import create_model
from pyramidvit.tasks import Data
from pyramidvit.tasks.pictures import PictureTask, eight_bits
from pyramidvit.tiling import Window
from pyramidvit.types import Batch, Picture, Prediction, Sample, Section

WORST = 8


class DenseTask(PictureTask):
    """Base of the tasks that say something about places in a picture."""

    def __init__(self, config: RunConfig, classes: Sequence[str], data: Data | None = None) -> None:
        super().__init__(config, classes, data)
        view = config.dense
        size = view.input_size if view.resize == "fixed" else (view.short, view.long)
        self.preprocess = replace(self.preprocess, size=size, crop=1.0, interpolation=view.resampling)

    def transform(self, training: bool) -> Callable[[Sample], Sample]:
        view = self.config.dense
        return train_transform(view, self.preprocess) if training else eval_transform(view, self.preprocess)

    def model(self) -> nn.Module:
        settings = self.config.model
        in_chans, rate = self.config.data.in_chans, settings.drop_path_rate
        backbone = create_model(settings.name, features_only=True, in_chans=in_chans, drop_path_rate=rate)
        try:
            model = self.build(backbone)
        except ValueError as error:
            raise UserError(f"The head can't be built with these settings: {error}") from error
        if settings.weights is not None:
            self.start_from(settings.weights, model)
        return model

    def view_at(self, factor: float) -> Callable[[Sample], Sample]:
        """The transform of evaluation at another size."""
        view = self.config.dense
        height, width = (max(round(side * factor), 32) for side in view.input_size)
        sizes = {"short": round(view.short * factor), "long": round(view.long * factor), "input_size": (height, width)}
        return eval_transform(view.model_copy(update=sizes), self.preprocess)

    def answers(self, outputs: Any, batch: Batch) -> Sequence[Any]:
        """What the network says about each picture, in a form that can be mirrored, combined with other looks, and joined."""
        raise NotImplementedError

    def mirrored(self, answer: Any) -> Any:
        """The answer for the picture as it was before a left-right flip."""
        raise NotImplementedError

    def combine(self, answers: Sequence[Any]) -> Any:
        """One answer from several looks at the same pixels."""
        raise NotImplementedError

    def join(self, path: str, size: tuple[int, int], windows: Sequence[Window], answers: Iterable[Any]) -> Prediction:
        """The prediction for a picture of ``size`` (height, width) from the answers for its windows."""
        raise NotImplementedError

    def build(self, backbone: Any) -> nn.Module:
        """The network on a backbone."""
        raise NotImplementedError

    def worst_pictures(self, text: str, worst: Sequence[tuple[str, Callable[[np.ndarray], Image.Image]]]) -> tuple[Section, ...]:
        """Pictures with the most mistakes: their paths, and how each is drawn."""
        pictures: list[Picture] = []
        for path, drawn in worst[:WORST]:
            try:
                image = eight_bits(read_image(path, self.read_options()))
            except ImageError:
                continue  # it has gone since it was measured; the tables still count it
            pictures.append(Picture(encode_png(drawn(image))))
        return (Section("Worst pictures", text, pictures=tuple(pictures), small=True),) if pictures else ()
