"""An exported file in the place of the network that it was made from."""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from pyramidvit.errors import UserError
from pyramidvit.export.describe import Description
from pyramidvit.export.graphs import Run, answer
from pyramidvit.export.runtimes import READERS, Backend, choose, open_file


class Exported(nn.Module):
    """Pictures (B, C, H, W) or clips (B, C, T, H, W) → what the network would have answered; views (B, V, C, T, H, W) one by one."""

    def __init__(self, description: Description, run: Run, backend: str) -> None:
        super().__init__()
        self.description, self.run, self.backend = description, run, backend

    def forward(self, images: Tensor) -> Any:
        if images.ndim == 6:  # views stay outside of the graph
            return torch.stack([self(view) for view in images.unbind(1)], 1)
        if images.device.type != "cpu":
            raise UserError(f"{self.backend} runs on the CPU here, and the pictures are on {images.device}: leave --device out.")
        check_input(self.description, images)
        return answer(self.description.outputs, self.run, images)


def check_input(description: Description, images: Tensor) -> None:
    """UserError unless the graph takes these pictures or clips."""
    channels, size, frames = description.meta.preprocess.in_chans, tuple(images.shape[-2:]), description.frames
    if images.shape[1] != channels:
        raise UserError(f"This file takes {channels} channels, got {tuple(images.shape)}.")
    if min(size) < 32:
        raise UserError(f"This file takes pictures of at least 32x32 pixels, got {'{}x{}'.format(*size)}.")
    if description.size is not None and size != description.size:
        only, got = ("{}x{}".format(*sides) for sides in (description.size, size))
        raise UserError(f"This file takes pictures of {only} only, got {got}: its network can't be exported for any size.")
    if frames is not None and images.ndim == 5 and images.shape[2] != frames:
        raise UserError(f"This file takes clips of {frames} frames only, got {images.shape[2]}.")


def load_exported(path: Path, backend: Backend = "auto", *, exact: bool = False) -> Exported:
    """A file that `export` wrote, ready to run, with ``exact`` in float32 even if it is one of halves.

    UserError when there is none, it may not be trusted, or nothing installed runs it.
    """
    if not path.is_file():
        raise UserError(f"There is no file {path}. Expected a run folder, a weights file, or an exported .onnx, .xml or .pt2 file.")
    chosen = choose(backend, READERS[path.suffix.lower()])
    return Exported(*open_file(path, chosen, exact=exact), chosen)
