"""Our networks beside another implementation with the same weights: time, share of the machine's peak, peak memory.

Both sides run in one process with the same threads, turn by turn, after warm-up; a number is the median over the turns. Peak memory is the
growth of a fresh process of its own over a few training steps. Run on a quiet machine:

    python benchmarks/backbones.py pvt_v2_b0 pvt_v2_b2 --out benchmarks/results/backbones.json
"""

import argparse
import json
import platform
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import timm
import torch
from torch import nn

from pyramidvit import create_model
from pyramidvit.cpu import keep_freed_memory
from pyramidvit.models.cost import measure_cost
from pyramidvit.weights import load


def build(side: str, name: str) -> nn.Module:
    """The network of one side; "ours" holds the weights that the other side has after the same seed."""
    torch.manual_seed(0)
    theirs = timm.create_model(name)
    if side == "timm":
        return theirs
    ours = create_model(name)
    load(ours, theirs.state_dict())
    return ours


def inference(model: nn.Module, x: torch.Tensor) -> Callable[[], object]:
    model.eval()

    def run() -> object:
        with torch.inference_mode():
            return model(x)

    return run


def training_step(model: nn.Module, x: torch.Tensor) -> Callable[[], object]:
    model.train()
    labels = torch.arange(len(x))

    def run() -> None:
        model.zero_grad(set_to_none=True)
        nn.functional.cross_entropy(model(x), labels).backward()

    return run


def take_turns(sides: list[Callable[[], object]], turns: int) -> list[list[float]]:
    """Seconds of each side, turn by turn."""
    for run in sides:
        run()
        run()
    seconds: list[list[float]] = [[] for _ in sides]
    for turn in range(turns):
        for i in range(len(sides)):
            side = (i + turn) % len(sides)  # who goes first changes, so that neither always finds a warm cache
            start = time.perf_counter()
            sides[side]()
            seconds[side].append(time.perf_counter() - start)
    return seconds


def peak_flops() -> float:
    """Multiply-adds per second of the best large matrix product, times two."""
    n = 2048
    a, b, c = torch.randn(n, n), torch.randn(n, n), torch.empty(n, n)
    best = min(take_turns([lambda: torch.mm(a, b, out=c)], 20)[0])
    return 2 * n**3 / best


def peak_memory(side: str, name: str, batch: int, size: int) -> float:
    """MiB by which a fresh process grows over three training steps."""
    command = [sys.executable, __file__, name, "--memory-of", side, "--batches", str(batch), "--size", str(size)]
    return float(subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()[-1])


def memory_of(side: str, name: str, batch: int, size: int) -> float:
    step = training_step(build(side, name), torch.randn(batch, 3, size, size))
    Path("/proc/self/clear_refs").write_text("5")  # the high-water mark starts anew, at what is in use now
    before = resident("VmRSS")
    for _ in range(3):
        step()
    return (resident("VmHWM") - before) / 1024


def resident(field: str) -> int:
    """KiB of memory of this process: VmRSS now, VmHWM at most so far."""
    status = Path("/proc/self/status").read_text()
    return int(next(line.split()[1] for line in status.splitlines() if line.startswith(field)))


def compare(name: str, batch: int, size: int, what: str, turns: int, peak: float) -> dict[str, Any]:
    """One row: medians of both sides, the ratio of the medians, and what share of the peak ours uses."""
    x = torch.randn(batch, 3, size, size)
    prepare = inference if what == "forward" else training_step
    theirs, ours = (statistics.median(s) for s in take_turns([prepare(build(side, name), x) for side in ("timm", "ours")], turns))
    macs = measure_cost(name, lambda: create_model(name), (size, size)).macs * batch * (1 if what == "forward" else 3)
    share = 2 * macs / ours / peak
    return {
        "model": name,
        "what": what,
        "batch": batch,
        "timm_ms": theirs * 1e3,
        "ours_ms": ours * 1e3,
        "ratio": theirs / ours,
        "share_of_peak": share,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="+", help="networks that both sides have")
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 8])
    parser.add_argument("--size", type=int, default=224)
    parser.add_argument("--turns", type=int, default=21)
    parser.add_argument("--threads", type=int, default=None)
    parser.add_argument("--allocator", choices=["default", "keep"], default="keep", help="keep: as the command line sets it")
    parser.add_argument("--no-memory", action="store_true")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--memory-of", choices=["timm", "ours"], help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.threads:
        torch.set_num_threads(args.threads)
    if args.memory_of:
        print(memory_of(args.memory_of, args.names[0], args.batches[0], args.size))
        return
    if args.allocator == "keep":
        keep_freed_memory()
    peak = peak_flops()
    print(f"peak of a matrix product: {peak / 1e9:.0f} GFLOP/s with {torch.get_num_threads()} threads; allocator: {args.allocator}")
    rows: list[dict[str, Any]] = []
    for name in args.names:
        for batch in args.batches:
            rows.append(compare(name, batch, args.size, "forward", args.turns * (2 if batch == 1 else 1), peak))
            show(rows[-1])
        rows.append(compare(name, max(args.batches), args.size, "training step", max(args.turns // 2, 5), peak))
        if not args.no_memory:
            memory = {f"{side}_mib": peak_memory(side, name, max(args.batches), args.size) for side in ("timm", "ours")}
            rows[-1] |= memory | {"memory_ratio": memory["ours_mib"] / memory["timm_mib"]}
        show(rows[-1])
    if args.out:
        about = {
            "torch": torch.__version__,
            "timm": timm.__version__,
            "python": platform.python_version(),
            "threads": torch.get_num_threads(),
        }
        args.out.parent.mkdir(parents=True, exist_ok=True)
        args.out.write_text(json.dumps(about | {"allocator": args.allocator, "peak_gflops": peak / 1e9, "rows": rows}, indent=1) + "\n")


def show(row: dict[str, Any]) -> None:
    memory = f", memory {row['ours_mib']:.0f} of {row['timm_mib']:.0f} MiB" if "ours_mib" in row else ""
    print(
        f"{row['model']:14} {row['what']:13} batch {row['batch']}: timm {row['timm_ms']:7.1f} ms, ours {row['ours_ms']:7.1f} ms, "
        f"ratio {row['ratio']:.2f}, {row['share_of_peak']:.0%} of peak{memory}",
        flush=True,
    )


if __name__ == "__main__":
    main()
