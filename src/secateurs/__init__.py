"""secateurs: score, draw, train sparse, certify and ship sparse PyTorch networks, on your own
unmodified model.

Public names are resolved on first use, so that `import secateurs` (and `secateurs --help`) does not
import torch.
"""

from typing import TYPE_CHECKING

from secateurs.lazy import open_on_first_use
from secateurs.version import __version__ as __version__

if TYPE_CHECKING:
    from secateurs import (
        compat,
        data,
        errors,
        graph,
        masks,
        models,
        optim,
        paths,
        prune,
        scores,
        ship,
        study,
        theory,
        train,
    )
    from secateurs.diagnosis import measure_pruning
    from secateurs.diagnosis.diagnose import diagnose
    from secateurs.graph import capture
    from secateurs.masks import apply_, load_masks, save_masks, sparsity
    from secateurs.masks.select import select
    from secateurs.optim import hold
    from secateurs.paths import (
        certify,
        generalization_bounds,
        lifting,
        lipschitz_bounds,
        liveness,
        log2_path_norm,
        normalize_,
        path_costs,
        path_metric,
        path_norm,
        path_norm_penalty,
        rescale_random_,
    )
    from secateurs.prune import (
        Recipe,
        check_invariance,
        imp,
        imp_,
        prune_,
        prune_blocks_,
        prune_channels_,
        prune_file,
        prune_to_bound_,
    )
    from secateurs.scores import score
    from secateurs.ship import (
        accelerate,
        compact,
        export,
        latency_table,
        load_sparse,
        measure,
        read_sparse,
        save_sparse,
    )
    from secateurs.ship.macs import macs

__all__ = [
    "Recipe",
    "accelerate",
    "apply_",
    "capture",
    "certify",
    "check_invariance",
    "compact",
    "compat",
    "data",
    "diagnose",
    "errors",
    "export",
    "generalization_bounds",
    "graph",
    "hold",
    "imp",
    "imp_",
    "latency_table",
    "lifting",
    "lipschitz_bounds",
    "liveness",
    "load_masks",
    "load_sparse",
    "log2_path_norm",
    "macs",
    "masks",
    "measure",
    "measure_pruning",
    "models",
    "normalize_",
    "optim",
    "path_costs",
    "path_metric",
    "path_norm",
    "path_norm_penalty",
    "paths",
    "prune",
    "prune_",
    "prune_blocks_",
    "prune_channels_",
    "prune_file",
    "prune_to_bound_",
    "read_sparse",
    "rescale_random_",
    "save_masks",
    "save_sparse",
    "score",
    "scores",
    "select",
    "ship",
    "sparsity",
    "study",
    "theory",
    "train",
]

open_on_first_use(__name__)
