"""secateurs: score, draw, train sparse, certify and ship sparse PyTorch networks, on your own
unmodified model.

Public names are resolved on first use, so that `import secateurs` (and `secateurs --help`) does not
import torch.
"""

from typing import TYPE_CHECKING

from secateurs.base.lazy import open_on_first_use
from secateurs.version import __version__ as __version__

if TYPE_CHECKING:
    from secateurs import (
        adapters,
        channels,
        errors,
        files,
        graph,
        llm,
        masks,
        optim,
        paths,
        proof,
        prune,
        scores,
        ship,
        theory,
    )
    from secateurs.channels.compact import compact
    from secateurs.channels.macs import macs
    from secateurs.files.read import load_sparse, read_sparse
    from secateurs.files.write import save_sparse
    from secateurs.graph.capture import capture
    from secateurs.llm.blocks import prune_blocks_
    from secateurs.llm.drop import drop_blocks_
    from secateurs.llm.on_disk import prune_file
    from secateurs.llm.perplexity import perplexity
    from secateurs.llm.reconstruct_model import reconstruct_
    from secateurs.masks.apply import apply_
    from secateurs.masks.files import load_masks, save_masks
    from secateurs.masks.report import sparsity_report
    from secateurs.masks.select import select
    from secateurs.optim.holding import hold
    from secateurs.paths.costs import path_costs
    from secateurs.paths.liveness import liveness
    from secateurs.paths.norms import log2_path_norm, path_norm, path_norm_penalty
    from secateurs.proof.certify import certify
    from secateurs.proof.lipschitz import lipschitz_bounds
    from secateurs.proof.metric import path_metric
    from secateurs.proof.normalize import normalize_
    from secateurs.proof.smallest_margin import smallest_margin
    from secateurs.proof.to_bound import prune_to_bound_
    from secateurs.prune.channels import prune_channels_
    from secateurs.prune.imp import imp_
    from secateurs.prune.pruning import prune_
    from secateurs.prune.recipe import Recipe
    from secateurs.scores.scorer import score
    from secateurs.ship.density_for import density_for
    from secateurs.ship.export import export
    from secateurs.ship.fast.accelerated import accelerate
    from secateurs.ship.latency import latency_table
    from secateurs.ship.measure import measure
    from secateurs.theory.diagnose import diagnose
    from secateurs.theory.generalization import generalization_bounds
    from secateurs.theory.measure import measure_pruning

__all__ = [
    "Recipe",
    "accelerate",
    "adapters",
    "apply_",
    "capture",
    "certify",
    "channels",
    "compact",
    "density_for",
    "diagnose",
    "drop_blocks_",
    "errors",
    "export",
    "files",
    "generalization_bounds",
    "graph",
    "hold",
    "imp_",
    "latency_table",
    "lipschitz_bounds",
    "liveness",
    "llm",
    "load_masks",
    "load_sparse",
    "log2_path_norm",
    "macs",
    "masks",
    "measure",
    "measure_pruning",
    "normalize_",
    "optim",
    "path_costs",
    "path_metric",
    "path_norm",
    "path_norm_penalty",
    "paths",
    "perplexity",
    "proof",
    "prune",
    "prune_",
    "prune_blocks_",
    "prune_channels_",
    "prune_file",
    "prune_to_bound_",
    "read_sparse",
    "reconstruct_",
    "save_masks",
    "save_sparse",
    "score",
    "scores",
    "select",
    "ship",
    "smallest_margin",
    "sparsity_report",
    "theory",
]

open_on_first_use(__name__)
