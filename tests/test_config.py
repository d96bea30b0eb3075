"""Settings: strict, merged in order, written so that they can be read back."""

import pytest
import yaml

from pyramidvit.config import AugmentConfig, LoopConfig, RunConfig, read_sources, resolve, to_yaml, validate
from pyramidvit.errors import UserError
from pyramidvit.types import Preprocess


def test_flags_win_over_the_file_and_the_file_over_defaults(tmp_path):
    file = tmp_path / "a.yaml"
    file.write_text("optim: {lr: 0.5, weight_decay: 0.1}\nmodel: {name: pvt_v2_b1}\n")
    given = RunConfig.model_validate({"optim": {"lr": 0.25}})
    config, sources = resolve(given, file)
    assert (config.optim.lr, config.optim.weight_decay, config.model.name, config.loop.epochs) == (0.25, 0.1, "pvt_v2_b1", 30)
    assert sources == {"optim.lr": "command line", "optim.weight_decay": "a.yaml", "model.name": "a.yaml"}


def test_what_is_written_can_be_read_back(tmp_path):
    given = RunConfig.model_validate({"data": {"mean": [0.1], "std": [1], "in_chans": 1}, "model": {"weights": "a # b.safetensors"}})
    config, sources = resolve(given)
    file = tmp_path / "config.yaml"
    file.write_text(to_yaml(config, sources))
    assert validate(yaml.safe_load(file.read_text()), "file") == config
    assert read_sources(file) == sources


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("optim: {learning_rate: 1}", "optim.learning_rate"),
        ("loop: {epochs: 0}", "loop.epochs"),
        ("augment: {size: 16}", "augment.size"),
        ("augment: {size: wide}", "height x width"),
        ("model: pvt_v2_b1", "model: expected settings below it, .*got 'pvt_v2_b1'"),
        ("optim: [0.1]", "optim: expected settings below it"),
        ("optimiser:", "optimiser: extra inputs.*did you mean optim?"),
        ("optim: {weight_deccay: 1}", r"optim\.weight_deccay: .*; did you mean optim\.weight_decay"),
        ("optim: {LR: 1}", r"optim\.LR: .*did you mean optim\.lr"),
        ("lr: 1", r"lr: extra inputs.*; did you mean optim\.lr\?"),
        ("optim: {epochs: 3}", r"did you mean loop\.epochs\?"),
        ("optim: {lr: 1, lr: 2}", "Can't read settings.*'lr' stands there twice"),
        ("optim: {lr: 1}\nloop: {epochs: 2}\noptim: {lr: 2}", "(?s)'optim' stands there twice.*line 3"),
        ("", "holds no settings"),
        ("# nothing yet\n", "holds no settings"),
        ("optim: {lr: .inf}", "optim.lr: input should be a finite number"),
        ("optim: {lr: .nan}", "optim.lr: input should be a finite number"),
        ("augment: {mixup: .inf}", "augment.mixup: input should be a finite number"),
        ("optim: {betas: [0.9, 1]}", "optim.betas.1: input should be less than 1"),
        ("data: {mean: [.nan]}", "data.mean.0: input should be a finite number"),
        ("data: {std: [0]}", "data.std.0: input should be greater than 0"),
        ("data: {value_range: [1, 1]}", "data.value_range: the first value, which becomes 0, must be below"),
        ("data: {value_range: [0, .inf]}", "data.value_range.1: input should be a finite number"),
        ("augment: {crop_scale: [0.5, 0.1]}", "augment.crop_scale: the first value must not be above the second"),
        ("augment: {crop_scale: [0, 0]}", "augment.crop_scale.1: input should be greater than 0"),
        ("augment: {crop_ratio: [2, 1]}", "augment.crop_ratio: the first value must not be above the second"),
        ("augment: {crop_ratio: [0, 1]}", "augment.crop_ratio.0: input should be greater than 0"),
        ("- a", "must hold sections"),
        ("a: [", "Can't read settings"),
        ("!!python/object/apply:os.system ['true']", "Can't read settings"),
    ],
)
def test_wrong_files_name_the_setting(tmp_path, content, message):
    file = tmp_path / "a.yaml"
    file.write_text(content)
    for given in (None, RunConfig.model_validate({"optim": {"lr": 0.25}, "model": {"name": "pvt_v2_b2"}})):
        with pytest.raises(UserError, match=message):
            resolve(given, file)


@pytest.mark.parametrize("content", ["optim:\n", "optim: {}\nmodel:\n"])
def test_an_empty_section_is_no_settings(tmp_path, content):
    file = tmp_path / "a.yaml"
    file.write_text(content)
    assert resolve(None, file) == (RunConfig(), {})
    config, sources = resolve(RunConfig.model_validate({"optim": {"lr": 0.25}}), file)
    assert (config.optim.lr, sources) == (0.25, {"optim.lr": "command line"})


@pytest.mark.parametrize(("given", "size"), [("224", (224, 224)), ("64x96", (64, 96)), (128, (128, 128)), ([64, 96], (64, 96))])
def test_sizes(given, size):
    assert AugmentConfig.model_validate({"size": given}).size == size


def test_every_setting_is_explained():
    for section in (RunConfig, *(field.annotation for name, field in RunConfig.model_fields.items() if name != "task")):
        for name, field in section.model_fields.items():  # pyright: ignore
            if section is not RunConfig or name == "task":
                assert field.description, f"{section}.{name}"


def test_settings_cannot_be_changed_by_accident():
    with pytest.raises(ValueError, match="frozen"):
        LoopConfig().epochs = 3


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"mean": (0.5,)}, "mean has 1 values and std has 3"),
        ({"mean": (), "std": ()}, "mean needs a finite number"),
        ({"mean": (0.5, 0.5, float("nan"))}, "mean needs a finite number"),
        ({"std": (0.2, 0.2, 0.0)}, "std needs a finite number above 0"),
        ({"std": (0.2, 0.2, float("inf"))}, "std needs a finite number above 0"),
        ({"size": (16, 64)}, "16x64 is too small"),
        ({"crop": float("nan")}, "crop is the share"),
        ({"value_range": (1.0, 1.0)}, "value_range needs two finite numbers"),
        ({"value_range": (0.0, float("inf"))}, "value_range needs two finite numbers"),
    ],
)
def test_impossible_preprocessing_is_the_users_to_mend(wrong, message):
    with pytest.raises(UserError, match=message):
        Preprocess(**wrong)
