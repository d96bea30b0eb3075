"""Our networks beside another implementation with the same weights: time, share of the machine's peak, peak memory.

PVT v2 is compared with timm's, PVT with Transformers', MViT with torchvision's (at 224x224 only). Both sides take turns in one process
after warm-up; a number is the median. Peak memory is measured in a fresh process, as by `pyramidvit bench`. Run on a quiet machine:

    python benchmarks/backbones.py pvt_v2_b0 pvt_v2_b2 pvt_small --out benchmarks/results/backbones.json
    python benchmarks/backbones.py mvit_base_16x4 mvitv2_small_16x4 --batches 1 --turns 7 --out benchmarks/results/clips.json
"""

import argparse
import json
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from pyramidvit import create_model
from pyramidvit.bench.compare import Comparison, compare
from pyramidvit.bench.measure import Contestant, Named
from pyramidvit.cpu import keep_freed_memory
from pyramidvit.weights import load

TORCHVISION = {"mvit_base_16x4": "mvit_v1_b", "mvitv2_small_16x4": "mvit_v2_s"}


class Logits(nn.Module):
    """Transformers' network with a tensor as its answer."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x).logits


@dataclass(frozen=True)
class Peer:
    """The other implementation of one of our networks, for square pictures of a size."""

    name: str
    size: int

    @property
    def library(self) -> str:
        return "torchvision" if self.name in TORCHVISION else "timm" if self.name.startswith("pvt_v2") else "transformers"

    def __call__(self) -> nn.Module:
        if self.library == "torchvision":
            from torchvision.models import video  # noqa: PLC0415

            return getattr(video, TORCHVISION[self.name])()
        if self.library == "timm":
            import timm  # noqa: PLC0415

            return timm.create_model(self.name)
        import transformers  # noqa: PLC0415

        depths = create_model(self.name).backbone.published_depths
        config = transformers.PvtConfig(depths=list(depths), image_size=self.size, num_labels=1000)
        return Logits(transformers.PvtForImageClassification(config))


def ours(peer: Peer) -> nn.Module:
    """Our network with the weights that the other one has after the same seed."""
    torch.manual_seed(0)
    theirs = peer()
    model = create_model(peer.name)
    load(model, (theirs.net if isinstance(theirs, Logits) else theirs).state_dict())
    return model


def measure(name: str, batch: int, size: int, *, train: bool, turns: int, memory: bool) -> dict[str, Any]:
    """One row: medians of both sides, their ratio, what share of the peak ours uses and, in training, peak memory."""
    peer, shape = Peer(name, size), Named(name).shape((size, size), batch)
    pair = [Contestant("theirs", peer, shape, train=train), Contestant("ours", partial(ours, peer), shape, train=train)]
    return row(name, peer.library, compare(pair, ["theirs"], rounds=turns, memory=memory))


def row(name: str, library: str, result: Comparison) -> dict[str, Any]:
    theirs, mine = result.rows
    content: dict[str, Any] = {
        "model": name,
        "beside": f"{library} {version(library)}",
        "what": "forward and backward" if result.train else "forward",
        "shape": list(mine.shape),
        "theirs_ms": theirs.p50 * 1e3,
        "ours_ms": mine.p50 * 1e3,
        "ratio": result.ratio(mine, "theirs"),
        "share_of_peak": mine.share_of(result.peak),
        "spread": max(theirs.spread, mine.spread),
    }
    if mine.memory_mib is not None and theirs.memory_mib is not None:
        ratio = mine.memory_mib / theirs.memory_mib
        content |= {"theirs_mib": theirs.memory_mib, "ours_mib": mine.memory_mib, "memory_ratio": ratio}
    return content | {"peak_gflops": result.peak / 1e9, "machine": result.machine, "warnings": list(result.warnings)}


def show(row: dict[str, Any]) -> None:
    memory = f", memory {row['ours_mib']:.0f} of {row['theirs_mib']:.0f} MiB ({row['memory_ratio']:.2f})" if "ours_mib" in row else ""
    print(
        f"{row['model']:17} {row['what']:20} {'x'.join(map(str, row['shape']))}: {row['beside'].split()[0]} {row['theirs_ms']:.1f} ms, "
        f"ours {row['ours_ms']:.1f} ms, ratio {row['ratio']:.2f}, {row['share_of_peak']:.0%} of {row['peak_gflops']:.0f} GFLOP/s{memory}",
        *row["warnings"],
        sep="\n    ",
        flush=True,
    )


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
    args = parser.parse_args()
    if args.threads:
        torch.set_num_threads(args.threads)
    if args.allocator == "keep":
        keep_freed_memory()
    rows: list[dict[str, Any]] = []
    for name in args.names:
        for batch in args.batches:
            turns = args.turns * (2 if batch == 1 and len(args.batches) > 1 else 1)
            rows.append(measure(name, batch, args.size, train=False, turns=turns, memory=False))
            show(rows[-1])
        turns = max(args.turns // 2, min(args.turns, 5))
        rows.append(measure(name, max(args.batches), args.size, train=True, turns=turns, memory=not args.no_memory))
        show(rows[-1])
    if args.out:
        args.out.parent.mkdir(parents=True, exist_ok=True)
        args.out.write_text(json.dumps({"allocator": args.allocator, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
