"""The most memory that `pyramidvit predict --tile` holds on a picture of 6000 x 4000 pixels, each task in a fresh process.

Weights are random and of the small preset; detectors show whatever they find, up to 100 objects per tile, which is more than a trained one
would. Memory is the process's highest resident size (VmHWM, as wait4 reports it), Python and libraries included.

    python benchmarks/large_pictures.py --out benchmarks/results/large_pictures.json
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from pyramidvit.config import RunConfig, resolve
from pyramidvit.config.presets import SMALL
from pyramidvit.tasks.table import TASKS
from pyramidvit.weights import save

CLASSES = 21
TASKS_MEASURED = ("detect", "instances", "segment")


def write_picture(path: Path, width: int, height: int) -> None:
    """Smooth colours."""
    small = np.random.default_rng(0).integers(0, 256, (height // 50, width // 50, 3), np.uint8)
    Image.fromarray(small).resize((width, height), Image.Resampling.BICUBIC).save(path, quality=90)


def write_weights(path: Path, name: str, model: str) -> None:
    """A weights file of a network that was never trained."""
    head = {} if name == "segment" else {"score_threshold": 0.0}
    own = RunConfig.model_validate({"task": name, "model": {"name": model}, "head": head})
    config, _ = resolve(own, preset=SMALL[name])
    torch.manual_seed(0)
    kind: Any = TASKS[name]
    task = kind(config, [f"class {number}" for number in range(CLASSES)])
    save(path, task.model().state_dict(), task.weights_meta({}))


def measure(name: str, weights: Path, picture: Path, tile: int) -> dict[str, Any]:
    """Run the command and ask the system about its process."""
    command = [sys.executable, "-m", "pyramidvit", "predict", weights, picture, "--tile", tile, "--json", "--device", "cpu"]
    started = time.perf_counter()
    with tempfile.TemporaryFile() as answer:
        process = subprocess.Popen([*map(str, command)], stdout=answer)
        _, status, usage = os.wait4(process.pid, 0)
        seconds = time.perf_counter() - started
        if code := os.waitstatus_to_exitcode(status):
            raise SystemExit(f"{name}: the command ended with exit code {code}.")
        answer.seek(0)
        said = json.loads(answer.read())
    found = {"objects": len(said["objects"])} if "objects" in said else {"classes": len(said["shares"])}
    return {"task": name, "peak_mib": usage.ru_maxrss // 1024, "seconds": round(seconds, 1), **found}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="pvt_v2_b0")
    parser.add_argument("--tasks", nargs="+", default=list(TASKS_MEASURED), choices=TASKS_MEASURED)
    parser.add_argument("--width", type=int, default=6000)
    parser.add_argument("--height", type=int, default=4000)
    parser.add_argument("--tile", type=int, default=640)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        picture = Path(folder) / "large.jpg"
        write_picture(picture, options.width, options.height)
        rows: list[dict[str, Any]] = []
        for name in options.tasks:
            weights = Path(folder) / f"{name}.safetensors"
            write_weights(weights, name, options.model)
            rows.append(measure(name, weights, picture, options.tile))
            print(json.dumps(rows[-1]), flush=True)
    about = {"model": options.model, "picture": [options.width, options.height], "tile": options.tile, "torch": torch.__version__}
    if options.out:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(json.dumps(about | {"rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
