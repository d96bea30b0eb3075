"""RetinaNet's loss and selection against plain ones, and that it learns."""

import dataclasses

import pytest
import torch
from torchvision.ops import batched_nms, sigmoid_focal_loss

from pyramidvit.models import retinanet
from pyramidvit.models.anchor_head import AnchorMaps
from pyramidvit.models.box_coder import decode
from pyramidvit.models.pvt_v2 import PVTv2, PVTv2Config
from pyramidvit.models.retinanet import RetinaNet, RetinaNetConfig, RetinaNetOutputs, focal_loss
from pyramidvit.types import BoxTarget

TINY = PVTv2Config(widths=(16, 24, 32, 40), depths=(1, 1, 1, 1), heads=(1, 1, 1, 1), expansions=(2, 2, 2, 2), drop_path_rate=0.0)


def network(num_classes=3, **settings):
    torch.manual_seed(0)
    return RetinaNet(PVTv2(TINY, out_indices=(1, 2, 3)), num_classes, RetinaNetConfig(width=32, depth=1, **settings))


def test_focal_loss_and_its_gradient_equal_torchvision():
    torch.manual_seed(0)
    logits = (3 * torch.randn(2, 50, 4)).requires_grad_()
    ignored = torch.rand(2, 50) < 0.2
    image, anchor = (~ignored).nonzero()[::7].unbind(1)
    label = torch.randint(0, 4, image.shape)
    truth = torch.zeros_like(logits).index_put((image, anchor, label), torch.ones(()))
    want = (sigmoid_focal_loss(logits, truth) * ~ignored[..., None]).sum()
    got = focal_loss(logits, ignored, (image, anchor, label))
    torch.testing.assert_close(got, want)
    torch.testing.assert_close(*(torch.autograd.grad(loss, logits)[0] for loss in (got, want)))


def test_logits_begin_at_the_prior():
    """Else the background drowns everything in the first steps."""
    model = network()
    with torch.inference_mode():
        scores = torch.cat([x.flatten() for x in model(torch.randn(1, 3, 64, 64)).maps.logits]).sigmoid()
    assert scores.mean() == pytest.approx(0.01, rel=0.1)


def test_anchor_settings_reach_the_anchors():
    """PB-80: what a check of the data proposes can be set."""
    config = RetinaNetConfig(strides=(8, 16, 32), anchor_scale=1.5, anchor_octaves=2, anchor_ratios=(1.0,))
    assert [x for level in config.anchor_sizes for x in level] == pytest.approx([12, 12 * 2**0.5, 24, 24 * 2**0.5, 48, 48 * 2**0.5])
    model = RetinaNet(PVTv2(TINY, out_indices=(1, 2, 3)), 2, dataclasses.replace(config, width=16, depth=1))
    maps = model(torch.randn(1, 3, 64, 64)).maps
    assert [tuple(x.shape) for x in maps.logits] == [(1, 4, 8, 8), (1, 4, 4, 4), (1, 4, 2, 2)]
    assert [len(x) for x in maps.anchors()] == [128, 32, 8]


def random_outputs(config, K=3):
    """One level of 6 × 6 cells with an anchor each."""
    generator = torch.Generator().manual_seed(1)
    logits = 2 * torch.randn(1, K, 6, 6, generator=generator) - 2
    maps = AnchorMaps([logits], [torch.randn(1, 4, 6, 6, generator=generator)], [(30.0,)], (1.0,), (16,))
    return RetinaNetOutputs(maps, K, config)


@pytest.mark.parametrize("legacy", [False, True])
def test_both_rules_of_selection(legacy):
    """Before MMDetection 2.19 the best anchors were taken by their highest score; since, the best pairs of anchor and class are."""
    config = RetinaNetConfig(nms_candidates=9, legacy_selection=legacy, strides=(16,))
    outputs, size = random_outputs(config), (90, 80)
    scores = outputs.maps.logits[0][0].permute(1, 2, 0).reshape(-1, 3).sigmoid()
    deltas = outputs.maps.deltas[0][0].permute(1, 2, 0).reshape(-1, 4)
    boxes = decode(outputs.maps.anchors()[0], deltas, size)
    if legacy:
        best = set(scores.amax(1).argsort(descending=True)[:9].tolist())
        pairs = [(a, k) for a in best for k in range(3) if scores[a, k] > 0.05]
    else:
        order = scores.flatten().argsort(descending=True)[:9]
        pairs = [divmod(int(i), 3) for i in order if scores.flatten()[i] > 0.05]
        pairs = [(a, k) for a, k in pairs if boxes[a, 2] > boxes[a, 0] and boxes[a, 3] > boxes[a, 1]]
    anchor, label = torch.tensor(pairs).unbind(1)
    keep = batched_nms(boxes[anchor], scores[anchor, label], label, 0.5)
    found = retinanet.detect(outputs, [size])[0]
    assert len(found.boxes) == len(keep) > 3
    torch.testing.assert_close(found.scores, scores[anchor, label][keep])
    assert torch.equal(found.labels, label[keep])
    torch.testing.assert_close(found.boxes, boxes[anchor][keep])


def test_nothing_above_the_threshold_is_no_error():
    found = retinanet.detect(random_outputs(RetinaNetConfig(score_threshold=0.999, strides=(16,))), [(96, 96)])[0]
    assert (found.boxes.shape, found.scores.shape, found.labels.shape, found.masks) == ((0, 4), (0,), (0,), None)


@pytest.mark.slow
def test_one_class_labelled_alone_is_learned():
    """One object, a bright square on grey: found where it is after a few steps."""
    model = network(1, strides=(8, 16, 32), anchor_octaves=1, norm_groups=4)
    x = torch.zeros(1, 3, 64, 64)
    x[:, :, 14:46, 20:52] = 2
    target = BoxTarget(torch.tensor([[20.0, 14, 52, 46]]), torch.tensor([0]))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for _ in range(60):
        loss = torch.stack(list(retinanet.losses(model(x), [target], [(64, 64)]).values())).sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    with torch.inference_mode():
        found = retinanet.detect(model.eval()(x), [(64, 64)])[0]
    assert found.scores[0] > 0.5
    assert (found.boxes[0] - target.boxes[0]).abs().max() < 3
