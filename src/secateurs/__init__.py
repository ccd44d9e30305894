"""secateurs: score, draw, train sparse, certify and ship sparse PyTorch networks, on your own
unmodified model.

Public names are resolved on first use, so that `import secateurs` (and `secateurs --help`) does not
import torch.
"""

from importlib import import_module
from typing import Any

__version__ = "0.1.0"

_HOME = {
    # scores, masks, pruning
    "score": "secateurs.scores",
    "select": "secateurs.masks",
    "apply_": "secateurs.masks",
    "sparsity": "secateurs.masks",
    "save_masks": "secateurs.masks",
    "load_masks": "secateurs.masks",
    "hold": "secateurs.optim",
    "Recipe": "secateurs.prune",
    "prune_": "secateurs.prune",
    "prune_blocks_": "secateurs.prune",
    "prune_channels_": "secateurs.prune",
    "prune_file": "secateurs.prune",
    "imp": "secateurs.prune",
    "imp_": "secateurs.prune",
    # graphs and paths
    "capture": "secateurs.graph",
    "path_norm": "secateurs.paths",
    "log2_path_norm": "secateurs.paths",
    "path_costs": "secateurs.paths",
    "path_metric": "secateurs.paths",
    "path_norm_penalty": "secateurs.paths",
    "certify": "secateurs.paths",
    "rescale_random_": "secateurs.paths",
    "normalize_": "secateurs.paths",
    "liveness": "secateurs.paths",
    "lifting": "secateurs.paths",
    "generalization_bounds": "secateurs.paths",
    "lipschitz_bounds": "secateurs.paths",
    "check_invariance": "secateurs.prune",
    "prune_to_bound_": "secateurs.prune",
    # shipping
    "compact": "secateurs.ship",
    "accelerate": "secateurs.ship",
    "macs": "secateurs.ship",
    "latency_table": "secateurs.ship",
    "export": "secateurs.ship",
    "measure": "secateurs.ship",
    "save_sparse": "secateurs.ship",
    "load_sparse": "secateurs.ship",
    "read_sparse": "secateurs.ship",
    # guarantees
    "diagnose": "secateurs.diagnosis",
    "measure_pruning": "secateurs.diagnosis",
}
_MODULES = (
    "compat",
    "data",
    "errors",
    "graph",
    "masks",
    "models",
    "optim",
    "paths",
    "prune",
    "scores",
    "ship",
    "study",
    "theory",
    "train",
)

__all__ = sorted([*_HOME, *_MODULES])  # noqa: PLE0605


def __getattr__(name: str) -> Any:
    if name in _HOME:
        return getattr(import_module(_HOME[name]), name)
    if name in _MODULES:
        return import_module(f"secateurs.{name}")
    raise AttributeError(f"module 'secateurs' has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
