"""The commands by name: where their functions are, and the words that `--help` shows.

A new command is a file with a function and an entry here.
"""

from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module


@dataclass(frozen=True, slots=True)
class Command:
    """Where the function of a command is, and the first sentences of its help.

    `secateurs --help` needs these words alone. Importing all functions for them takes a tenth of
    its time.
    """

    module: str
    name: str
    summary: str

    @property
    def function(self) -> Callable[..., None]:
        """The function itself."""
        module = import_module(f"secateurs.cli.{self.module}")
        found: Callable[..., None] = getattr(module, self.name)
        return found


# The words are those of the functions' docstrings; a test compares them.
COMMANDS = {
    "prune": Command(
        "prune",
        "prune",
        "Prune a checkpoint and write it as a plain checkpoint again, with a report.",
    ),
    "train": Command(
        "training.train",
        "train",
        "Train a network and write a plain checkpoint.",
    ),
    "inspect": Command(
        "inspect",
        "inspect",
        "Report the sparsity of every weight in a file. The network need not be "
        "known.",
    ),
    "certify": Command(
        "certify",
        "certify",
        "Bound the largest difference of two networks of one structure, for every "
        "input of a region.",
    ),
    "compact": Command(
        "compact",
        "compact",
        "Cut dead channels and neurons out of a checkpoint; its outputs stay what "
        "they were.",
    ),
    "recheck": Command(
        "recheck",
        "recheck",
        "Prove a kept certificate again, from the two networks alone.",
    ),
    "scores": Command(
        "lists",
        "scores",
        "List the scores: how important is a weight.",
    ),
    "models": Command(
        "lists",
        "models",
        "List the networks that come with the package.",
    ),
    "data": Command(
        "lists",
        "data",
        "List the data sets that can be read.",
    ),
    "demo": Command(
        "demo",
        "demo",
        "Compare seven ways to make a LeNet sparse, open a page about it, ship the "
        "best one.",
    ),
    "paths": Command(
        "paths",
        "paths",
        "Path norm of a network, the share of path mass in each layer, dead "
        "channels, and layers that are lost.",
    ),
    "plan": Command(
        "theory.plan",
        "plan",
        "Say in plain words what theory guarantees about pruning a network of these "
        "widths, or the one in a file.",
    ),
    "diagnose": Command(
        "theory.diagnose",
        "diagnose",
        "Moments and distribution of every weight in a file, against what the "
        "theorems assume.",
    ),
    "random-matrices": Command(
        "theory.probabilistic",
        "probabilistic",
        "Norms of random matrices, or moments of trained weights, beside the tables "
        "in print.",
    ),
    "reproduce": Command(
        "reproduce",
        "reproduce",
        "Run a published experiment and print ours, the paper's and the deviation.",
    ),
    "pack": Command(
        "shipping.pack",
        "pack",
        "Write a checkpoint without its zeros, exact to the bit. The network need "
        "not be known.",
    ),
    "unpack": Command(
        "shipping.pack",
        "unpack",
        "Write the dense safetensors checkpoint of a sparse file; every bit is what "
        "it was.",
    ),
    "export": Command(
        "shipping.export",
        "export",
        "Write a network for another runtime; it is run at once and kept only if it "
        "is equal.",
    ),
    "measure": Command(
        "shipping.measure",
        "measure",
        'Compare a network as it is, compacted and on the fast path; "no gain" '
        "where there is none.",
    ),
}
STUDY = "Compare methods in a study that nothing can lose."
