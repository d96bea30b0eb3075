"""Published recipes load, plan and say what they are; a dry run does and writes nothing."""

import re
from pathlib import Path

import pytest

from pyramidvit import list_models
from pyramidvit.cli import main
from pyramidvit.config import resolve
from pyramidvit.data.scenes import write_scenes
from pyramidvit.models import BACKBONES
from pyramidvit.optim import scaled_lr

RECIPES = sorted((Path(__file__).parents[1] / "recipes").glob("*.yaml"))
IMAGENET = [path for path in RECIPES if path.stem.startswith("imagenet_")]
KINETICS = [path for path in RECIPES if path.stem.startswith("kinetics_")]
SSV2 = [path for path in RECIPES if path.stem.startswith("ssv2_")]
COCO = [path for path in RECIPES if path.stem.startswith("coco_")]
ADE20K = [path for path in RECIPES if path.stem.startswith("ade20k_")]
PYRAMIDS = {name for name in BACKBONES if name.startswith("pvt")}


def run(*arguments: object) -> int:
    with pytest.raises(SystemExit) as left:
        main([str(argument) for argument in arguments])
    assert isinstance(left.value.code, int)
    return left.value.code


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_a_recipe_loads_and_says_what_it_is(path):
    config, _ = resolve(file=path)
    header = path.read_text(encoding="utf-8").split("\n\n")[0]
    for word in ("Command:", "Hardware:", "Hours:", "Expected:", "Source:"):
        assert f"# {word}" in header
    assert f"--config recipes/{path.name}" in header
    assert config.model.name in path.stem
    assert all(len(line) <= 140 for line in path.read_text(encoding="utf-8").splitlines())


@pytest.mark.parametrize("path", IMAGENET, ids=lambda path: path.stem)
def test_imagenet_recipes_have_the_published_figures(path):
    """Drop path is that of the architecture, and at the published batch the learning rate is the published one."""
    config, _ = resolve(file=path)
    assert config.model.drop_path_rate == BACKBONES[config.model.name][1].drop_path_rate
    batch, lr = (1024, 1e-3) if config.model.name.startswith("pvt") else (2048, 2e-3)
    assert scaled_lr(config.optim.lr, batch, config.optim.reference_batch) == pytest.approx(lr)
    assert config.loop.epochs == 300
    assert (config.optim.clip_grad is None) == bool(re.fullmatch(r"pvt_(tiny|small)|pvt_v2_b(0|1|2|2_li)", config.model.name))


@pytest.mark.parametrize("path", KINETICS, ids=lambda path: path.stem)
def test_kinetics_recipes_have_the_published_figures(path):
    """Clips are those of the network's name, drop path that of its architecture; 512 clips learn at 1.6e-3, and 5 are measured."""
    config, _ = resolve(file=path)
    _, architecture = BACKBONES[config.model.name]
    assert config.task == "video"
    assert config.model.name.endswith(f"_{config.clip.frames}x{config.clip.stride}")
    assert (config.clip.frames, *config.augment.size) == architecture.size
    assert config.model.drop_path_rate == architecture.drop_path_rate
    assert (config.clip.fps, config.clip.segments, config.clip.clips, config.clip.crops) == (30, False, 5, 1)
    assert scaled_lr(config.optim.lr, 512, config.optim.reference_batch) == pytest.approx(1.6e-3)
    assert config.loop.epochs / config.augment.repeats == 200


@pytest.mark.parametrize("path", SSV2, ids=lambda path: path.stem)
def test_something_something_recipes_keep_left_and_right(path):
    """Frames of the whole video, no flips, 1 clip x 3 crops, SGD."""
    config, _ = resolve(file=path)
    assert config.clip.segments
    assert config.augment.hflip == 0
    assert (config.clip.clips, config.clip.crops, config.optim.optimizer) == (1, 3, "sgd")
    assert (config.clip.frames, *config.augment.size) == BACKBONES[config.model.name][1].size


@pytest.mark.parametrize("path", COCO, ids=lambda path: path.stem)
def test_coco_recipes_have_the_published_figures(path):
    """A step of all 8 GPUs has the published learning rate; the two largest networks see half the batch at 1/1.4 of it."""
    config, _ = resolve(file=path)
    task, lr = ("detect", 1e-4) if "retinanet" in path.stem else ("instances", 2e-4)
    longer = path.stem.endswith("_3x")
    own_settings = longer and "_v2_" in path.stem  # the only long runs whose settings are published
    lr = 1e-4 if own_settings else lr
    halved = not longer and (re.search("v2_b[45]", path.stem) or (task == "instances" and "large" in path.stem))
    assert config.task == task
    assert config.loop.batch_size == (1 if halved else 2)
    batch = 8 * config.loop.batch_size
    assert scaled_lr(config.optim.lr, batch, config.optim.reference_batch) == pytest.approx(lr / 1.4 if halved else lr, rel=1e-3)
    assert config.optim.warmup_lr == pytest.approx(config.optim.lr / 1000, rel=1e-2)
    assert round(config.optim.warmup_epochs * 118_287 / batch) == pytest.approx(500, abs=1)
    assert config.optim.decay_all != own_settings
    assert config.model.drop_path_rate == (0.0 if re.search("medium|large", path.stem) else 0.1)
    epochs = [round(share * config.loop.epochs, 2) for share in config.optim.milestones]
    assert (config.loop.epochs, epochs) == ((36, [27, 33]) if longer else (12, [8, 11]))
    assert (config.dense.short, config.dense.long) == ((640, 1066) if path.stem.endswith("_640") else (800, 1333))
    assert bool(config.dense.shorts) == longer
    assert config.head.preset == "published"


@pytest.mark.parametrize("path", ADE20K, ids=lambda path: path.stem)
def test_ade20k_recipes_have_the_published_figures(path):
    """40,000 steps of 32 pictures, no warm-up, a power of 0.9; value 0 of the masks is no class."""
    config, _ = resolve(file=path)
    assert config.task == "segment"
    assert config.data.reduce_zero_label
    assert config.optim.lr == pytest.approx(2e-4)
    assert config.optim.reference_batch == 8 * config.loop.batch_size == 32
    assert config.loop.epochs * -(-20_210 // 32) == pytest.approx(40_000, rel=0.005)
    assert (config.optim.schedule, config.optim.power, config.optim.warmup_epochs, config.optim.min_lr) == ("poly", 0.9, 0, 0)
    assert (config.dense.short, config.dense.long, config.dense.multiple, config.dense.random_crop) == (512, 2048, 32, (512, 512))
    assert config.model.drop_path_rate == 0.1


def test_every_pyramid_has_its_dense_recipes():
    stems = {path.stem for path in RECIPES}
    assert {f"{start}_{name}" for start in ("coco_retinanet", "coco_mask_rcnn", "ade20k_semantic_fpn") for name in PYRAMIDS} <= stems


def test_every_picture_network_has_a_recipe():
    pictures = {name for name in list_models() if not re.search(r"_\d+x\d$", name)}
    assert {path.stem.removeprefix("imagenet_") for path in IMAGENET} == pictures


QUICK = ("imagenet_pvt_tiny", "imagenet_pvt_v2_b0", "imagenet_mvitv2_tiny", "ssv2_mvitv2_small_16x4")
QUICK += ("coco_retinanet_pvt_v2_b0", "coco_mask_rcnn_pvt_tiny", "ade20k_semantic_fpn_pvt_v2_b0")


@pytest.mark.parametrize(
    "path", [pytest.param(p, marks=() if p.stem in QUICK else pytest.mark.slow) for p in RECIPES], ids=lambda p: p.stem
)
def test_a_recipe_plans_without_data(path, tmp_path, monkeypatch, capsys):
    """Network, groups and schedule are built, on the meta device: no memory, nothing written."""
    monkeypatch.chdir(tmp_path)
    assert run("train", "--config", path, "--dry-run", "--device", "cpu") == 0
    said = " ".join(capsys.readouterr().out.split())
    assert f"{resolve(file=path)[0].loop.epochs} epochs; how many steps" in said
    assert "Without data, 1000 classes" in said
    assert list(tmp_path.iterdir()) == []


def test_a_plan_with_data_has_steps_and_rates(tmp_path, monkeypatch, capsys):
    write_scenes(tmp_path / "data", train=16, val=8, size=(40, 48), seed=1)
    monkeypatch.chdir(tmp_path)
    recipe = next(path for path in RECIPES if path.stem == "imagenet_pvt_v2_b0")
    flags = ["--batch-size", 4, "--size", "64x64", "--device", "cpu", "--layer-decay", "0.9", "--freeze", "1"]
    assert run("train", "data", "--config", recipe, *flags, "--dry-run") == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "4 per epoch, 1,200 in 300 epochs" in said
    assert "0.0005 at 512 samples, a step has 4" in said
    assert "Frozen: the first 1 stages" in said
    assert [path.name for path in tmp_path.iterdir()] == ["data"]


@pytest.mark.slow
def test_a_plan_finds_mistakes(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for wrong, message in (
        (["-m", "pvt_v3"], "There is no network"),
        (["-m", "mvit_base_16x4"], "takes clips"),
        (["--resume", "x"], "leave"),
    ):
        assert run("train", "--dry-run", *wrong) == 2
        assert message in " ".join(capsys.readouterr().err.split())


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", [path.stem.removeprefix("imagenet_") for path in IMAGENET] + ["timm/resnet50", "timm/swin_tiny_patch4_window7_224"]
)
def test_train_takes_any_picture_network(name, capsys):
    assert run("train", "--model", name, "--dry-run", "--device", "cpu", "--size", "64x64") == 0
    assert "are trained" in capsys.readouterr().out
