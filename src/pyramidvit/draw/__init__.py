"""Pictures for people: a prediction on its picture, sheets of samples, and the plots of a run."""

from pyramidvit.draw.canvas import BLUE, GREEN, LARGEST, RED, SMALLEST, TRACK, encode_png, shorten, shown, typeset
from pyramidvit.draw.classes import annotate_classes, contact_sheet
from pyramidvit.draw.plots import confusion_picture, curves_picture

__all__ = [
    "BLUE",
    "GREEN",
    "LARGEST",
    "RED",
    "SMALLEST",
    "TRACK",
    "annotate_classes",
    "confusion_picture",
    "contact_sheet",
    "curves_picture",
    "encode_png",
    "shorten",
    "shown",
    "typeset",
]
