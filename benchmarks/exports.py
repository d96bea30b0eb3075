"""Exported networks beside the same networks in torch, and beside the other implementation's own export through the same runtime.

pvt_v2_b2 with the weights of timm at 224x224: ours in ONNX Runtime and OpenVINO, the one of timm in eager torch and exported by torch.onnx
into the same runtimes. RetinaNet and Mask R-CNN on pvt_v2_b0 with everything that selects objects, beside themselves in eager torch. Where
the processor has products of halves (bfloat16), also ours as OpenVINO's file of halves, which no ratio counts. A folder of 200 photos of
640x480 from files to answers, with and without annotated pictures, beside the bare network on as many batches. All of a kind take turns in
one process after warm-up; a number is the median. Run on a quiet machine:

    python benchmarks/exports.py --out benchmarks/results/exports.json
    python benchmarks/exports.py --name pvt_v2_b0 --batches 1 --turns 3 --size 64 --detector-size 128 --photos 16   # to see that it runs
"""

import argparse
import json
import tempfile
import warnings
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import timm
import torch
from PIL import Image
from torch import nn

from pyramidvit import create_model
from pyramidvit.bench.compare import describe_machine
from pyramidvit.bench.measure import Contestant, Step, busy_machine, busy_share, peak_flops, take_turns
from pyramidvit.config import RunConfig
from pyramidvit.cpu import keep_freed_memory
from pyramidvit.export.backend import anonymous
from pyramidvit.export.exported import load_exported
from pyramidvit.export.graphs import backbone_of
from pyramidvit.export.runtimes import Backend, openvino_core, run_onnx
from pyramidvit.export.verify import reference, settled
from pyramidvit.export.write import export
from pyramidvit.models import mask_rcnn, retinanet
from pyramidvit.predict import Predicted, Predictor, find_pictures
from pyramidvit.predict import load as load_predictor
from pyramidvit.tasks.table import TASKS
from pyramidvit.types import Preprocess
from pyramidvit.weights import WeightsMeta, load

RUNTIMES: tuple[Backend, ...] = ("onnx", "openvino")
PHOTO_BATCH = 8
"""Pictures per step of predict."""


def theirs(name: str) -> nn.Module:
    torch.manual_seed(0)
    return timm.create_model(name).eval()


def ours(name: str) -> nn.Module:
    """Our network with the weights that timm's has after the same seed."""
    model = create_model(name)
    load(model, theirs(name).state_dict())
    return model.eval()


def their_exports(name: str, shape: tuple[int, ...]) -> dict[str, Callable[[torch.Tensor], Any]]:
    """timm's network as torch.onnx exports it for exactly this input, which is the most that a runtime can know."""
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        path = Path(folder) / "model.onnx"
        torch.onnx.export(theirs(name), (torch.randn(shape),), path, external_data=False, dynamo=True, verbose=False)
        return {runtime: run_onnx(path, runtime) for runtime in RUNTIMES}


@cache
def our_export(name: str, runtime: Backend) -> nn.Module:
    """Ours for any input."""
    return anonymous(ours(name), runtime)


def halves(model: nn.Module) -> dict[str, nn.Module]:
    """The network as OpenVINO's file of halves, if this processor computes with them."""
    if "BF16" not in openvino_core().get_property("CPU", "OPTIMIZATION_CAPABILITIES"):
        return {}
    shape = backbone_of(model).input_shape
    meta = WeightsMeta("network", "classify", (), Preprocess.for_channels(shape[0]))
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.xml"
        export(model, meta, shape, path, "openvino", precision="fp16")
        return {"openvino, halves": load_exported(path)}


def timed(steps: dict[str, Step], turns: int) -> dict[str, float]:
    """Median seconds of each."""
    with torch.inference_mode():
        seconds = take_turns(list(steps.values()), turns)
    return {name: median(some) for name, some in zip(steps, seconds, strict=True)}


def classifier(name: str, batch: int, size: int, turns: int) -> dict[str, Any]:
    """Seconds of every way to run it, the share of the machine's peak that each uses, and ratios."""
    shape = batch, 3, size, size
    x = torch.randn(shape)
    steps: dict[str, Step] = {"timm eager": partial(theirs(name), x), "ours eager": partial(ours(name), x)}
    for runtime, run in their_exports(name, shape).items():
        steps[f"timm {runtime}"] = partial(run, x)
    for runtime in RUNTIMES:
        steps[f"ours {runtime}"] = partial(our_export(name, runtime), x)
    steps |= {f"ours {key}": partial(exported, x) for key, exported in halves(ours(name)).items()}
    before = peak_flops()
    seconds = timed(steps, turns)
    peak = max(before, peak_flops())
    macs = Contestant(name, partial(ours, name), shape).macs()
    best = min(RUNTIMES, key=lambda runtime: seconds[f"ours {runtime}"])
    return {
        "name": name,
        "batch": batch,
        "size": size,
        "seconds": seconds,
        "peak_gflops": peak / 1e9,
        "share_of_peak": {key: 2 * macs / value / peak for key, value in seconds.items()},
        "best": best,
        "times_as_fast_as_timm_eager": seconds["timm eager"] / seconds[f"ours {best}"],
        "times_as_fast_as_timm_exported": {one: seconds[f"timm {one}"] / seconds[f"ours {one}"] for one in RUNTIMES},
    }


def detector(head: str, size: int, turns: int) -> dict[str, Any]:
    """A small detector with all that selects objects, its classes wide enough apart that there are some."""
    torch.manual_seed(0)
    config = retinanet.SMALL if head == "retinanet" else mask_rcnn.SMALL
    model: nn.Module = create_model("pvt_v2_b0", head=head, head_config=config, num_classes=5).eval()  # pyright: ignore[reportCallIssue, reportArgumentType]
    nn.init.normal_(model.get_parameter("classes.weight" if head == "retinanet" else "roi_heads.box.classes.weight"), 0, 0.2)
    x, valid = torch.randn(1, 3, size, size), [(size, size)]
    steps: dict[str, Step] = {"eager": lambda: reference(model, x, valid)}
    for key, exported in ({runtime: anonymous(model, runtime) for runtime in RUNTIMES} | halves(model)).items():
        steps[key] = lambda exported=exported: settled(exported(x), valid)
    seconds = timed(steps, turns)
    with torch.inference_mode():
        objects = len(reference(model, x, valid)[0].boxes)
    fastest = min(seconds[one] for one in RUNTIMES)
    return {"head": head, "size": size, "objects": objects, "seconds": seconds, "times_as_fast": seconds["eager"] / fastest}


def photos(name: str, size: int, count: int, turns: int) -> dict[str, Any]:
    """What ``predict`` makes of a folder, as a share of what the bare network, exported, would do in the same time."""
    config = RunConfig.model_validate({"model": {"name": name}, "augment": {"size": [size, size]}})
    task = TASKS["classify"](config, ("cat", "dog", "cow"))
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        Predictor(task, task.model(), torch.device("cpu")).export(folder / "model.onnx")
        predictor = load_predictor(folder / "model.onnx", batch_size=PHOTO_BATCH)
        (folder / "photos").mkdir()
        draw_photos(folder / "photos", count)
        x, rest = torch.randn(PHOTO_BATCH, 3, size, size), count % PHOTO_BATCH

        def network() -> None:
            for _ in range(count // PHOTO_BATCH):
                predictor.model(x)
            if rest:
                predictor.model(x[:rest])

        def predict(*, draw: bool) -> None:
            for number, result in enumerate(predictor.stream(find_pictures([str(folder / "photos")]))):
                assert isinstance(result, Predicted)
                json.dumps(result.to_json())
                if draw:
                    result.save(folder / "out" / f"{number}.png")

        steps: dict[str, Step] = {
            "network": network,
            "predict, json": partial(predict, draw=False),
            "predict, pictures": partial(predict, draw=True),
        }
        seconds = timed(steps, turns)
    share = {key: seconds["network"] / value for key, value in seconds.items() if key != "network"}
    return {"name": name, "size": size, "photos": count, "backend": predictor.backend, "seconds": seconds, "share_of_bare_network": share}


def draw_photos(folder: Path, count: int) -> None:
    """JPEG files of 640x480 with soft shapes and some grain, as large as photos are."""
    random = np.random.default_rng(0)
    for number in range(count):
        soft = Image.fromarray(random.integers(0, 255, (12, 16, 3), np.uint8)).resize((640, 480), Image.Resampling.BICUBIC)
        grain = random.normal(0, 6, (480, 640, 3))
        Image.fromarray((np.asarray(soft) + grain).clip(0, 255).astype(np.uint8)).save(folder / f"{number:03}.jpg", quality=90)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--name", default="pvt_v2_b2")
    parser.add_argument("--batches", type=int, nargs="*", default=[1, 8])
    parser.add_argument("--size", type=int, default=224)
    parser.add_argument("--detector-size", type=int, default=512)
    parser.add_argument("--detectors", nargs="*", choices=["retinanet", "mask_rcnn"], default=["retinanet", "mask_rcnn"])
    parser.add_argument("--photos", type=int, default=200, help="0 leaves this part out")
    parser.add_argument("--turns", type=int, default=15)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    keep_freed_memory()
    busy = busy_share()
    result: dict[str, Any] = {"machine": describe_machine(busy), "classifier": [], "detectors": [], "photos": []}
    for warning in busy_machine(busy):
        print("warning:", warning, flush=True)

    def keep(kind: str, row: dict[str, Any]) -> None:
        """Written at once: the next part takes minutes."""
        print(json.dumps(row, indent=1), flush=True)
        result[kind].append(row)
        if options.out:
            options.out.parent.mkdir(parents=True, exist_ok=True)
            options.out.write_text(json.dumps(result, indent=1) + "\n")

    for batch in options.batches:
        keep("classifier", classifier(options.name, batch, options.size, options.turns))
    our_export.cache_clear()
    for head in options.detectors:
        keep("detectors", detector(head, options.detector_size, options.turns))
    if options.photos:
        keep("photos", photos(options.name, options.size, options.photos, max(options.turns // 4, 3)))


if __name__ == "__main__":
    main()
