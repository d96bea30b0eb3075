"""What became of every tensor of a file, in a table or in an error."""

import difflib
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

RESET = "left at their random start, since the file has none for these classes or this task"


@dataclass(frozen=True)
class LoadReport:
    """``loaded`` counts the tensors taken as they are; all others are named.

    ``adapted`` were fitted to this number of input channels, ``resized`` are position tables made for another input size, ``inflated`` were
    made for clips out of those for pictures, ``reset`` kept their random start because the classes differ or the file has no such head,
    ``cast`` have another type in the file, with both types, and ``dropped`` are the file's that this network does without, with the reason.
    ``patch_eps`` is the epsilon that came with the weights.
    """

    layout: str
    loaded: int
    adapted: tuple[str, ...] = ()
    resized: tuple[str, ...] = ()
    inflated: tuple[str, ...] = ()
    reset: tuple[str, ...] = ()
    dropped: Mapping[str, str] = field(default_factory=dict)
    patch_eps: float | None = None
    cast: Mapping[str, str] = field(default_factory=dict)

    @property
    def altered(self) -> set[str]:
        """The network's tensors that are not as the file has them."""
        return {*self.adapted, *self.resized, *self.inflated, *self.reset, *self.cast}

    def __str__(self) -> str:
        eps = "" if self.patch_eps is None else f", epsilon {self.patch_eps:g} after patches"
        total = self.loaded + len(self.altered)
        lines = [f"{self.loaded} of {total} tensors loaded as they are ({self.layout} layout{eps})"]
        rows = [
            (self.adapted, "fitted to this number of input channels"),
            (self.resized, "position tables resized to this input size"),
            (self.inflated, "made for clips out of those for pictures"),
            (self.reset, RESET),
            *((keys, f"converted {types}") for types, keys in _by_value(self.cast)),
            *((keys, f"in the file but {reason}") for reason, keys in _by_value(self.dropped)),
        ]
        return "\n".join([*lines, *(f"  {len(keys):>4} {fate}: {sample(keys)}" for keys, fate in rows if keys)])


def _by_value(fates: Mapping[str, str]) -> list[tuple[str, tuple[str, ...]]]:
    """Each fate once, with the keys that have it."""
    return [(fate, tuple(key for key, other in fates.items() if other == fate)) for fate in dict.fromkeys(fates.values())]


def sample(keys: Collection[str]) -> str:
    return ", ".join(sorted(keys)[:5]) + (", …" if len(keys) > 5 else "")


def mismatch(missing: Collection[str], unexpected: Collection[str], total: int, looks: str) -> str:
    """Why a file's names don't fit a model; ``looks`` says what the file seems to hold."""
    lines = [f"The file does not fit this model. {looks}".rstrip()]
    if missing:
        lines.append(f"  {len(missing)} of the model's {total} tensors are not in the file: {sample(missing)}")
    if unexpected:
        lines.append(f"  {len(unexpected)} tensors of the file have no place in the model: {sample(unexpected)}")
        hints = [(key, close[0]) for key in sorted(unexpected) if (close := difflib.get_close_matches(key, sorted(missing)[:500], 1, 0.8))]
        lines += [f"    {key} may be meant for {close}" for key, close in hints[:3]]
    return "\n".join(lines)
