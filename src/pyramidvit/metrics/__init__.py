"""How good predictions are, over a whole data set: nothing is averaged per batch."""

from pyramidvit.metrics.classify import ClassificationMetric, ClassificationResult, bootstrap_interval
from pyramidvit.metrics.detect import DetectionMetric, DetectionResult
from pyramidvit.metrics.segment import SegmentationMetric, SegmentationResult

__all__ = [
    "ClassificationMetric",
    "ClassificationResult",
    "DetectionMetric",
    "DetectionResult",
    "SegmentationMetric",
    "SegmentationResult",
    "bootstrap_interval",
]
