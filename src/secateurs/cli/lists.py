"""`secateurs scores`, `secateurs models`, `secateurs data`: what exists, one line each."""

from collections.abc import Iterable

from secateurs.cli.options import say


def scores() -> None:
    """List the scores: how important is a weight."""
    from secateurs.scores import SCORES

    _print((name, SCORES[name].description) for name in SCORES.names())


def models() -> None:
    """List the networks that come with the package."""
    from secateurs.models import MODELS

    _print((name, MODELS[name].summary) for name in MODELS.names())


def data() -> None:
    """List the data sets that can be read."""
    from secateurs.data import DATA

    aliases: dict[str, list[str]] = {}
    for name in DATA.names():
        # Names of one set share its summary, and its line.
        aliases.setdefault(DATA[name].summary, []).append(name)
    _print((" = ".join(names), summary) for summary, names in aliases.items())


def _print(rows: Iterable[tuple[str, str]]) -> None:
    # A list first: the width of the column is that of the longest name.
    lines = list(rows)
    width = max(len(name) for name, _ in lines)
    for name, summary in lines:
        say(f"{name:{width}}  {summary}")
