"""One contract for every network, whatever its family, for pictures and clips. Where it computes, networks are one block deep per stage,
and names that are the same then are tested once: the same code, less time."""

import dataclasses

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from pyramidvit import create_model, list_models
from pyramidvit.models import BACKBONES, Classifier, pvt, pvt_v2

PICTURES = [(32, 32), (33, 33), (97, 97), (224, 224), (225, 193), (160, 608)]
THREE_STAGES = ("mvit_small_16x4", "mvit_mini_8x2")
CLIPS = [(1, 32, 32), (3, 33, 47), (8, 64, 96), (16, 97, 65), (5, 160, 224)]


def is_clip(name) -> bool:
    return len(getattr(BACKBONES[name][1], "size", ())) == 3


def batch(name, count, *size, in_chans=3):
    """Random pictures of that size, or clips of four frames."""
    return torch.randn(count, in_chans, *([4] if is_clip(name) else []), *size)


def cells(name, side, stride):
    """Cells along a side: whole patches where they don't overlap, rounded up where they do."""
    if name in pvt.VARIANTS:
        return side // stride
    return -(-side // stride) if name not in THREE_STAGES else -(-(side // 8) // (stride // 8))


def one_block_deep(name):
    """Class and architecture with one block per stage."""
    network, config = BACKBONES[name]
    return network, dataclasses.replace(config, depths=(1,) * len(config.depths), drop_path_rate=0.1)


@pytest.fixture
def shallow(quick):
    """Builds a network by name, one block deep per stage, running in evaluation mode."""

    def build(name, **settings):
        torch.manual_seed(0)
        network, config = one_block_deep(name)
        return quick(lambda: network(config, **settings)).eval()

    return build


def kind(name):
    """What networks that differ only in depth and in the size of their tables have in common."""
    network, config = one_block_deep(name)
    return network, dataclasses.replace(config, size=(64,) * len(config.size)) if hasattr(config, "size") else config


DISTINCT = list({kind(name): name for name in reversed(list_models())}.values())[::-1]


ONLY_WIDER = ("pvt_v2_b1", "pvt_v2_b5", "mvit_base24_wide_320", "mvitv2_large_40x3")
"""Of these, what differs from others in widths and heads alone."""


FIRST = ("pvt_tiny", "pvt_v2_b0", "pvt_v2_b2_li", "mvitv2_tiny", "mvit_base_16x4", "mvitv2_small_16x4")
"""One of each kind, for a quick answer; the others are left to the whole suite."""


def each(names):
    return [pytest.param(name, marks=[] if name in FIRST else pytest.mark.slow) for name in names]


@pytest.fixture(params=each(DISTINCT))
def name(request) -> str:
    return request.param


@pytest.fixture(params=each(list_models()))
def any_name(request) -> str:
    return request.param


def test_maps_have_the_promised_strides_at_any_size(name, shallow):
    """PB-01, PB-04, PB-06, PB-09: odd and non-square sizes, any number of frames; (B, C, [T / 2,] H / s, W / s), height first."""
    net = shallow(name)
    strides = [info.stride for info in net.feature_info]
    assert strides == ([4, 8, 16, 32] if name not in THREE_STAGES else [8, 16, 32])
    for size in CLIPS if is_clip(name) else PICTURES:
        with torch.inference_mode():
            maps = net(torch.randn(1, 3, *size))
        for x, info in zip(maps, net.feature_info, strict=True):
            frames = [-(-frames // 2) for frames in size[:-2]]
            assert x.shape == (1, info.channels, *frames, *[cells(name, side, info.stride) for side in size[-2:]])
            assert x.isfinite().all()


def test_any_number_of_channels(name, shallow):
    for in_chans in (1, 3, 4, 13):
        net = shallow(name, in_chans=in_chans)
        with torch.inference_mode():
            assert all(x.isfinite().all() for x in net(batch(name, 2, 64, 64, in_chans=in_chans)))


@pytest.mark.parametrize("head", ["maps", "coarsest map", "classes"])
def test_every_parameter_learns(name, shallow, head):
    """PB-69: nothing is built that a loss on the maps, on the last one alone, or on the logits, doesn't reach."""
    model = Classifier(shallow(name, drop_path_rate=0.0, classify=True), 7) if head == "classes" else shallow(name, drop_path_rate=0.0)
    out = model.train()(batch(name, 2, 64, 96))
    if head != "classes":
        out = torch.cat([x.flatten() for x in (out if head == "maps" else out[-1:])])
    out.square().sum().backward()
    gradients = {key: p.grad for key, p in model.named_parameters()}
    assert [key for key, grad in gradients.items() if grad is None] == []
    if head == "classes" and getattr(BACKBONES[name][1], "class_token", False):
        # As published, only the class token leaves the last block, and it is neither pooled there nor has it a relative position.
        zero = ("attn.pool_q.weight", "attn.rel_pos_t", "attn.rel_pos_h", "attn.rel_pos_w")
        last = f"backbone.stages.{len(BACKBONES[name][1].depths) - 1}.blocks.0."
    else:
        zero, last = (), ""
    known = tuple(last + name for name in zero)
    assert [key for key, grad in gradients.items() if grad is not None and not grad.any() and not key.startswith(known)] == []


def test_a_batch_equals_its_members_one_by_one(name, shallow):
    net = shallow(name)
    x = batch(name, 3, 96, 64)
    with torch.inference_mode():
        for together, single in zip(net(x), zip(*[net(x[i : i + 1]) for i in range(3)], strict=True), strict=True):
            torch.testing.assert_close(together, torch.cat(single), rtol=1e-4, atol=1e-4)


def test_maps_are_not_transposed(name, shallow):
    """PB-06: what changes in the right half of a picture changes the right half of the finest map."""
    net = shallow(name)
    x = torch.zeros(1, 3, *([4] if is_clip(name) else []), 448, 224)
    y = x.clone()
    y[..., 32:48, 152:176] = 3
    with torch.inference_mode():
        change = (net(y)[0] - net(x)[0]).abs().flatten(0, -3).sum(0)
    stride = net.feature_info[0].stride
    assert change.shape == (448 // stride, 224 // stride)
    row, column = divmod(int(change.argmax()), 224 // stride)
    assert 28 <= row * stride <= 48
    assert 144 <= column * stride <= 184


def test_classifier_and_defaults_run(any_name):
    """PB-02: every class built with no arguments, and every name with its defaults, takes its declared input."""
    with torch.device("meta"):
        net = BACKBONES[any_name][0]()
        assert len(net(torch.empty(1, *net.input_shape))) == 4
        model = create_model(any_name)
        assert model(torch.empty(2, *model.backbone.input_shape)).shape == (2, 400 if is_clip(any_name) else 1000)


def test_out_indices(name, shallow):
    everything = [info.channels for info in shallow(name).feature_info]
    last = len(everything) - 1
    for wanted in [(0,), (0, 2), (-1,), tuple(range(last + 1))]:
        net = shallow(name, out_indices=wanted)
        maps = net(batch(name, 1, 64, 64))
        assert [x.shape[1] for x in maps] == [info.channels for info in net.feature_info] == [everything[i] for i in wanted]
        assert len(net.stages) == 1 + max(i % len(everything) for i in wanted), "stages behind the last wanted map are not built"


@pytest.mark.parametrize("wrong", [(0, 4), (-5,), (), (1, 1), (2, 0)])
def test_out_indices_that_do_not_exist(name, wrong):
    """PB-08."""
    with pytest.raises(ValueError, match=r"Valid indices are \[0, 1, 2"):
        create_model(name, features_only=True, out_indices=wrong)


@pytest.mark.parametrize("name", [name for name in DISTINCT if not is_clip(name)])
@pytest.mark.parametrize(
    ("shape", "message"),
    [
        ((1, 3, 31, 64), "nearest size that works is 32x64"),
        ((3, 64, 64), r"batch axis"),
        ((1, 3, 8, 64, 64), "looks like clips"),
        ((1, 64, 64, 3), r"permute\(0, 3, 1, 2\)"),
        ((1, 4, 64, 64), "have 3 channels"),
    ],
)
def test_wrong_pictures_say_what_was_expected_and_what_came(name, shallow, shape, message):
    """PB-11."""
    with pytest.raises(ValueError, match=message) as error:
        shallow(name)(torch.zeros(shape))
    assert str(tuple(shape)) in str(error.value)


@pytest.mark.parametrize("name", [name for name in DISTINCT if is_clip(name)])
@pytest.mark.parametrize(
    ("shape", "message"),
    [
        ((1, 3, 2, 64, 31), "nearest size that works is 64x32"),
        ((3, 8, 64, 64), r"batch axis"),
        ((2, 3, 64, 64), "looks like pictures"),
        ((1, 8, 3, 64, 64), r"permute\(0, 2, 1, 3, 4\)"),
        ((1, 8, 64, 64, 3), r"permute\(0, 4, 1, 2, 3\)"),
        ((1, 3, 0, 64, 64), "at least one frame"),
        ((1, 4, 8, 64, 64), "have 3 channels"),
    ],
)
def test_wrong_clips_say_what_was_expected_and_what_came(name, shallow, shape, message):
    """PB-11."""
    with pytest.raises(ValueError, match=message) as error:
        shallow(name)(torch.zeros(shape))
    assert str(tuple(shape)) in str(error.value)


@pytest.mark.parametrize("name", [name for name in DISTINCT if name not in pvt_v2.VARIANTS])
def test_a_backbone_without_a_classifier_says_so(name, shallow):
    """Maps only, or everything: what is missing is named, and never random."""
    net = shallow(name)
    with pytest.raises(ValueError, match="classify=True"):
        net.embed(batch(name, 1, 64, 64))
    with pytest.raises(ValueError, match="coarsest map"):
        shallow(name, classify=True, out_indices=(0,))


def test_gradient_checkpointing_changes_memory_only(name, shallow):
    """PB-78: the same loss and gradients, drop path on."""
    x = batch(name, 2, 64, 64)
    results = []
    for on in (False, True):
        net = shallow(name, drop_path_rate=0.5).train()
        net.set_grad_checkpointing(on)
        torch.manual_seed(1)
        loss = net(x)[-1].square().mean()
        loss.backward()
        results.append([loss.detach(), *[p.grad for p in net.parameters()]])
    for kept, recomputed in zip(*results, strict=True):
        assert torch.equal(kept, recomputed)


def test_depths_and_stages_of_parameters(any_name):
    with torch.device("meta"):
        model = create_model(any_name)
    depths = {key: model.depth_of(key) for key, _ in model.named_parameters()}
    assert set(depths.values()) == set(range(model.num_depths))
    assert depths["head.weight"] == model.num_depths - 1
    stages = [model.stage_of(key) for key, _ in model.named_parameters()]
    assert stages == sorted(stages)
    assert set(stages) == {*range(len(model.backbone.depths)), 4}


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in DISTINCT if name not in ONLY_WIDER])
def test_exported_maps_are_the_same(name, shallow):
    """PB-14: torch.export takes the bare backbone, for any number of pictures, and the result gives the same maps."""
    net = shallow(name)
    with torch.no_grad():
        exported = torch.export.export(net, (batch(name, 2, 64, 96),), dynamic_shapes=({0: torch.export.Dim.DYNAMIC},)).module()
        x = batch(name, 40, 64, 96)
        for got, want in zip(exported(x), net(x), strict=True):
            torch.testing.assert_close(got, want, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_memory_grows_with_the_picture_and_no_faster(name, shallow):
    """Four times the pixels make the largest tensor of a training step four times as large: nothing of the size of all pairs of tokens."""
    net = shallow(name).train()
    largest = []
    for side in (64, 128):
        with Largest() as mode:
            torch.cat([x.flatten() for x in net(batch(name, 1, side, 3 * side))]).sum().backward()
        largest.append(mode.numel)
    assert largest[1] <= 4.2 * largest[0]


class Largest(TorchDispatchMode):
    """Notes the size of the largest tensor that any operator makes."""

    numel = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        made = [x.numel() for x in (out if isinstance(out, (tuple, list)) else (out,)) if isinstance(x, torch.Tensor)]
        self.numel = max(self.numel, *made, 0)
        return out


def test_half_precision_gives_nearly_the_same_maps(name, shallow):
    """PB-73: under autocast maps are finite and close to those of full precision."""
    net = shallow(name)
    x = batch(name, 2, 64, 96)
    with torch.inference_mode():
        want = net(x)
        with torch.autocast("cpu", torch.bfloat16):
            got = net(x)
    for half, full in zip(got, want, strict=True):
        assert (half.float() - full).abs().max() < 0.1 * full.std()


@pytest.mark.parametrize("shape", [(1, 16, 3, 64, 64), (1, 3, 3, 64, 64), (1, 3, 16, 64, 64)])
def test_a_clip_into_a_picture_classifier_is_told_so(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match=r"clips"):
        create_model("pvt_v2_b0", num_classes=3)(torch.zeros(shape))


@pytest.mark.parametrize("rate", [-1, 1.0, 2, float("nan")])
def test_an_impossible_drop_path_rate_is_refused(rate: float) -> None:
    with pytest.raises(ValueError, match="drop_path_rate"):
        create_model("pvt_v2_b0", drop_path_rate=rate)
