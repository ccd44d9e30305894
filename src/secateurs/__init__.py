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
        adapters,
        certificates,
        channels,
        data,
        errors,
        graph,
        masks,
        models,
        optim,
        paths,
        prune,
        report,
        scores,
        ship,
        study,
        theory,
        train,
        zoo,
    )
    from secateurs.certificates import certify
    from secateurs.channels import compact, normalize_
    from secateurs.channels.macs import macs
    from secateurs.diagnosis import measure_pruning
    from secateurs.diagnosis.diagnose import diagnose
    from secateurs.graph import capture
    from secateurs.masks import apply_, load_masks, save_masks, sparsity_report
    from secateurs.masks.select import select
    from secateurs.optim import hold
    from secateurs.paths import (
        generalization_bounds,
        lipschitz_bounds,
        liveness,
        log2_path_norm,
        path_costs,
        path_metric,
        path_norm,
        path_norm_penalty,
    )
    from secateurs.prune import (
        Recipe,
        drop_blocks_,
        imp_,
        perplexity,
        prune_,
        prune_blocks_,
        prune_channels_,
        prune_file,
        prune_to_bound_,
    )
    from secateurs.scores import score
    from secateurs.ship import (
        accelerate,
        density_for,
        latency_table,
        load_sparse,
        read_sparse,
        save_sparse,
    )
    from secateurs.ship.export import export
    from secateurs.ship.measure import measure

__all__ = [
    "Recipe",
    "accelerate",
    "adapters",
    "apply_",
    "capture",
    "certificates",
    "certify",
    "channels",
    "compact",
    "data",
    "density_for",
    "diagnose",
    "drop_blocks_",
    "errors",
    "export",
    "generalization_bounds",
    "graph",
    "hold",
    "imp_",
    "latency_table",
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
    "perplexity",
    "prune",
    "prune_",
    "prune_blocks_",
    "prune_channels_",
    "prune_file",
    "prune_to_bound_",
    "read_sparse",
    "report",
    "save_masks",
    "save_sparse",
    "score",
    "scores",
    "select",
    "ship",
    "sparsity_report",
    "study",
    "theory",
    "train",
    "zoo",
]

open_on_first_use(__name__)
