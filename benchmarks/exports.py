"""Exported networks beside the same networks in torch, and beside the other implementation's own export through the same runtime.

pvt_v2_b2 with the weights of timm at 224x224: ours in ONNX Runtime and OpenVINO, the one of timm in eager torch and exported by torch.onnx
into the same runtimes. RetinaNet and Mask R-CNN on pvt_v2_b0 with everything that selects objects, beside themselves in eager torch. All
take turns in one process after warm-up; a number is the median. Run on a quiet machine:

    python benchmarks/exports.py --out benchmarks/results/exports.json
    python benchmarks/exports.py --name pvt_v2_b0 --batches 1 --turns 3 --size 64   # seconds, to see that it runs
"""

import argparse
import json
import tempfile
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import timm
import torch
from torch import nn

from pyramidvit import create_model
from pyramidvit.bench.compare import describe_machine
from pyramidvit.bench.measure import Contestant, Step, busy_machine, load_average, peak_flops, take_turns
from pyramidvit.cpu import keep_freed_memory
from pyramidvit.export.backend import anonymous
from pyramidvit.export.runtimes import Backend, run_onnx
from pyramidvit.export.verify import reference, settled
from pyramidvit.models import mask_rcnn, retinanet
from pyramidvit.weights import load

RUNTIMES: tuple[Backend, ...] = ("onnx", "openvino")


def theirs(name: str) -> nn.Module:
    torch.manual_seed(0)
    return timm.create_model(name).eval()


def ours(name: str) -> nn.Module:
    """Our network with the weights that timm's has after the same seed."""
    model = create_model(name)
    load(model, theirs(name).state_dict())
    return model.eval()


def their_export(name: str, shape: tuple[int, ...], runtime: str) -> Callable[[torch.Tensor], Any]:
    """timm's network as torch.onnx exports it for exactly this input, which is the most that a runtime can know."""
    with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        path = Path(folder) / "model.onnx"
        torch.onnx.export(theirs(name), (torch.randn(shape),), path, external_data=False, dynamo=True, verbose=False)
        return run_onnx(path, runtime)


def timed(steps: dict[str, Step], turns: int) -> dict[str, float]:
    """Median seconds of each."""
    with torch.inference_mode():
        seconds = take_turns(list(steps.values()), turns)
    return {name: median(some) for name, some in zip(steps, seconds, strict=True)}


def classifier(name: str, batch: int, size: int, turns: int, peak: float) -> dict[str, Any]:
    """Seconds of every way to run it, the share of the peak that ours use, and ratios."""
    shape = batch, 3, size, size
    x = torch.randn(shape)
    steps: dict[str, Step] = {"timm eager": partial(theirs(name), x), "ours eager": partial(ours(name), x)}
    for runtime in RUNTIMES:
        steps[f"timm {runtime}"] = partial(their_export(name, shape, runtime), x)
        steps[f"ours {runtime}"] = partial(anonymous(ours(name), runtime), x)
    seconds = timed(steps, turns)
    macs = Contestant(name, partial(ours, name), shape).macs()
    best = min(RUNTIMES, key=lambda runtime: seconds[f"ours {runtime}"])
    return {
        "name": name,
        "batch": batch,
        "seconds": seconds,
        "share_of_peak": {key: 2 * macs / value / peak for key, value in seconds.items()},
        "best": best,
        "times_as_fast_as_timm_eager": seconds["timm eager"] / seconds[f"ours {best}"],
        "times_as_fast_as_timm_exported": {one: seconds[f"timm {one}"] / seconds[f"ours {one}"] for one in RUNTIMES},
    }


def detector(head: str, size: int, turns: int) -> dict[str, Any]:
    """A small detector with all that selects objects."""
    torch.manual_seed(0)
    config = retinanet.SMALL if head == "retinanet" else mask_rcnn.SMALL
    model: nn.Module = create_model("pvt_v2_b0", head=head, head_config=config, num_classes=5).eval()  # pyright: ignore[reportCallIssue, reportArgumentType]
    x, valid = torch.randn(1, 3, size, size), [(size, size)]
    steps: dict[str, Step] = {"eager": lambda: reference(model, x, valid)}
    for runtime in RUNTIMES:
        exported = anonymous(model, runtime)
        steps[runtime] = lambda exported=exported: settled(exported(x), valid)
    seconds = timed(steps, turns)
    return {"head": head, "size": size, "seconds": seconds, "times_as_fast": seconds["eager"] / min(seconds[one] for one in RUNTIMES)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--name", default="pvt_v2_b2")
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 8])
    parser.add_argument("--size", type=int, default=224)
    parser.add_argument("--detector-size", type=int, default=512)
    parser.add_argument("--detectors", nargs="*", default=["retinanet", "mask_rcnn"])
    parser.add_argument("--turns", type=int, default=15)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    keep_freed_memory()
    load_before = load_average()
    peak = peak_flops()
    rows = [classifier(options.name, batch, options.size, options.turns, peak) for batch in options.batches]
    detectors = [detector(head, options.detector_size, options.turns) for head in options.detectors]
    result = {"machine": describe_machine(load_before), "peak_gflops": peak / 1e9, "classifier": rows, "detectors": detectors}
    for warning in busy_machine(load_before):
        print("warning:", warning)
    for row in (*rows, *detectors):
        print(json.dumps(row, indent=1))
    if options.out:
        options.out.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
