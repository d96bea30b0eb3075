"""One contract for every network, whatever its family. Large networks are built with one block per stage: the same code, less time."""

import dataclasses

import pytest
import torch

from pyramidvit import create_model, list_models
from pyramidvit.models import BACKBONES, Classifier

STRIDES = (4, 8, 16, 32)
SIZES = [(32, 32), (33, 33), (97, 97), (224, 224), (225, 193), (160, 608)]


def shallow(name: str, **settings):
    """A network of that name, one block deep per stage, with a repeatable start and running in evaluation mode."""
    torch.manual_seed(0)
    network, config = BACKBONES[name]
    return network(dataclasses.replace(config, depths=(1, 1, 1, 1)), **settings).eval()


@pytest.fixture(params=list_models())
def name(request) -> str:
    return request.param


@pytest.mark.parametrize("size", SIZES, ids=lambda s: f"{s[0]}x{s[1]}")
def test_maps_have_the_promised_strides_at_any_size(name, size):
    """PB-04, PB-06: odd and non-square sizes; (B, C, H / s, W / s), height first, rounded up."""
    net = shallow(name)
    with torch.inference_mode():
        maps = net(torch.randn(1, 3, *size))
    for x, info, stride in zip(maps, net.feature_info, STRIDES, strict=True):
        assert (info.stride, x.shape) == (stride, (1, info.channels, -(-size[0] // stride), -(-size[1] // stride)))
        assert x.isfinite().all()


@pytest.mark.parametrize("in_chans", [1, 3, 4, 13])
def test_any_number_of_channels(name, in_chans):
    net = shallow(name, in_chans=in_chans)
    assert all(x.isfinite().all() for x in net(torch.randn(2, in_chans, 64, 64)))


def test_every_parameter_learns(name):
    """PB-69: nothing is built that a loss on the last map, or on the logits, doesn't reach."""
    for wrap in (lambda net: net, lambda net: Classifier(net, 7)):
        model = wrap(shallow(name, drop_path_rate=0.0)).train()
        out = model(torch.randn(2, 3, 64, 64))
        (out if isinstance(out, torch.Tensor) else out[-1]).square().sum().backward()
        assert [key for key, p in model.named_parameters() if p.grad is None or not p.grad.abs().sum() > 0] == []


def test_a_batch_equals_its_pictures_one_by_one(name):
    net = shallow(name)
    x = torch.randn(3, 3, 96, 64)
    with torch.inference_mode():
        for together, single in zip(net(x), zip(*[net(x[i : i + 1]) for i in range(3)], strict=True), strict=True):
            torch.testing.assert_close(together, torch.cat(single), rtol=1e-4, atol=1e-4)


def test_maps_are_not_transposed(name):
    """PB-06: what changes in the right half of a picture changes the right half of the finest map."""
    net = shallow(name)
    x = torch.zeros(1, 3, 448, 224)
    y = x.clone()
    y[..., 32:48, 150:180] = 3
    with torch.inference_mode():
        change = (net(y)[0] - net(x)[0]).abs().sum((0, 1))
    assert change.shape == (112, 56)
    row, column = divmod(int(change.argmax()), 56)
    assert 7 <= row <= 12
    assert 36 <= column <= 46


def test_classifier_and_defaults_run(name):
    """PB-02: every class built with no arguments, and every name with its defaults, takes its declared input."""
    net = BACKBONES[name][0]().eval()
    with torch.inference_mode():
        assert len(net(torch.randn(1, *net.input_shape))) == 4
    with torch.device("meta"):
        model = create_model(name)
        assert model(torch.randn(2, *model.backbone.input_shape)).shape == (2, 1000)


@pytest.mark.parametrize(("wanted", "channels"), [((0,), 1), ((1, 3), 2), ((-1,), 1), ((0, 1, 2, 3), 4)])
def test_out_indices(name, wanted, channels):
    net = shallow(name, out_indices=wanted)
    maps = net(torch.randn(1, 3, 64, 64))
    assert [x.shape[1] for x in maps] == [info.channels for info in net.feature_info]
    assert len(maps) == channels
    assert len(net.stages) == 1 + max(i % 4 for i in wanted), "stages behind the last wanted map are not built"


@pytest.mark.parametrize("wrong", [(0, 4), (-5,), (), (1, 1), (2, 0)])
def test_out_indices_that_do_not_exist(name, wrong):
    """PB-08."""
    with pytest.raises(ValueError, match=r"Valid indices are \[0, 1, 2, 3\]"):
        create_model(name, features_only=True, out_indices=wrong)


@pytest.mark.parametrize(
    ("shape", "message"),
    [
        ((1, 3, 31, 64), "nearest size that works is 32x64"),
        ((3, 64, 64), r"batch axis"),
        ((1, 3, 8, 64, 64), "looks like clips"),
        ((1, 64, 64, 3), r"permute\(0, 3, 1, 2\)"),
        ((1, 4, 64, 64), "takes 3 channels"),
    ],
)
def test_wrong_inputs_say_what_was_expected_and_what_came(name, shape, message):
    with pytest.raises(ValueError, match=message) as error:
        shallow(name)(torch.zeros(shape))
    assert str(tuple(shape)) in str(error.value)


def test_gradient_checkpointing_changes_memory_only(name):
    """PB-78: the same loss and gradients, drop path on."""
    x = torch.randn(2, 3, 64, 64)
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


def test_depths_and_stages_of_parameters(name):
    with torch.device("meta"):
        model = create_model(name)
    depths = {key: model.depth_of(key) for key, _ in model.named_parameters()}
    assert set(depths.values()) == set(range(model.num_depths))
    assert depths["head.weight"] == model.num_depths - 1
    stages = [model.stage_of(key) for key, _ in model.named_parameters()]
    assert stages == sorted(stages)
    assert set(stages) == {0, 1, 2, 3, 4}
