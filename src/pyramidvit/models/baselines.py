"""Any backbone of timm behind the same contract, for comparisons that are fair: `timm/resnet50`, `timm/swin_tiny_patch4_window7_224` …

https://github.com/huggingface/pytorch-image-models. Networks start from random weights, as ours do: nothing is downloaded. Those with maps
at strides 4, 8, 16 and 32 give them as they are. Those with one scale get a simple feature pyramid (ViTDet, Li et al. 2022,
https://arxiv.org/abs/2203.16527) in front of a head that takes maps: transposed convolutions for finer maps, max pooling for coarser ones.
What timm leaves to its users, such as the sizes that a network takes, is found out on the meta device. Drop path is off unless asked for.
Shapes: B batch, C channels, H W pixels, D embedding.
"""

import fnmatch
import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from types import ModuleType
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from pyramidvit.errors import UserError, nearest
from pyramidvit.models.feature_pyramid import FeaturePyramid
from pyramidvit.models.layers import Backbone, FeatureInfo

PREFIX = "timm/"
STRIDES = (4, 8, 16, 32)
STEPS = (1, 2, 4, 8, 16, 32)
ANY_SIZE = {"dynamic_img_size": True, "dynamic_img_pad": True, "strict_img_size": False}
"""What makes timm's networks take any size, each where the network knows it."""


def import_timm() -> ModuleType:
    """timm, or a UserError that tells how to get it."""
    try:
        import timm  # noqa: PLC0415
    except ImportError:
        raise UserError("Networks named timm/… need timm: pip install 'pyramidvit[timm]'.") from None
    return timm


def list_names(pattern: str) -> list[str]:
    """Names ``timm/…`` that match a shell-style pattern."""
    return fnmatch.filter((PREFIX + name for name in import_timm().list_models()), pattern)


def known(name: str) -> str:
    """timm's own name of ``timm/<name>``. UserError with the nearest names when timm has none such, addresses of files included."""
    timm, bare = import_timm(), name.removeprefix(PREFIX)
    if not timm.is_model(bare):
        close = nearest(bare, timm.list_models())
        hint = f"; did you mean {' or '.join(PREFIX + other for other in close)}?" if close else "."
        raise UserError(f"timm has no network {bare!r}{hint} `pyramidvit models 'timm/*'` lists all.")
    return bare


@dataclass(frozen=True)
class Survey:
    """What a network of timm is like."""

    settings: Mapping[str, Any]
    """Arguments that make it take any size."""
    accepts: frozenset[str]
    """Names of all its arguments."""
    size: tuple[int, int]
    """Height and width that it is made for."""
    step: int | None
    """Sizes that it takes are multiples of this; None: only its own size."""
    levels: tuple[int, ...]
    """Numbers of the intermediate results at strides 4, 8, 16 and 32, or of the last one where all have the same stride."""
    stride: int | None
    """Of the only scale; None where there are four."""
    channels: tuple[int, ...]
    """Of the levels."""
    width: int
    """Length of the embedding."""
    keys: frozenset[str]
    """Names of all tensors of the whole network without its last layer."""
    stages: Mapping[str, int]
    """First of four stages that a parameter has a part in."""


@cache
def survey(name: str) -> Survey:
    """Build a network without memory and look at it. UserError when its maps have other strides than ours."""
    with torch.device("meta"):
        timm = import_timm()
        kind = type(timm.create_model(name, num_classes=0))
        accepts = frozenset(key for base in kind.__mro__ if base is not nn.Module for key in inspect.signature(base.__init__).parameters)
        settings = {key: value for key, value in ANY_SIZE.items() if key in accepts}
        net: Any = timm.create_model(name, num_classes=0, **settings).eval()
        size: tuple[int, int] = net.pretrained_cfg["input_size"][1:]
        info = net.feature_info if isinstance(net.feature_info, list) else net.feature_info.info
        levels, stride = _levels(name, [entry["reduction"] for entry in info])
        last = levels[-1]
        four = levels if stride is None else [max((last + 1) * part // 4 - 1, 0) for part in (1, 2, 3, 4)]
        with torch.enable_grad():
            maps = _maps(net, torch.empty(1, 3, *size), four)
        with torch.no_grad():
            width = net(torch.empty(1, 3, *size)).shape[-1]
    stages = {key: 3 for key, _ in net.named_parameters()}
    for stage in (3, 2, 1, 0):
        behind = _parameters_behind(maps[stage])
        stages |= {key: stage for key, parameter in net.named_parameters() if parameter in behind}
    channels = tuple(x.shape[1] for x in (maps if stride is None else maps[-1:]))
    any_size = settings or not net.pretrained_cfg.get("fixed_input_size")
    step = (
        _step(net, levels, channels) if any_size else None
    )  # without memory some would take what they can't, so their own word counts, too
    return Survey(settings, accepts, size, step, tuple(levels), stride, channels, width, frozenset(net.state_dict()), stages)


def _levels(name: str, reductions: Sequence[int]) -> tuple[list[int], int | None]:
    """Intermediate results to take, and their stride where there is only one."""
    last = {reduction: number for number, reduction in enumerate(reductions)}
    if all(stride in last for stride in STRIDES):
        return [last[stride] for stride in STRIDES], None
    if len(last) == 1:
        return [len(reductions) - 1], reductions[0]
    raise UserError(f"timm/{name} has maps at strides {sorted(last)}; a baseline needs {list(STRIDES)}, or one scale. Choose another one.")


def _maps(net: Any, x: Tensor, levels: Sequence[int]) -> list[Tensor]:
    """Intermediate results, channels first."""
    return net.forward_intermediates(x, indices=list(levels), intermediates_only=True, output_fmt="NCHW")


def _parameters_behind(x: Tensor) -> set[Tensor]:
    """All parameters that a result depends on, read from its graph."""
    found, seen, todo = set[Tensor](), set[Any](), [x.grad_fn]
    while todo:
        node: Any = todo.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        if hasattr(node, "variable"):
            found.add(node.variable)
        todo += [following for following, _ in node.next_functions]
    return found


def _step(net: Any, levels: Sequence[int], channels: Sequence[int]) -> int | None:
    """The finest grid of sizes that a network takes and gives proper maps for."""
    for step in STEPS:
        x = torch.empty(1, 3, 32 + step, 32 + 3 * step, device="meta")
        try:
            with torch.no_grad():
                maps = _maps(net, x, levels)
                net(x)
        except (AssertionError, RuntimeError, ValueError):  # how timm's networks refuse a size
            continue
        if [m.shape[1] for m in maps] == list(channels):  # hybrids mix the axes up where they pad
            return step
    return None


class TimmBackbone(Backbone):
    """A network of timm, in ``net``. Sizes that it doesn't take are padded on the right and below, and maps cut to ceil(side / stride).

    Where one scale is all there is, a pyramid is built for maps and none with ``classify``.
    """

    classify_only = ("pyramid.",)
    """Rather what ``classify`` does without: files of classifiers lack it."""

    def __init__(
        self,
        name: str,
        in_chans: int = 3,
        out_indices: Sequence[int] | None = None,
        drop_path_rate: float | None = None,
        classify: bool = False,
    ) -> None:
        super().__init__(in_chans, out_indices, classify, (1, 1, 1, 1))  # timm counts depths, see depth_of
        timm, found = import_timm(), survey(name)
        settings = dict(found.settings)
        if drop_path_rate is not None:
            if "drop_path_rate" not in found.accepts:
                raise UserError(f"timm/{name} has no drop path: leave drop_path_rate out.")
            settings["drop_path_rate"] = drop_path_rate
        self.name, self.survey = PREFIX + name, found
        self.net: Any = timm.create_model(name, pretrained=False, in_chans=in_chans, num_classes=0, **settings)
        strides = [STRIDES[i] for i in self.out_indices]
        self.pyramid: FeaturePyramid | None = None
        if found.stride is None:
            self.levels, channels = [found.levels[i] for i in self.out_indices], [found.channels[i] for i in self.out_indices]
        else:
            self.levels, channels = list(found.levels), [found.channels[0]] * len(strides)
            if not classify:
                self.pyramid = FeaturePyramid(found.channels[0], _power_of_two(name, found.stride), strides)
                channels = self.pyramid.channels
        if not classify:
            self.levels = list(self.net.prune_intermediate_layers(self.levels, prune_norm=True, prune_head=True))
        self.feature_info = tuple(FeatureInfo(*info) for info in zip(channels, strides, strict=True))
        self.width, self.input_shape = found.width, (in_chans, *found.size)
        self._depths = _depths(timm, self.net, found.stages)

    def forward(self, x: Float[Tensor, "B C H W"]) -> list[Float[Tensor, "B _ _ _"]]:
        H, W = x.shape[-2:]
        maps = self._run(x, lambda padded: _maps(self.net, padded, self.levels))
        if self.survey.stride is not None:
            if self.pyramid is None:
                raise ValueError(f"{self.name} has one scale and was built to classify; build it with features_only=True for maps.")
            maps = self.pyramid(maps[-1])
        elif self.survey.step == 1:
            return maps
        return [m[..., : -(-H // info.stride), : -(-W // info.stride)] for m, info in zip(maps, self.feature_info, strict=True)]

    def embed(self, x: Float[Tensor, "B C H W"]) -> Float[Tensor, "B D"]:
        self.check_classify()
        return self._run(x, self.net)

    def _run(self, x: Tensor, what: Callable[[Tensor], Any]) -> Any:
        """Do it to pictures of a size that the network takes."""
        self.check_input(x)
        H, W = x.shape[-2:]
        self.check_size((H, W))
        step = self.survey.step or 1
        return what(F.pad(x, (0, -W % step, 0, -H % step)) if step > 1 else x)

    def check_size(self, size: tuple[int, int]) -> None:
        if self.survey.step is None and size != self.survey.size:
            own, got = ("{}x{}".format(*sides) for sides in (self.survey.size, size))
            raise UserError(f"{self.name} takes pictures of {own} only, got {got}: set the size to {own}, or choose another network.")

    def own_names(self, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Of a file of ours, whole or a bare backbone, or of timm's, whose last layer is our head."""
        if any(key.startswith("backbone.net.") for key in tensors):
            return dict(tensors)
        if any(key.startswith("net.") for key in tensors):
            return {f"backbone.{key}": tensor for key, tensor in tensors.items()}
        heads = self.net.pretrained_cfg["classifier"]
        head = heads if isinstance(heads, str) else heads[0]
        last = {f"{head}.{part}": f"head.{part}" for part in ("weight", "bias")}
        return {last.get(key, f"backbone.net.{key}"): tensor for key, tensor in tensors.items()}

    def leaves_out(self, parameter: str) -> bool:
        return parameter.removeprefix("net.") in self.survey.keys and parameter not in self.state_dict()

    @property
    def num_depths(self) -> int:
        return 1 + max(self._depths.values())

    def depth_of(self, parameter: str) -> int:
        return self._depths.get(parameter.removeprefix("net."), self.num_depths - 1)

    def stage_of(self, parameter: str) -> int:
        return self.survey.stages.get(parameter.removeprefix("net."), 3)

    def set_grad_checkpointing(self, on: bool = True) -> None:
        try:
            self.net.set_grad_checkpointing(on)
        except AssertionError:  # how timm's networks say so
            raise UserError(f"{self.name} can't recompute activations: leave grad_checkpointing out.") from None
        self.checkpointing = on

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> "TimmBackbone":
        """Also compute anew, when a network without memory gets some, the constants that no file holds."""
        without_memory = any(buffer.is_meta for buffer in self.buffers())
        super()._apply(fn, recurse)
        if without_memory and not any(buffer.is_meta for buffer in self.buffers()):
            import_timm().models._manipulate.reinit_non_persistent_buffers(self.net)
        return self


def _power_of_two(name: str, stride: int) -> int:
    if stride not in STRIDES:
        raise UserError(f"timm/{name} has patches of {stride} pixels, which make no maps at strides {list(STRIDES)}; choose one of those.")
    return stride


def _depths(timm: ModuleType, net: Any, stages: Mapping[str, int]) -> dict[str, int]:
    """Place of every parameter from input to output as timm counts it, by stage where it doesn't."""
    if not hasattr(net, "group_matcher"):
        return {key: stages[key] for key, _ in net.named_parameters()}
    return timm.models.group_parameters(net, net.group_matcher(coarse=False), reverse=True)
