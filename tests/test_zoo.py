"""The table of published weights: sound, complete for our networks, and found by name."""

import re

import pytest
import torch

from pyramidvit.errors import UserError
from pyramidvit.models import BACKBONES, list_models
from pyramidvit.weights import zoo
from pyramidvit.weights.layouts import LAYOUTS
from pyramidvit.weights.zoo import CLIPS, DENSE, LARGE_CLIPS, NUM_CLASSES, PICTURES, ZOO, class_names, clip_of, find, pretrained


@pytest.mark.slow
@pytest.mark.parametrize("name", ZOO)
def test_every_record_is_whole(name):
    record = ZOO[name]
    assert record.model in list_models()
    assert re.fullmatch(r"[a-z0-9_]+\.[a-z0-9_]+", name)
    assert re.fullmatch(r"https://[\w.-]+/[\w./-]+|hf:[\w-]+/[\w.-]+", record.url)
    assert record.layout in {layout.library for layout in LAYOUTS}
    assert record.licence in ("Apache-2.0", "BSD-3-Clause")
    assert all(1 < number < 100 for number in record.numbers.values())
    with torch.device("meta"):
        *frames, height, width = BACKBONES[record.model][0](BACKBONES[record.model][1]).input_shape[1:]
    assert (clip_of(record.model) or (None,))[0] == (frames[0] if frames else None)
    if record.head == "classify":
        assert record.preprocess in ((CLIPS, LARGE_CLIPS) if frames else (PICTURES,))
        assert record.preprocess.size == (height, width), "what the network was trained on"
    else:
        assert record.preprocess == DENSE[record.head]
    assert record.classes in NUM_CLASSES
    assert record.head in ("classify", "retinanet", "mask_rcnn", "semantic_fpn")


def test_no_file_is_listed_twice():
    assert len({record.url for record in ZOO.values()}) == len(ZOO)


def test_the_official_crop_is_kept_for_files_of_other_libraries():
    """Other libraries crop 0.9 or not at all, for which the numbers were not published."""
    for tag in ("in1k", "timm_in1k", "hf_in1k"):
        preprocess = find(f"pvt_v2_b2.{tag}").preprocess
        assert (preprocess.size, preprocess.crop, preprocess.interpolation) == ((224, 224), 0.875, "bicubic")
    for tag in ("k400", "mmaction2_k400", "mmaction2_ssv2"):
        assert find(f"mvitv2_large_40x3.{tag}").preprocess == LARGE_CLIPS
        assert find(f"mvitv2_base_32x3.{tag}").preprocess == CLIPS
    assert round(LARGE_CLIPS.size[0] / LARGE_CLIPS.crop) in (356, 357)


def test_hashes_come_from_file_names_that_carry_one():
    assert find("mvit_base_16x4.torchvision_k400").sha256 == "dbeb1030"
    assert find("pvt_v2_b5.mmdet_coco_retinanet").sha256 == "3420eb57"
    assert find("pvt_v2_b0.in1k").sha256 == ""
    assert find("mvitv2_small_16x4.k400").sha256 == "", "a number of a training run is no hash"


def test_names_that_are_not_there_are_answered_with_the_nearest():
    with pytest.raises(UserError, match=r"did you mean pvt_v2_b2\.in1k or pvt_v2_b2\.timm_in1k"):
        find("pvt_v2_b2")
    with pytest.raises(UserError, match=r"did you mean .*pvt_v2_b1\.in1k"):
        find("pvt_v2b1.in1k")


def test_pretrained_is_the_authors_file_where_it_can_be_fetched():
    assert pretrained("pvt_v2_b0").name == "pvt_v2_b0.in1k"
    assert pretrained("mvitv2_small_16x4").name == "mvitv2_small_16x4.k400"
    assert pretrained("mvit_base_16x4").name == "mvit_base_16x4.torchvision_k400", "the authors' file is on Google Drive"
    with pytest.raises(UserError, match="in a browser"):
        pretrained("mvit_base16")
    with pytest.raises(UserError, match="Nobody publishes weights of mvit_small_16x4"):
        pretrained("mvit_small_16x4")


@pytest.mark.parametrize("classes", NUM_CLASSES)
def test_class_names_are_as_many_as_classes(classes):
    assert len(class_names(classes)) == NUM_CLASSES[classes]


def test_class_names_are_in_the_order_of_training():
    assert class_names("ImageNet-1k")[0] == "tench"
    assert class_names("COCO")[:2] == ("person", "bicycle")
    assert class_names("COCO")[-1] == "toothbrush"
    assert class_names("Kinetics-400")[0] == "abseiling"


def test_file_names_in_the_cache_are_unique_and_say_what_they_are():
    names = [record.file_name for record in ZOO.values() if not record.url.startswith("hf:")]
    assert len(set(names)) == len(names)
    assert find("mvit_base24_32x3.k400").file_name == "mvit_base24_32x3.k400.pyth"
    assert find("pvt_small.coco_retinanet").file_name == "pvt_small.coco_retinanet.pth"
    assert zoo.find("pvt_small.coco_retinanet").by_hand
