"""What surrounds the network when one picture is looked at: reading before it, selection and masks behind it.

The published heads over a backbone with random weights, batch 1. Before: decode, resize, normalise. After: choosing boxes, dropping
doubles, pasting masks or enlarging a label map, and the JSON of the result; drawing is left out. RoIAlign and the heads of Mask R-CNN's
second stage count as network. Random weights find nothing sensible, so the score threshold is set low enough for 100 objects to come out,
the mask of each is an ellipse in its box, and the class logits are those of some 60 regions, whatever the heads said: noise would have more
runs and borders than pictures have (``--noise`` leaves them). A number is the median over turns. Run on a quiet machine:

    GOMP_SPINCOUNT=20000 python benchmarks/dense_overhead.py --turns 15 --out benchmarks/results/dense_overhead.json
"""

import argparse
import json
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image

from pyramidvit.config import RunConfig
from pyramidvit.cpu import keep_freed_memory
from pyramidvit.data.loader import collate
from pyramidvit.models import mask_rcnn
from pyramidvit.models.semantic_fpn import SemanticFPNOutputs
from pyramidvit.tasks.table import TASKS

CLASSES = {"detect": 80, "instances": 80, "segment": 150}
"""Of COCO and ADE20K."""
OBJECTS = 100
WARM_UP = 2


class Stopwatch:
    """Adds up what the functions that it is put around take."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def around(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def timed(*arguments: Any) -> Any:
            started = time.perf_counter()
            result = function(*arguments)
            self.seconds += time.perf_counter() - started
            return result

        return timed


class Pipeline:
    """File → text, as `pyramidvit predict --json` does it, with the seconds before, in and behind the network."""

    def __init__(self, name: str, model: str, size: int, *, noise: bool) -> None:
        dense = {"resize": "fixed", "input_size": (size, size)}
        config = RunConfig.model_validate({"task": name, "model": {"name": model}, "dense": dense, "loop": {"device": "cpu"}})
        kind: Any = TASKS[name]
        self.task: Any = kind(config, [f"class {number}" for number in range(CLASSES[name])])
        self.transform = self.task.transform(training=False)
        torch.manual_seed(0)
        self.model: Any = self.task.model().eval()
        self.inside = Stopwatch()
        self.noise = noise
        if name == "instances":
            self._watch_second_stage()

    def _watch_second_stage(self) -> None:
        heads = self.model.roi_heads
        heads.box.forward = self.inside.around(heads.box.forward)
        mask = self.inside.around(heads.mask.forward)
        heads.mask.forward = mask if self.noise else lambda regions, labels: ellipses(mask(regions, labels))
        mask_rcnn.pool_regions = self.inside.around(mask_rcnn.pool_regions)

    @torch.inference_mode()
    def turn(self, photo: Path) -> dict[str, float]:
        """Seconds of one picture, and how many objects came out."""
        self.inside.seconds = 0.0
        times = [time.perf_counter()]
        batch = collate([self.transform(self.task.read(photo)[1])])
        times.append(time.perf_counter())
        outputs = self.model(batch.images)
        times.append(time.perf_counter())
        if isinstance(outputs, SemanticFPNOutputs) and not self.noise:
            outputs = outputs._replace(logits=in_regions(outputs.logits))
        times.append(time.perf_counter())
        answer = self.task.predict(outputs, batch)[0].to_json()
        json.dumps(answer)
        times.append(time.perf_counter())
        before, network, _, after = (end - start for start, end in pairwise(times))
        network, after = network + self.inside.seconds, after - self.inside.seconds
        return {
            "before": before,
            "network": network,
            "after": after,
            "share": (before + after) / (before + network + after),
            "objects": len(answer.get("objects", ())),
        }

    def find_objects(self, photo: Path) -> None:
        """Lower the score threshold until as many objects come out as are wanted."""
        for exponent in range(2, 40):
            self.model.config = replace(self.model.config, score_threshold=2.0**-exponent, max_per_image=OBJECTS)
            if self.turn(photo)["objects"] >= OBJECTS:
                return
        raise RuntimeError(f"No threshold gives {OBJECTS} objects.")


def ellipses(logits: torch.Tensor) -> torch.Tensor:
    """As many mask logits, positive within the ellipse that touches the sides of the box."""
    place = torch.linspace(-1, 1, logits.shape[-1])
    return (8 * (1 - place[:, None].square() - place.square())).expand(logits.shape)


def in_regions(logits: torch.Tensor, count: int = 60) -> torch.Tensor:
    """As many logits, in which the class of the nearest of some random places leads, and shares its borders."""
    generator = torch.Generator().manual_seed(0)
    _, K, height, width = logits.shape
    places = torch.rand(count, 2, generator=generator) * torch.tensor([height, width])
    cells = torch.cartesian_prod(torch.arange(height), torch.arange(width)).float()
    classes = torch.randint(K, (count,), generator=generator)[torch.cdist(cells, places).argmin(1)].view(height, width)
    leading = F.one_hot(classes, K).permute(2, 0, 1)[None].float()
    return logits / logits.std() + 8 * F.avg_pool2d(leading, 3, stride=1, padding=1)


def write_photo(path: Path, side: int) -> None:
    """A JPEG file of smooth colours with some grain, about as hard to decode as a photo."""
    generator = np.random.default_rng(0)
    colours = Image.fromarray(generator.integers(0, 256, (12, 12, 3), np.uint8)).resize((side, side), Image.Resampling.BICUBIC)
    grain = generator.normal(0, 8, (side, side, 3))
    Image.fromarray((np.asarray(colours) + grain).clip(0, 255).astype(np.uint8)).save(path, quality=92)


def measure(name: str, model: str, size: int, photo: Path, turns: int, *, noise: bool) -> dict[str, Any]:
    """One row: medians in milliseconds."""
    pipeline = Pipeline(name, model, size, noise=noise)
    if name != "segment":
        pipeline.find_objects(photo)
    for _ in range(WARM_UP):
        pipeline.turn(photo)
    rows = [pipeline.turn(photo) for _ in range(turns)]
    middle = {key: statistics.median(row[key] for row in rows) for key in rows[0]}
    milliseconds = {f"{key}_ms": round(1000 * middle[key], 1) for key in ("before", "network", "after")}
    return {"task": name, **milliseconds, "share": round(middle["share"], 4), "objects": int(middle["objects"])}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", nargs="+", default=list(CLASSES), choices=list(CLASSES))
    parser.add_argument("--model", default="pvt_v2_b0")
    parser.add_argument("--size", type=int, default=640, help="sides of the network's input")
    parser.add_argument("--side", type=int, default=800, help="sides of the picture")
    parser.add_argument("--photo", type=Path, help="a picture to look at; a generated one if not given")
    parser.add_argument("--turns", type=int, default=15)
    parser.add_argument("--noise", action="store_true", help="leave what random weights say of masks and classes")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    keep_freed_memory()
    with tempfile.TemporaryDirectory() as folder:
        photo = options.photo or Path(folder) / "photo.jpg"
        if options.photo is None:
            write_photo(photo, options.side)
        rows = [measure(name, options.model, options.size, photo, options.turns, noise=options.noise) for name in options.tasks]
    about = {
        "model": options.model,
        "noise": options.noise,
        "size": options.size,
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
    }
    text = json.dumps(about | {"rows": rows}, indent=1)
    print(text)
    if options.out:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(text + "\n")


if __name__ == "__main__":
    main()
