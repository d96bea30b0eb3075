"""Does reading keep up? Clips per second of one worker, by each reader, beside those of a training step.

    python benchmarks/reading.py --out benchmarks/results/reading.json
    python benchmarks/reading.py clips/*.mp4 --model mvitv2_small_16x4

Clips of 16 frames, 4 apart at 30 per second, start anywhere in the videos; without any given, videos of 6 seconds of 426x320 pixels are
drawn (H.264, a key frame every 250). A worker has one thread, a training step (forward and backward, without optimiser) all of them.
Run on a quiet machine.
"""

import argparse
import json
import statistics
import tempfile
from functools import partial
from importlib.util import find_spec
from itertools import cycle
from pathlib import Path
from typing import Any

import torch

from pyramidvit import create_model
from pyramidvit.bench.measure import Contestant, Named, take_turns
from pyramidvit.config import AugmentConfig
from pyramidvit.cpu import keep_freed_memory
from pyramidvit.data.clip_reader import ClipReader, ClipSampling, as_sample
from pyramidvit.data.clip_transforms import clip_train_transform
from pyramidvit.data.motion import motion_clips, write_video
from pyramidvit.data.stream import VideoOptions
from pyramidvit.types import Preprocess


def draw_videos(folder: Path, count: int) -> list[Path]:
    paths = [folder / f"{number}.mp4" for number in range(count)]
    for path, clip in zip(paths, motion_clips(count, frames=180, size=(320, 426), seed=0), strict=True):
        write_video(path, clip.frames, fps=30)
    return paths


def read_with(options: VideoOptions, videos: list[Path], clips: int) -> dict[str, float]:
    """Seconds of a clip: read at its own size, then changed to what a training step takes."""
    reader = ClipReader(ClipSampling(16, 4, 30.0), options, training=True)
    transform = clip_train_transform(AugmentConfig(), Preprocess(size=(224, 224)))
    torch.manual_seed(0)
    order = cycle(videos)
    frames = reader.read(next(order))

    def read() -> None:
        nonlocal frames
        frames = reader.read(next(order))

    reading = take_turns([read, lambda: transform(as_sample(frames, "clip"))], clips)
    return {"read": statistics.mean(reading[0]), "transform": statistics.mean(reading[1])}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("videos", nargs="*", type=Path)
    parser.add_argument("--clips", type=int, default=30)
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--model", default="mvit_base_16x4")
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    keep_freed_memory()
    network = Contestant(args.model, partial(create_model, args.model), Named(args.model).shape(None, 1), train=True)
    step = statistics.median(take_turns([network.step()], args.steps)[0])
    print(f"training step of {args.model}: {step:.2f} s, {1 / step:.2f} clips/s", flush=True)
    result: dict[str, Any] = {"model": args.model, "step_seconds": step, "readers": {}}
    torch.set_num_threads(1)
    readers = {
        "pyav": VideoOptions(),
        "pyav, shrunk to 256 while decoding": VideoOptions(short_side=256),
        "torchcodec": VideoOptions(reader="torchcodec"),
    }
    with tempfile.TemporaryDirectory() as folder:
        videos = args.videos or draw_videos(Path(folder), 4)
        for name, options in readers.items():
            if name == "torchcodec" and not find_spec("torchcodec"):
                print("torchcodec is not installed: pip install 'pyramidvit[torchcodec]'")
                continue
            seconds = read_with(options, videos, args.clips)
            total = sum(seconds.values())
            result["readers"][name] = seconds
            print(
                f"{name}: read {seconds['read'] * 1e3:.0f} ms, transform {seconds['transform'] * 1e3:.0f} ms, "
                f"{1 / total:.1f} clips/s of one worker, {step / total:.1f} times what the training step takes",
                flush=True,
            )
    if args.out:
        args.out.parent.mkdir(parents=True, exist_ok=True)
        args.out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
