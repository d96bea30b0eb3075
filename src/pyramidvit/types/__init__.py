"""Typed values that cross file boundaries; valid by construction, the empty case included."""

from pyramidvit.types.content import Cell, Picture, Section, Table
from pyramidvit.types.predictions import ClassScores, Detections, Prediction, SegMap, Timeline
from pyramidvit.types.samples import (
    BadSample,
    Batch,
    BoxTarget,
    ClassTarget,
    Film,
    Interpolation,
    MaskTarget,
    Preprocess,
    Rle,
    Sample,
    Target,
)

__all__ = [
    "BadSample",
    "Batch",
    "BoxTarget",
    "Cell",
    "ClassScores",
    "ClassTarget",
    "Detections",
    "Film",
    "Interpolation",
    "MaskTarget",
    "Picture",
    "Prediction",
    "Preprocess",
    "Rle",
    "Sample",
    "Section",
    "SegMap",
    "Table",
    "Target",
    "Timeline",
]
