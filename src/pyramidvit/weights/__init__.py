"""Weights in and out, with proof: a file loads whole and exactly, or not at all."""

from pyramidvit.weights.fit import adapt_stem, inflated
from pyramidvit.weights.loading import load
from pyramidvit.weights.own import META_KEY, WeightsMeta, read, save
from pyramidvit.weights.report import LoadReport

__all__ = ["META_KEY", "LoadReport", "WeightsMeta", "adapt_stem", "inflated", "load", "read", "save"]
