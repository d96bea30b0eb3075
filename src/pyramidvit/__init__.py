"""Pyramid vision transformers for pictures and clips."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyramidvit.errors import UserError
    from pyramidvit.models import create_model, list_models
    from pyramidvit.models.mmdet import from_mmdet
    from pyramidvit.predict import Predictor, load

__version__ = "0.1.0"

_PLACES = {
    "UserError": "pyramidvit.errors",
    "create_model": "pyramidvit.models",
    "from_mmdet": "pyramidvit.models.mmdet",
    "list_models": "pyramidvit.models",
    "Predictor": "pyramidvit.predict",
    "load": "pyramidvit.predict",
}
"""Where each public name lives; a name is imported when first asked for, so that the command line starts without torch."""

__all__ = ["Predictor", "UserError", "__version__", "create_model", "from_mmdet", "list_models", "load"]


def __getattr__(name: str) -> Any:
    if name not in _PLACES:
        raise AttributeError(f"pyramidvit has no attribute {name!r}; it has {', '.join(sorted(_PLACES))}.")
    return getattr(import_module(_PLACES[name]), name)
