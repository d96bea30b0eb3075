"""What a key map is and how it is read, in both directions.

A map's left side is the published name, its right side ours, both of a backbone. ``{S}`` counts stages from 1, ``{s}`` from 0; ``{j}``
counts the blocks of a stage from 0, ``{k}`` from 1, and ``{i}`` those of the whole network; ``.weight``, ``.bias`` and the like may
follow. Brackets name a part of a tensor: ``[first]`` the first row of a table (1, N, C), which is the class token's, and ``[others]`` the
rows after it; ``[0-0/2]`` the first half of a linear layer's rows, ``[1-2/3]`` the last two thirds.
"""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate

import torch
import torch.nn.functional as F
from torch import Tensor

from pyramidvit.errors import UserError

TABLES = ("class_token", "class_position", "positions", "frame_positions")
"""Ours that published files hold as rows (1, N, C)."""

WIDTHS = "stages.{s}.blocks.{j}.attn.proj"
"""Ours; its rows are the width of a block, which doubles where a stage begins."""

Depths = tuple[int, ...]
"""Blocks per stage."""

_NUMBERS = {name: rf"(?P<{name}>0|[1-9][0-9]{{0,3}})" for name in "Ssijk"}
_END = r"(?P<end>(?:\.weight|\.bias|\.running_mean|\.running_var|\.num_batches_tracked)?)"


@dataclass(frozen=True)
class Layout:
    """How the files of one library name a family's tensors. Shapes there differ from ours by axes of length 1 at most, once tables are rows
    and parts are put together."""

    name: str
    library: str
    """What `--layout` calls it; layouts for several families may share one."""
    anchor: str
    """The first convolution's weight, which every file has: what stands before it in a file stands before all names of the backbone."""
    names: Mapping[str, str]
    head: Mapping[str, str]
    """The classifier's names, before which no prefix stands."""
    marks: tuple[str, ...] = ()
    """Names that a file needs besides the anchor, to tell layouts with the same one apart."""
    prefix: str = ""
    """What stands before the backbone's names in whole networks of the library."""
    wrapper: str | None = None
    """Under which key the library's own files keep the tensors."""
    dense: bool = False
    """Whether detectors and segmentors made with OpenMMLab's heads hold such backbones, as ``backbone.…``."""
    axes: Mapping[str, int] = field(default_factory=dict)
    """Endings of published names, and how many axes such a tensor has; those it lacks, of length 1, come after the second."""
    bare_rows: bool = False
    """Tables are published without axes of length 1."""
    patch_eps: float | None = None
    """Epsilon of PVT's norms after patches and after reduction that weights of this layout were trained with."""
    without: tuple[str, ...] = ()
    """Beginnings of names of ours that the library's files never hold, being a classifier's."""
    dropped: Mapping[str, str] = field(default_factory=dict)
    """Published names that our networks have no place for, and why."""

    def prefixes(self, tensors: Mapping[str, Tensor]) -> list[str]:
        """What stands before the backbone's names in a file: nothing in most, several things where it holds several such networks."""
        found = [key.removesuffix(self.anchor) for key in tensors if key == self.anchor or key.endswith("." + self.anchor)]
        return [prefix for prefix in found if all(prefix + mark in tensors for mark in self.marks)]

    def shaped(self, tensors: Mapping[str, Tensor]) -> bool:
        """Whether the tensors of a file have as many axes as this layout gives them."""
        return all(t.ndim == count for key, t in tensors.items() for end, count in self.axes.items() if key.endswith(end))

    def to_ours(self, tensors: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], list[str]]:
        """A backbone's tensors, without the prefix, under our names, and the keys that the map doesn't know. Shapes may still differ from
        ours by axes of length 1, and tables are rows where ours are grids."""
        widths = next(theirs for theirs, ours in self.names.items() if ours == WIDTHS)
        tables = {theirs.removesuffix("[first]") for theirs in self.names if theirs.endswith("[first]")}
        cut = {f"{key}[others]" if key in tables and _lost_its_first(tensors, key) else key: tensor for key, tensor in tensors.items()}
        return rename(cut, list(self.names.items()), depths_of(tensors, widths))

    def from_ours(self, tensors: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], list[str]]:
        """Our backbone's tensors under the published names and in the published shapes, and the keys of ours that the map doesn't know."""
        rows = {key: tensor.reshape(1, -1, tensor.shape[-1]) if key.split(".")[-1] in TABLES else tensor for key, tensor in tensors.items()}
        renamed, unknown = rename(rows, [(ours, theirs) for theirs, ours in self.names.items()], depths_of(tensors, WIDTHS))
        if self.bare_rows:
            renamed |= {key: tensor.flatten() if "class" in key else tensor[0] for key, tensor in renamed.items() if tensor.ndim == 3}
        return {key: self._with_axes(key, tensor) for key, tensor in renamed.items()}, unknown

    def _with_axes(self, key: str, tensor: Tensor) -> Tensor:
        count = next((count for end, count in self.axes.items() if key.endswith(end)), tensor.ndim)
        if key == self.anchor:  # pictures and clips differ in it: nothing to be made up
            return tensor
        return tensor.reshape(*tensor.shape[:2], *[1] * (count - tensor.ndim), *tensor.shape[2:])


def _lost_its_first(tensors: Mapping[str, Tensor], table: str) -> bool:
    """Whether a table has no row for a class token: a backbone without one may keep the row, and then its rows fill no square."""
    rows = tensors[table].shape[-2:-1]  # none where the table is none at all
    return len(rows) == 1 and "cls_token" not in tensors and math.isqrt(rows[0]) ** 2 == rows[0]


def depths_of(tensors: Mapping[str, Tensor], widths: str) -> Depths:
    """Blocks per stage, as their names say, or where those count through the network, their widths."""
    pattern = re.compile(_pattern(f"{widths}.weight"))
    found = [(match.groupdict(), len(tensors[key])) for key in tensors if (match := pattern.fullmatch(key))]
    if "{i}" in widths:
        stages = [width for _, width in found]
    else:
        stages = [int(numbers["S"]) if "S" in numbers else int(numbers["s"]) for numbers, _ in found]
    return tuple(stages.count(stage) for stage in sorted(set(stages)))


def rename(tensors: Mapping[str, Tensor], names: Sequence[tuple[str, str]], depths: Depths) -> tuple[dict[str, Tensor], list[str]]:
    """Tensors under the names on the right, and the names that have no map, or that of another tensor; of several maps of a name the first
    counts."""
    rules = [(re.compile(_pattern(source)), target) for source, target in names]
    renamed: dict[str, Tensor] = {}
    unknown: list[str] = []
    for key, tensor in _split(tensors, [source for source, _ in names]).items():
        found = next(((match, target) for pattern, target in rules if (match := pattern.fullmatch(key))), None)
        name = None if found is None else _fill(found[1], found[0], depths)
        if name is None or name in renamed:
            unknown.append(key)
        else:
            renamed[name] = tensor
    return _join(renamed), unknown


def _split(tensors: Mapping[str, Tensor], names: Sequence[str]) -> dict[str, Tensor]:
    """Tensors that are named in parts become these parts."""
    parts: dict[str, list[str]] = {}
    for base, part in map(_apart, names):
        if part:
            parts.setdefault(_pattern(base), []).append(part)
    split: dict[str, Tensor] = {}
    for key, tensor in tensors.items():
        found = next((found for pattern, found in parts.items() if re.fullmatch(pattern, key)), [])
        split |= {key + part: _cut(tensor, part) for part in found} if found else {key: tensor}
    return split


def _join(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Parts put together. A table without a class token's row gets one of zeros, which no network without a class token reads."""
    parts: dict[str, dict[str, Tensor]] = {}
    for key, tensor in tensors.items():
        base, part = _apart(key)
        parts.setdefault(base, {})[part] = tensor
    joined: dict[str, Tensor] = {}
    for key, found in parts.items():
        ordered = [found[part] for part in sorted(found)]
        if list(found) == ["[others]"]:
            joined[key] = F.pad(ordered[0], (0, 0, 1, 0))
        elif len(ordered) == 1:
            joined[key] = ordered[0]
        else:
            joined[key] = _put_together(key, ordered, 1 if "[first]" in found else 0)
    return joined


def _put_together(key: str, parts: Sequence[Tensor], axis: int) -> Tensor:
    if len({(*part.shape[:axis], *part.shape[axis + 1 :]) for part in parts}) > 1 or min(part.ndim for part in parts) <= axis:
        shapes = ", ".join(str(tuple(part.shape)) for part in parts)
        raise UserError(f"The parts that make {key} here have the shapes {shapes}, which don't fit together: the file is damaged.")
    return torch.cat([*parts], axis)


def _apart(name: str) -> tuple[str, str]:
    """A name and the part of that tensor, in brackets, if one is named."""
    base, bracket, part = name.partition("[")
    return base, bracket + part


def _cut(tensor: Tensor, part: str) -> Tensor:
    if part in ("[first]", "[others]"):
        if tensor.ndim < 2:  # no table, which is found out where it should be one
            return tensor
        return tensor[..., :1, :] if part == "[first]" else tensor[..., 1:, :]
    first, last, count = (int(number) for number in re.findall(r"\d+", part))
    size = -(-len(tensor) // count)
    return tensor[first * size : (last + 1) * size]


def _pattern(template: str) -> str:
    base, part = _apart(template)
    return re.sub(r"\\{(\w)\\}", lambda m: _NUMBERS[m[1]], re.escape(base)) + _END + re.escape(part)


def _fill(template: str, match: re.Match[str], depths: Depths) -> str:
    """A name with the numbers that another one had."""
    found = {name: int(number) for name, number in match.groupdict().items() if name != "end"}
    starts = [0, *accumulate(depths)]
    if "i" in found:
        stage = max((s for s, start in enumerate(starts[:-1]) if start <= found["i"]), default=0)
        found |= {"s": stage, "j": found["i"] - starts[stage]}
    stage = found["S"] - 1 if "S" in found else found.get("s", 0)
    block = found["k"] - 1 if "k" in found else found.get("j", 0)
    base, part = _apart(template)
    return base.format(S=stage + 1, s=stage, j=block, k=block + 1, i=starts[min(stage, len(depths))] + block) + match["end"] + part
