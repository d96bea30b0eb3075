"""How good predictions are, over a whole data set: nothing is averaged per batch."""

from pyramidvit.metrics.classify import ClassificationMetric, ClassificationResult, bootstrap_interval
from pyramidvit.metrics.detect import DetectionMetric, DetectionResult

__all__ = ["ClassificationMetric", "ClassificationResult", "DetectionMetric", "DetectionResult", "bootstrap_interval"]
