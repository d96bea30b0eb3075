"""Pictures for people: a prediction on its picture, sheets of samples, and the plots of a run."""

from pyramidvit.draw.canvas import BLUE, GREEN, LARGEST, RED, SMALLEST, TRACK, encode_png, shorten, shown, typeset
from pyramidvit.draw.classes import annotate_classes, contact_sheet
from pyramidvit.draw.clips import annotate_clip, annotate_timeline, film_strip, mosaic
from pyramidvit.draw.dense import annotate_detections, annotate_segmentation, class_colours
from pyramidvit.draw.plots import confusion_picture, curves_picture, precision_recall_picture

__all__ = [
    "BLUE",
    "GREEN",
    "LARGEST",
    "RED",
    "SMALLEST",
    "TRACK",
    "annotate_classes",
    "annotate_clip",
    "annotate_detections",
    "annotate_segmentation",
    "annotate_timeline",
    "class_colours",
    "confusion_picture",
    "contact_sheet",
    "curves_picture",
    "encode_png",
    "film_strip",
    "mosaic",
    "precision_recall_picture",
    "shorten",
    "shown",
    "typeset",
]
