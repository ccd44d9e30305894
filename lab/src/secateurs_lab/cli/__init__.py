"""The commands of the laboratory, which `secateurs` finds by their entry point."""

from secateurs.cli.commands import Command

COMMANDS = {
    "demo": Command(
        "secateurs_lab.cli.demo",
        "demo",
        "Compare seven ways to make a LeNet sparse, open a page about it, ship the best one.",
    ),
    "models": Command(
        "secateurs_lab.cli.lists",
        "models",
        "List the networks that come with the package.",
    ),
    "data": Command(
        "secateurs_lab.cli.lists",
        "data",
        "List the data sets that can be read.",
    ),
    "zoo": Command(
        "secateurs_lab.cli.zoo",
        "zoo",
        "List the small networks that come with the package, check records, or write their page.",
    ),
    # Last, because groups are listed behind the commands.
    "study": Command(
        "secateurs_lab.cli.study",
        "app",
        "Compare methods in a crash-safe study.",
    ),
}
"""The words are those of the functions' docstrings; a test compares them."""
