"""`secateurs models` and `secateurs data`: what exists, one line each."""

from secateurs.cli.commands import print_lines


def models() -> None:
    """List the networks that come with the package."""
    from secateurs_lab.models import MODELS

    print_lines((name, MODELS[name].summary) for name in MODELS.names())


def data() -> None:
    """List the data sets that can be read."""
    from secateurs_lab.data import DATA

    aliases: dict[str, list[str]] = {}
    for name in DATA.names():
        # Names of one set share its summary, and its line.
        aliases.setdefault(DATA[name].summary, []).append(name)
    print_lines((" = ".join(names), summary) for summary, names in aliases.items())
