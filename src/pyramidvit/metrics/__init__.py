"""How good predictions are, over a whole data set: nothing is averaged per batch."""

from pyramidvit.metrics.classify import ClassificationMetric, ClassificationResult, bootstrap_interval

__all__ = ["ClassificationMetric", "ClassificationResult", "bootstrap_interval"]
