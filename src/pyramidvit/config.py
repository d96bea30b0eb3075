"""Everything a run can be told, in one place: the text under a field is its help, its documentation and its schema."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, cast

import yaml
from cyclopts import Parameter
from pydantic import AfterValidator, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator
from pydantic_core import PydanticCustomError

from pyramidvit.errors import UserError

Share = Annotated[float, Field(ge=0, le=1)]
Count = Annotated[int, Field(ge=1)]
Positive = Annotated[float, Field(gt=0)]
Momentum = Annotated[float, Field(ge=0, lt=1)]


def parse_size(value: Any) -> Any:
    """'512x640' → (512, 640) and '224' → (224, 224), from the command line or a file; pairs stay as they are."""
    given = cast(Sequence[Any], value) if isinstance(value, list | tuple) else (value,)
    if len(given) == 2:
        return given
    match = re.fullmatch(r"(\d+)(?:x(\d+))?", str(*given))
    if not match:
        raise PydanticCustomError("size", "expected height x width, such as 224x224 or 512x640")
    return int(match[1]), int(match[2] or match[1])


def show_size(size: tuple[int, int]) -> str:
    """(512, 640) → '512x640'."""
    return f"{size[0]}x{size[1]}"


Size = Annotated[
    tuple[Annotated[int, Field(ge=32)], Annotated[int, Field(ge=32)]],
    BeforeValidator(parse_size),
    Parameter(metavar="HxW", n_tokens=1, show_default=show_size),
]


def in_order(pair: tuple[float, float]) -> tuple[float, float]:
    """The pair, if the first value is not above the second."""
    if pair[0] > pair[1]:
        raise PydanticCustomError("order", "the first value must not be above the second")
    return pair


def rising(pair: tuple[float, float]) -> tuple[float, float]:
    """The pair, if the first value is below the second."""
    if pair[0] >= pair[1]:
        raise PydanticCustomError("rising", "the first value, which becomes 0, must be below the second, which becomes 1")
    return pair


PerChannel = Parameter(consume_multiple=1)
"""One flag takes as many values as follow it, at least one."""


class Section(BaseModel):
    """A group of settings; unknown keys, infinite numbers and NaN are errors, nothing at all is no settings."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True, allow_inf_nan=False)

    @model_validator(mode="before")
    @classmethod
    def _holds_settings(cls, value: Any) -> Any:
        if value is None:  # 'optim:' with nothing below it
            return {}
        if not isinstance(value, Mapping | cls):
            raise PydanticCustomError("section", "expected settings below it, one 'name: value' per line")
        return cast(Any, value)


@Parameter(name="*", group="Data")
class DataConfig(Section):
    val_share: Annotated[float, Field(gt=0, lt=1)] = 0.2
    """Share of each class held out for validation when the data has no val split of its own."""
    in_chans: Count = 3
    """Channels of the network's input: 1 converts to grey, 3 to RGB, any other number keeps the bands of the file."""
    value_range: Annotated[tuple[float, float], AfterValidator(rising)] | None = None
    """Values of 16-bit, integer and float pictures that map to 0 and 1; the full range of the file's type if not given."""
    mean: Annotated[tuple[float, ...] | None, PerChannel] = None
    """Mean per channel, on values from 0 to 1; ImageNet's if not given."""
    std: Annotated[tuple[Positive, ...] | None, PerChannel] = None
    """Standard deviation per channel, on values from 0 to 1; ImageNet's if not given."""
    orientation: bool = True
    """Turn pictures upright by their EXIF orientation tag."""
    max_pixels: Count = 178_956_970
    """Pictures that claim more pixels than this are refused before they are decoded."""
    on_bad_sample: Literal["error", "skip"] = "error"
    """What to do when a file can't be read while training or evaluating: stop, or leave it out and count it."""
    max_bad_share: Share = 0.05
    """With on_bad_sample skip: stop all the same when more than this share of the samples seen was bad."""
    workers: Annotated[int, Field(ge=0)] | None = None
    """Processes that read pictures; chosen from the number of cores if not given."""


@Parameter(name="*", group="Model")
class ModelConfig(Section):
    name: Annotated[str, Parameter(name=["--model", "-m"])] = "pvt_v2_b0"
    """Network; `pyramidvit models` lists the names."""
    drop_path_rate: Share | None = None
    """Share of residual branches dropped in the last block, growing linearly from 0; the published value if not given."""
    weights: str | None = None
    """Weights file to start from; random if not given."""
    freeze: Annotated[int, Field(ge=0, le=4)] = 0
    """Number of stages, from the stem on, that are not trained."""
    grad_checkpointing: bool = False
    """Recompute activations in the backward pass: less memory, more time, the same result."""


@Parameter(name="*", group="Augmentation")
class AugmentConfig(Section):
    size: Size = (224, 224)
    """Height x width of the network's input, such as 224x224."""
    crop: Annotated[float, Field(gt=0, le=1)] = 0.875
    """Share of the resized picture that the centre crop keeps in evaluation."""
    interpolation: Literal["bilinear", "bicubic"] = "bicubic"
    """How pictures are resized."""
    crop_scale: Annotated[tuple[Share, Annotated[float, Field(gt=0, le=1)]], AfterValidator(in_order)] = (0.08, 1.0)
    """Smallest and largest area of random crops in training, as shares of the picture."""
    crop_ratio: Annotated[tuple[Positive, Positive], AfterValidator(in_order)] = (0.75, 4 / 3)
    """Least and greatest width by height of random crops in training, relative to the input's: 1 has the shape of `size`."""
    hflip: Share = 0.5
    """Probability of a left-right flip."""
    vflip: Share = 0.0
    """Probability of an up-down flip."""
    rand_ops: Annotated[int, Field(ge=0)] = 2
    """RandAugment operations per picture, each carried out with probability one half, as published; 0 switches it off."""
    rand_magnitude: Annotated[int, Field(ge=0, le=10)] = 9
    """Strength of RandAugment, 0 to 10."""
    rand_magnitude_std: Annotated[float, Field(ge=0)] = 0.5
    """Standard deviation of RandAugment's strength from one picture to the next."""
    erasing: Share = 0.25
    """Probability that a rectangle is replaced by noise."""
    mixup: Annotated[float, Field(ge=0)] = 0.8
    """Alpha of mixup; 0 switches it off."""
    cutmix: Annotated[float, Field(ge=0)] = 1.0
    """Alpha of CutMix; 0 switches it off."""
    mix_prob: Share = 1.0
    """Probability that a batch is mixed at all."""
    cutmix_share: Share = 0.5
    """Of the mixed batches, the share that gets CutMix when mixup is on too."""
    smoothing: Annotated[float, Field(ge=0, lt=1)] = 0.1
    """Label smoothing."""
    repeats: Count = 1
    """Views of each picture per epoch batch (repeated augmentation); an epoch stays as long as the data."""


@Parameter(name="*", group="Optimiser")
class OptimConfig(Section):
    lr: Positive = 1e-3
    """Learning rate at the reference batch; it is scaled in proportion to the batch and the result is printed."""
    reference_batch: Count = 128
    """Batch that `lr` is stated for."""
    weight_decay: Annotated[float, Field(ge=0)] = 0.05
    """Weight decay of AdamW; biases, norms and other 1-D parameters have none."""
    betas: tuple[Momentum, Momentum] = (0.9, 0.999)
    """Momentum terms of AdamW."""
    eps: Positive = 1e-8
    """Epsilon of AdamW."""
    warmup_epochs: Annotated[float, Field(ge=0)] = 5
    """Epochs over which the learning rate grows linearly."""
    warmup_lr: Annotated[float, Field(ge=0)] = 1e-6
    """Learning rate of the very first step, not scaled."""
    min_lr: Annotated[float, Field(ge=0)] = 1e-5
    """Learning rate at the end of the cosine, not scaled; at most the scaled learning rate is used."""
    layer_decay: Annotated[float, Field(gt=0, le=1)] = 1.0
    """Factor on the learning rate from each block to the one before it; 1 trains all blocks alike."""
    clip_grad: Positive | None = None
    """Largest norm of the gradient; not limited if not given."""
    class_weights: Literal["none", "auto"] = "none"
    """auto weights each class by n / (K * n_k), the inverse of its share in the training split."""


@Parameter(name="*", group="Run")
class LoopConfig(Section):
    epochs: Count = 30
    """Passes over the training split."""
    batch_size: Annotated[int, Field(ge=1), Parameter(name=["--batch-size", "-b"])] = 32
    """Pictures per step on each process."""
    accumulate: Count = 1
    """Batches whose gradients are added up before the optimiser steps."""
    ema_decay: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """Decay of the averaged weights that are evaluated and saved; 0 switches averaging off."""
    precision: Literal["auto", "fp32", "bf16", "fp16"] = "auto"
    """Arithmetic of the forward pass; auto takes bf16 where an accelerator has it, else fp32."""
    device: Literal["auto", "cpu", "cuda", "mps"] = "auto"
    """Where to compute."""
    threads: Count | None = None
    """CPU threads; all cores if not given."""
    seed: Annotated[int, Field(ge=0, lt=2**32)] = 0
    """Seed of weights, order, augmentation and dropout: the same seed on the same machine gives the same bits on the CPU."""
    deterministic: bool = False
    """Only deterministic kernels, on accelerators too."""
    on_nonfinite: Literal["stop", "skip"] = "stop"
    """What to do when the loss is not finite: stop, or leave the step out; ten in a row always stop."""
    eval_every: Count = 1
    """Epochs between evaluations; the last epoch is always evaluated."""
    save_every: Count | None = None
    """Optimiser steps between checkpoints; one per epoch if not given."""
    keep_checkpoints: Annotated[int, Field(ge=2)] = 2
    """Newest checkpoints that are kept."""
    patience: Count | None = None
    """Stop when the headline metric has not improved for so many evaluations."""
    tensorboard: bool = False
    """Write TensorBoard events too (needs the tensorboard extra)."""


@Parameter(name="*")
class RunConfig(Section):
    """One run; written to config.yaml of the run folder and into every checkpoint and weights file."""

    task: Literal["classify"] = "classify"
    """What is learned."""
    data: DataConfig = DataConfig()
    model: ModelConfig = ModelConfig()
    augment: AugmentConfig = AugmentConfig()
    optim: OptimConfig = OptimConfig()
    loop: LoopConfig = LoopConfig()


Sources = dict[str, str]
"""Where each setting that is not a default came from, by dotted name: ``optim.lr`` → ``command line``."""


def resolve(given: RunConfig | None = None, file: Path | None = None) -> tuple[RunConfig, Sources]:
    """Merge defaults, a YAML file and what was given explicitly, in rising order of precedence."""
    layers: list[tuple[str, RunConfig]] = []
    if file is not None:
        layers.append((file.name, validate(read_yaml(file), str(file))))
    if given is not None:
        layers.append(("command line", given))
    merged: dict[str, Any] = {}
    sources: Sources = {}
    for source, settings in layers:
        for section, values in settings.model_dump(exclude_unset=True).items():
            if isinstance(values, dict):
                group = cast(dict[str, Any], values)
                merged.setdefault(section, {}).update(group)
                sources.update({f"{section}.{key}": source for key in group})
            else:
                merged[section] = values
                sources[section] = source
    return validate(merged, str(file or "the command line")), sources


def validate(settings: Mapping[str, Any], where: str) -> RunConfig:
    """Settings as plain data → RunConfig, or a UserError that lists every wrong key and value."""
    try:
        return RunConfig.model_validate(settings)
    except ValidationError as error:
        lines = [f"  {'.'.join(map(str, e['loc']))}: {e['msg'].lower()}, got {e['input']!r}" for e in error.errors()]
        raise UserError(f"Settings from {where} are wrong:\n" + "\n".join(lines)) from None


def read_yaml(path: Path) -> dict[str, Any]:
    """A mapping from a YAML file, read without executing anything; empty if there is nothing in the file."""
    try:
        content: Any = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise UserError(f"Can't read settings from {path}: {error}") from None
    if content is None:
        return {}
    if not isinstance(content, dict):
        raise UserError(f"{path} must hold sections such as 'optim:' with settings below them, got {type(content).__name__}.")
    return content  # pyright: ignore[reportUnknownVariableType]


def read_sources(path: Path) -> Sources:
    """Where the settings in a file that ``to_yaml`` wrote came from."""
    sources: Sources = {}
    section = ""
    for line in path.read_text(encoding="utf-8").splitlines():
        name, _, rest = line.strip().partition(":")
        if not line.startswith(" "):
            section = name
        elif (source := rest.rpartition("  # ")[2]) != "default":
            sources[f"{section}.{name}"] = source
    return sources


def to_yaml(config: RunConfig, sources: Sources) -> str:
    """The resolved settings as YAML, each with its help above it and its source behind it."""
    lines = [f"task: {config.task}"]
    for section_name in ("data", "model", "augment", "optim", "loop"):
        section: Section = getattr(config, section_name)
        lines.append(f"{section_name}:")
        for key, value in section.model_dump(mode="json").items():
            text = yaml.safe_dump(value, default_flow_style=True, allow_unicode=True, width=10_000).removesuffix("...\n").strip()
            lines.append(f"  {key}: {text}  # {sources.get(f'{section_name}.{key}', 'default')}")
    return "\n".join(lines) + "\n"
