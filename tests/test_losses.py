"""Losses against plain formulas."""

import pytest
import torch

from pyramidvit.errors import UserError
from pyramidvit.losses import class_weights, classification_loss, soft_targets
from pyramidvit.types import ClassTarget


def test_soft_targets_hold_smoothing_and_both_classes_of_a_mix() -> None:
    soft = soft_targets([ClassTarget(1), ClassTarget(0, other=2, share=0.75)], 4, smoothing=0.2)
    assert torch.allclose(soft[0], torch.tensor([0.05, 0.85, 0.05, 0.05]))
    assert torch.allclose(soft[1], torch.tensor([0.65, 0.05, 0.25, 0.05]))
    same = soft_targets([ClassTarget(1, other=1, share=0.3)], 2)
    assert torch.allclose(same, torch.tensor([[0.0, 1.0]]))
    assert soft_targets([], 3).shape == (0, 3)


def test_a_label_outside_the_classes_is_named() -> None:
    with pytest.raises(UserError, match="Label 3 is outside the 3 classes"):
        soft_targets([ClassTarget(3)], 3)
    with pytest.raises(UserError, match="Label 5"):
        soft_targets([ClassTarget(0, other=5, share=0.5)], 3)


def test_the_loss_equals_the_formula_and_batches_add_up() -> None:
    torch.manual_seed(0)
    logits = torch.randn(6, 3, dtype=torch.float64)
    soft = soft_targets([ClassTarget(i % 3) for i in range(6)], 3, smoothing=0.1)
    weights = torch.tensor([0.5, 1.0, 3.0])
    expected = -(soft * weights * logits.log_softmax(1)).sum(1).mean()
    whole = classification_loss(logits, soft, weights)
    assert torch.allclose(whole.double(), expected, atol=1e-6)
    parts = classification_loss(logits[:2], soft[:2], weights) * 2 / 6 + classification_loss(logits[2:], soft[2:], weights) * 4 / 6
    assert torch.allclose(whole, parts)


def test_half_precision_logits_that_would_overflow_give_a_finite_fp32_loss() -> None:
    """PB-73: inputs scaled by 1e4 overflow a softmax in fp16."""
    logits = torch.tensor([[6e4, -6e4], [3e4, 2e4]], dtype=torch.float16, requires_grad=True)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = classification_loss(logits, soft_targets([ClassTarget(1), ClassTarget(0)], 2))
    assert loss.dtype == torch.float32
    assert loss.item() == pytest.approx(logits.detach().float().diff(dim=1).abs()[0].item() / 2)
    loss.backward()
    assert logits.grad is not None
    assert logits.grad.isfinite().all()


def test_class_weights_balance_rare_and_frequent_classes() -> None:
    """PB-77: 90 pictures of one class and 10 of another; a third class without any."""
    weights = class_weights([90, 10, 0])
    assert torch.allclose(weights[:2], torch.tensor([100 / (2 * 90), 100 / (2 * 10)]))
    assert weights[2] == 1
    assert float(weights[0] * 90) == pytest.approx(float(weights[1] * 10))
    assert class_weights([5, 5, 5]).tolist() == [1, 1, 1]
