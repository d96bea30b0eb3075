"""Everything a run can be told: the text under a field is its help, its documentation and its schema."""

from typing import Annotated, Literal

from cyclopts import Parameter
from pydantic import AfterValidator, Field

from pyramidvit.config.base import Count, Momentum, Positive, Section, Several, Share, Side, Size, ValueMap, in_order, rising

TaskName = Literal["classify", "segment", "detect", "instances", "video"]


@Parameter(name="*", group="Data")
class DataConfig(Section):
    val_share: Annotated[float, Field(gt=0, lt=1)] = 0.2
    """Share of each class held out for validation when the data has no val split of its own."""
    in_chans: Count = 3
    """Channels of the network's input: 1 converts to grey, 3 to RGB, any other number keeps the bands of the file."""
    value_range: Annotated[tuple[float, float], AfterValidator(rising)] | None = None
    """Values of 16-bit, integer and float pictures that map to 0 and 1; the full range of the file's type if not given."""
    mean: Annotated[tuple[float, ...] | None, Several] = None
    """Mean per channel, on values from 0 to 1; ImageNet's if not given."""
    std: Annotated[tuple[Positive, ...] | None, Several] = None
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
    on_bad_box: Literal["error", "fix", "drop"] = "error"
    """What to do with boxes that are empty, inverted or reach out of the picture: refuse the data, mend what can be, or leave them out."""
    class_names: Annotated[tuple[str, ...] | None, Several] = None
    """Segmentation: names of the masks' values in order; from class_names.json, classes.txt or the like if not given."""
    mask_map: Annotated[tuple[ValueMap, ...], Several] = ()
    """Segmentation: what values of the masks mean, such as 255:1 where 255 is the class number 1, or 7:255 where 7 is no label."""
    reduce_zero_label: bool = False
    """Segmentation: value 0 of the masks is no class; 1 is the first one (as ADE20K has it)."""


@Parameter(name="*", group="Model")
class ModelConfig(Section):
    name: Annotated[str, Parameter(name=["--model", "-m"])] = "pvt_v2_b0"
    """Network; `pyramidvit models` lists the names. timm/NAME is any backbone of timm."""
    drop_path_rate: Annotated[float, Field(ge=0, lt=1)] | None = None
    """Share of residual branches dropped in the last block, growing linearly from 0; the published value if not given, 0 for timm's."""
    weights: str | None = None
    """Weights to start from: a file, a published name (`pyramidvit weights` lists them) or hf:owner/name; random if not given."""
    offline: Annotated[bool, Parameter(negative="")] = False
    """Use no network: published weights come from the cache only."""
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


@Parameter(name="*", group="Segmentation and detection heads")
class HeadConfig(Section):
    preset: Annotated[Literal["published", "small"], Parameter(name="--head-preset")] = "published"
    """Where a setting below is not given: as published, or narrow and shallow, for CPUs and small data."""
    width: Count | None = None
    """Channels of the feature pyramid and the head."""
    depth: Count | None = None
    """RetinaNet: convolutions before the last one."""
    norm_groups: Annotated[int, Field(ge=0)] | None = None
    """RetinaNet: groups of a GroupNorm behind each of these; 0 for none."""
    channels: Count | None = None
    """Semantic FPN: channels of the head."""
    box_hidden: Count | None = None
    """Mask R-CNN: width of the layers that read class and box of a region."""
    mask_depth: Count | None = None
    """Mask R-CNN: convolutions that read masks."""
    samples: Count | None = None
    """Mask R-CNN: regions per picture that learn."""
    proposals: Count | None = None
    """Mask R-CNN: best proposals of a picture that are kept."""
    strides: Annotated[tuple[Count, ...] | None, Several] = None
    """Levels of the pyramid: input pixels per cell, each twice the one before."""
    anchor_scale: Positive | None = None
    """Side of a level's smallest anchor, in strides; `pyramidvit check` proposes one."""
    anchor_octaves: Count | None = None
    """RetinaNet: anchor sizes per level, in equal ratios up to twice the smallest one."""
    anchor_ratios: Annotated[tuple[Positive, ...] | None, Several] = None
    """Heights of anchors divided by their widths; `pyramidvit check` proposes some."""
    score_threshold: Share | None = None
    """What is found needs a higher score."""
    nms_iou: Share | None = None
    """Of two boxes of a class that overlap more, the better one stays."""
    max_per_image: Count | None = None
    """Best detections that are kept."""


@Parameter(name="*", group="Views for segmentation and detection")
class DenseConfig(Section):
    resize: Literal["keep", "fixed"] = "keep"
    """keep: the largest size of the picture's shape that fits `short` and `long`. fixed: exactly `input_size`, whatever the shape."""
    short: Side = 800
    """keep: largest short side."""
    long: Side = 1333
    """keep: largest long side."""
    input_size: Size = (512, 512)
    """fixed: height x width."""
    multiple: Count = 1
    """Evaluation: sides are rounded up to a multiple of this, by resizing; the published segmentors use 32."""
    resampling: Literal["bilinear", "bicubic"] = "bilinear"
    """How pictures are resized for segmentation and detection."""
    antialias: bool = False
    """Average over pixels that shrinking would skip. The published networks saw pictures without."""
    shorts: Annotated[tuple[Side, ...], Several] = ()
    """Training: short sides to draw from, in place of `short`."""
    scale: Annotated[tuple[Positive, Positive], AfterValidator(in_order)] = (1.0, 1.0)
    """Training: range of the factor on the resized picture; 0.5 to 2 in the published segmentors."""
    crop_first: Share = 0.0
    """Training: probability to cut a piece out of the picture, at one of `crop_shorts`, before it is resized; 0.5 in the 3x detectors."""
    crop_shorts: Annotated[tuple[Side, ...], Several] = (400, 500, 600)
    """Short sides at which that piece is cut, without limit for the long side."""
    crop_sides: Annotated[tuple[Side, Side], AfterValidator(in_order)] = (384, 600)
    """Smallest and largest side of that piece."""
    random_crop: Annotated[Size | None, Parameter(show_default=False)] = None
    """Training: height x width of a random crop after resizing; smaller pictures are padded to it on the right and below."""
    most_of_one: Share = 1.0
    """Training, label maps: crops in which one class has a larger share of the labelled pixels are drawn again, up to ten times."""
    flip_x: Share = 0.5
    """Training: probability of a left-right flip."""
    flip_y: Share = 0.0
    """Training: probability of an up-down flip."""
    distort: bool = False
    """Training: brightness, contrast, saturation and hue, each with probability one half."""


@Parameter(name="*", group="Clips")
class ClipConfig(Section):
    frames: Count = 16
    """Frames that the network sees of a clip."""
    stride: Count = 4
    """Clips: from one of them to the next, at `fps`: 16 x 4 frames at 30 per second are 2.1 seconds."""
    fps: Positive | None = 30.0
    """Clips: frames per second that `stride` counts in, whatever the file has; null takes the file's own rate."""
    segments: bool = False
    """Clips: spread the frames over the whole video, one from each of equal parts, in place of `stride` and `fps`."""
    short_clips: Literal["hold", "loop"] = "hold"
    """After the end of a video shorter than its clip: hold its last frame, or begin again."""
    clips: Count = 1
    """Evaluation: clips per video, evenly spread; their probabilities are averaged. Published: 5 on Kinetics."""
    crops: Literal[1, 3] = 1
    """Evaluation: crops per clip, the centre, or both ends and the middle of the long side. Published: 3 on Something-Something."""
    shuffle_frames: bool = False
    """Clips: show frames in random order, which takes time away: what remains is what single frames tell."""
    short_side: Count | None = None
    """Clips: shrink larger frames to this short side while they are decoded, which saves time and memory."""
    frame_rate: Positive = 30.0
    """Clips: frames per second of folders of frames, which have no rate of their own."""
    time_limit: Positive = 60.0
    """Clips: seconds after which reading one is given up."""
    reader: Literal["pyav", "torchcodec"] = "pyav"
    """Clips: what decodes videos; both give the same frames, torchcodec needs its extra and FFmpeg on the system."""


@Parameter(name="*", group="Optimiser")
class OptimConfig(Section):
    optimizer: Literal["adamw", "sgd"] = "adamw"
    """adamw, or sgd with Nesterov's momentum, as published for fine-tuning on Something-Something."""
    momentum: Momentum = 0.9
    """Momentum of sgd."""
    lr: Positive = 1e-3
    """Learning rate at the reference batch; it is scaled in proportion to the batch and the result is printed."""
    reference_batch: Count = 128
    """Batch that `lr` is stated for."""
    weight_decay: Annotated[float, Field(ge=0)] = 0.05
    """Weight decay; biases, norms and other 1-D parameters have none."""
    decay_all: bool = False
    """Weight decay for biases, norms and other 1-D parameters too, as the published detectors were trained."""
    betas: tuple[Momentum, Momentum] = (0.9, 0.999)
    """Momentum terms of AdamW."""
    eps: Positive = 1e-8
    """Epsilon of AdamW."""
    warmup_epochs: Annotated[float, Field(ge=0)] = 5
    """Epochs over which the learning rate grows linearly."""
    warmup_lr: Annotated[float, Field(ge=0)] = 1e-6
    """Learning rate of the very first step, not scaled."""
    schedule: Literal["cosine", "poly", "step"] = "cosine"
    """How the learning rate falls after the warm-up: a half cosine, a power of what is left, or to a tenth at each milestone."""
    power: Positive = 0.9
    """Exponent of schedule poly."""
    milestones: Annotated[tuple[Share, ...], Several] = (8 / 12, 11 / 12)
    """Shares of the run at which schedule step falls."""
    min_lr: Annotated[float, Field(ge=0)] = 1e-5
    """Learning rate at the end of the schedule, not scaled; at most the scaled learning rate is used."""
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
    compile: bool = False
    """Train through torch.compile, which takes a minute for each size of the input, eight at most, and needs a C++ compiler."""
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

    task: TaskName = "classify"
    """What is learned; `train` finds it out from the data if it is not given."""
    data: DataConfig = DataConfig()
    model: ModelConfig = ModelConfig()
    head: HeadConfig = HeadConfig()
    augment: AugmentConfig = AugmentConfig()
    dense: DenseConfig = DenseConfig()
    clip: ClipConfig = ClipConfig()
    optim: OptimConfig = OptimConfig()
    loop: LoopConfig = LoopConfig()
