"""What threads that wait cost: training alone and beside a process that fills one core, with several settings of the OpenMP library.

    python benchmarks/waiting.py --out benchmarks/results/waiting.json

Pictures per second of forward and backward, without optimiser; each setting in a fresh process, since OpenMP reads it once. Run on a quiet
machine.
"""

import argparse
import json
import multiprocessing
import os
import statistics
from pathlib import Path
from typing import Any

import torch

from pyramidvit.bench.measure import Contestant, Named, in_fresh_process, take_turns
from pyramidvit.cpu import keep_freed_memory

SETTINGS: dict[str, dict[str, str]] = {
    "default of the OpenMP library": {},
    "GOMP_SPINCOUNT=2000": {"GOMP_SPINCOUNT": "2000"},
    "GOMP_SPINCOUNT=20000": {"GOMP_SPINCOUNT": "20000"},
    "OMP_WAIT_POLICY=PASSIVE": {"OMP_WAIT_POLICY": "PASSIVE"},
}


def pictures_per_second(contestant: Contestant, threads: int, steps: int) -> float:
    torch.set_num_threads(threads)
    keep_freed_memory()
    return contestant.shape[0] / statistics.median(take_turns([contestant.step()], steps)[0])


def fill_a_core() -> None:
    while True:
        pass


def measure(setting: dict[str, str], contestant: Contestant, threads: int, steps: int) -> dict[str, float]:
    for name in ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY"):
        os.environ.pop(name, None)
    os.environ |= setting  # a fresh process inherits it
    alone = in_fresh_process(pictures_per_second, contestant, threads, steps)
    neighbour = multiprocessing.get_context("spawn").Process(target=fill_a_core, daemon=True)
    neighbour.start()
    try:
        return {"alone": alone, "beside": in_fresh_process(pictures_per_second, contestant, threads, steps)}
    finally:
        neighbour.kill()
        neighbour.join()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="pvt_v2_b0")
    parser.add_argument("--size", type=int, default=64)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--out", type=Path)
    args = parser.parse_args()
    network = Named(args.model)
    contestant = Contestant(args.model, network, network.shape((args.size, args.size), args.batch), train=True)
    rows: list[dict[str, Any]] = []
    for name, setting in SETTINGS.items():
        rows.append({"setting": name} | measure(setting, contestant, args.threads, args.steps))
        print(f"{name:30} alone {rows[-1]['alone']:6.0f}, beside a busy process {rows[-1]['beside']:6.0f} pictures/s", flush=True)
    if args.out:
        args.out.parent.mkdir(parents=True, exist_ok=True)
        about = {"torch": torch.__version__, "model": args.model, "size": args.size, "batch": args.batch, "threads": args.threads}
        args.out.write_text(json.dumps(about | {"rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
