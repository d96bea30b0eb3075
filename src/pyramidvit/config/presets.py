"""Settings for small data and CPUs, where the published ones would take days. docs/results.md says what they reach, and in which time."""

from typing import Any

SMALL: dict[str, dict[str, Any]] = {
    "segment": {
        "head": {"preset": "small"},
        "dense": {"resize": "fixed", "input_size": (256, 256), "antialias": True, "distort": True},
        "optim": {"lr": 1e-3, "reference_batch": 8, "warmup_epochs": 2, "min_lr": 1e-5},
        "loop": {"batch_size": 8, "epochs": 40, "eval_every": 4},
    },
    "detect": {
        "head": {"preset": "small"},
        "dense": {"short": 256, "long": 416, "antialias": True, "scale": (0.75, 1.25), "distort": True},
        "optim": {"lr": 1e-3, "reference_batch": 8, "warmup_epochs": 2, "min_lr": 1e-5, "clip_grad": 10.0},
        "loop": {"batch_size": 4, "epochs": 24, "eval_every": 4, "ema_decay": 0.99},
    },
    "instances": {
        "head": {"preset": "small"},
        "dense": {"short": 256, "long": 416, "antialias": True, "scale": (0.75, 1.25), "distort": True},
        "optim": {"lr": 1e-3, "reference_batch": 8, "warmup_epochs": 2, "min_lr": 1e-5, "clip_grad": 10.0},
        "loop": {"batch_size": 4, "epochs": 24, "eval_every": 4, "ema_decay": 0.99},
    },
    "video": {
        "model": {"name": "mvit_mini_8x2"},
        "clip": {"frames": 8, "segments": True},
        "augment": {"size": (112, 112), "crop_scale": (0.5, 1.0), "rand_ops": 0, "erasing": 0.0, "mixup": 0.0, "cutmix": 0.0},
        "optim": {"lr": 3e-4, "reference_batch": 16, "warmup_epochs": 2},
        "loop": {"batch_size": 16, "epochs": 60, "eval_every": 5},
    },
}
"""Task → settings that differ from the defaults; they give way to a file of settings and to flags."""
