"""`pyramidvit weights`: what is published."""

from dataclasses import asdict
from fnmatch import fnmatch

from rich.console import Console
from rich.table import Table

from pyramidvit.errors import UserError
from pyramidvit.verbs import Json, print_json
from pyramidvit.weights.download import cache_folder
from pyramidvit.weights.zoo import NUM_CLASSES, ZOO


def weights(pattern: str = "*", *, json: Json = False) -> int:
    """List published weights whose name matches a pattern such as 'pvt_v2_*'; --weights NAME of train starts from them.

    Args:
        pattern: Shell-style pattern of names.
        json: Print everything that is known of them as JSON, nothing else.
    """
    records = [record for name, record in ZOO.items() if fnmatch(name, pattern)]
    if not records:
        raise UserError(f"No published weights match {pattern!r}. `pyramidvit weights` lists all.")
    if json:
        print_json([asdict(record) | {"num_classes": NUM_CLASSES[record.classes], "sha256": record.sha256} for record in records])
        return 0
    table = Table(caption=f"Kept in {cache_folder()}. Numbers are the publishers'.", caption_justify="left")
    for column in ("name", "trained on", "published", "licence", "from"):
        table.add_column(column, overflow="fold", no_wrap=column in ("name", "published"))
    for record in records:
        numbers = " ".join(f"{name} {value:.1f}" for name, value in record.numbers.items())
        table.add_row(record.name, record.classes, numbers, record.licence, record.url)
    Console(highlight=False, width=None if Console().is_terminal else 200).print(table)
    return 0
