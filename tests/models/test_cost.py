"""Parameters and multiply-adds as published (PB-108): the products of attention are part of them."""

import pytest
import torch

from pyramidvit import create_model
from pyramidvit.cli import main
from pyramidvit.models.cost import growing_sizes, measure_cost, saved_bytes

GIGA_MACS = {"pvt_v2_b0": 0.566, "pvt_v2_b1": 2.108, "pvt_v2_b2": 4.027, "pvt_v2_b2_li": 3.889, "pvt_v2_b3": 6.897, "pvt_v2_b4": 10.101}
GIGA_MACS["pvt_v2_b5"] = 11.717


def cost(name, *size):
    return measure_cost(name, lambda: create_model(name), size or None)


@pytest.mark.slow
@pytest.mark.parametrize("name", GIGA_MACS)
def test_multiply_adds_at_the_published_size(name):
    assert cost(name).macs / 1e9 == pytest.approx(GIGA_MACS[name], rel=1e-3)


@pytest.mark.slow
def test_parts_add_up_and_have_shapes():
    whole = cost("pvt_v2_b2", 512, 640)
    assert sum(part.macs for part in whole.parts) == whole.macs
    assert sum(part.params for part in whole.parts) == whole.params == 25_362_856
    assert [part.output[1:3] for part in whole.parts[:4]] == [(128, 160), (64, 80), (32, 40), (16, 20)]


@pytest.mark.slow
def test_attention_is_counted():
    """More than four times the work at four times the pixels where keys grow too, and less where they don't."""
    dense, linear = (cost(name, 448, 448).macs / cost(name, 224, 224).macs for name in ("pvt_v2_b2", "pvt_v2_b2_li"))
    assert dense > 4.2
    assert linear < 4


@pytest.mark.slow
def test_activation_memory_grows_with_the_picture():
    assert cost("pvt_v2_b0", 448, 448).activation_bytes > 3.5 * cost("pvt_v2_b0", 224, 224).activation_bytes > 0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "size"), [("pvt_tiny", (2, 3, 64, 96)), ("pvt_v2_b0", (1, 3, 64, 64)), ("mvitv2_small_16x4", (1, 3, 4, 64, 64))]
)
def test_activation_memory_is_what_a_training_step_keeps(name, size, monkeypatch):
    """Counted without memory, and with it: the same bytes. Clips of MViT v2 hold no matrix of queries times keys."""
    real = create_model(name)
    monkeypatch.setattr("pyramidvit.models.kernels.has_onednn", lambda _: False)  # which keeps less on the CPU
    with torch.device("meta"):
        counted, x = create_model(name), torch.empty(*size)
    assert saved_bytes(counted, x) == saved_bytes(real, torch.randn(*size)) > 0


@pytest.mark.slow
def test_class_attention_is_counted():
    """Networks that call their blocks with a parameter, the class token."""
    pytest.importorskip("timm", reason="from the timm extra")
    counted = cost("timm/cait_xxs24_224")
    assert counted.params == 11_956_264
    assert counted.macs / 1e9 == pytest.approx(2.53, rel=0.02), "as published"
    assert counted.activation_bytes > 0


@pytest.mark.slow
@pytest.mark.parametrize(("name", "classes", "per"), [("mvitv2_small_16x4", 400, "per clip in"), ("mvitv2_tiny", 1000, "per picture in")])
def test_info_counts_the_published_classes(name, classes, per, capsys):
    with pytest.raises(SystemExit):
        main(["info", name, "--size", "64"])
    out = " ".join(capsys.readouterr().out.split())
    assert per in out
    head = f"{768 * classes + classes:,}"
    assert head in out


@pytest.mark.slow
def test_sizes_to_see_growth_at():
    """From the size that the network is made for."""
    assert growing_sizes(cost("mvit_small_16x4")) == [(224, 224), (448, 448), (896, 896)]
    assert len([part for part in cost("mvit_small_16x4").parts if "stages" in part.name]) == 3
