"""`torch.nn.utils.prune` with one changed import: the same calls and the same masks, no second copy
of the weights.

::

    import secateurs.compat as prune          # was: import torch.nn.utils.prune as prune

What a script may rely on, as with torch: every function takes the same arguments and keeps the same
entries (of equal scores the earlier; torch leaves that open; random ones draw the same numbers from
torch's generator); `module.weight` is zero where pruned; `module.weight_mask` has the dtype of the
weight; pruning again counts `amount` among what is left; zeros stay zero through any optimizer,
also one made before that carries momentum, and in a `deepcopy`; gradients of pruned entries are
zero; `remove` makes it permanent. Methods of your own derive from `BasePruningMethod`, as with
torch.

What is different: `module.weight` stays the parameter it was, so `named_parameters()` and the keys
of `state_dict()` do not change. There is no `weight_orig`, and `weight_mask` is a buffer that is
not saved (keep masks with `secateurs.save_masks`; read old checkpoints with
`secateurs.masks.from_torch_prune`). A parameter reached under several names in
`global_unstructured` is counted once. Weights are zero from the call on, not from the next forward
pass on, and the values they had are gone.
"""

from torch.nn.utils.prune import PruningContainer

from secateurs.compat.prune import (
    BasePruningMethod,
    CustomFromMask,
    Identity,
    L1Unstructured,
    LnStructured,
    RandomStructured,
    RandomUnstructured,
    custom_from_mask,
    global_unstructured,
    identity,
    is_pruned,
    l1_unstructured,
    ln_structured,
    random_structured,
    random_unstructured,
    remove,
)

__all__ = [
    "BasePruningMethod",
    "CustomFromMask",
    "Identity",
    "L1Unstructured",
    "LnStructured",
    "PruningContainer",
    "RandomStructured",
    "RandomUnstructured",
    "custom_from_mask",
    "global_unstructured",
    "identity",
    "is_pruned",
    "l1_unstructured",
    "ln_structured",
    "random_structured",
    "random_unstructured",
    "remove",
]
