"""Operators on parameters, buffers and constants only: kept as sources, computed when asked for."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, fx
from torch.utils import _pytree as pytree

from secateurs.graph.operators import runnable
from secateurs.graph.sources import Computed, Role, Source

aten = torch.ops.aten
SAME = {
    *(
        aten.detach.default,
        aten.detach_.default,
        aten.alias.default,
        aten.clone.default,
        aten.contiguous.default,
    ),
    *(aten.lift_fresh_copy.default, aten.lift_fresh.default),
}
FACTOR_KEEPING = {
    *(
        aten.view.default,
        aten.reshape.default,
        aten.permute.default,
        aten.transpose.int,
        aten.t.default,
    ),
    *(
        aten.unsqueeze.default,
        aten.squeeze.dim,
        aten.clone.default,
        aten.contiguous.default,
        aten.detach.default,
    ),
    *(
        aten.neg.default,
        aten.mul.Tensor,
        aten.alias.default,
        aten.flatten.using_ints,
        aten.slice.Tensor,
    ),
    *(
        aten.select.int,
        aten.cat.default,
        aten.stack.default,
        aten.flip.default,
        aten.lift_fresh_copy.default,
    ),
}


class StaticMany:
    """Several results of an operator on constants, picked by position."""

    def __init__(self, node: fx.Node, args: Any, kwargs: Any) -> None:
        self.node, self.args, self.kwargs = node, args, kwargs

    def __getitem__(self, index: int) -> Source:
        return computed(self.node, self.args, self.kwargs, index)


def computed(
    node: fx.Node, args: Any, kwargs: Any, index: int | None = None
) -> Computed:
    """The operator's result (or one of its results) as a source."""
    target: Any = runnable(node.target, node)
    expected = node.meta["val"] if index is None else node.meta["val"][index]
    dtypes = [a for a in (*args, *kwargs.values()) if _floating_dtype(a)]
    narrow = next((d for d in dtypes if _narrows(node, d)), None)
    run = _runner(target, index, narrow, floating=expected.is_floating_point())
    leaves = [
        leaf
        for leaf in pytree.tree_leaves((args, kwargs))
        if isinstance(leaf, Source)
    ]
    return Computed(
        run,
        list(args),
        dict(kwargs),
        # The operator's own name: two graphs are compared by these texts.
        label=f"{node.target}{'' if index is None else [index]}",
        shape=tuple(expected.shape),
        roles=_static_roles(node.target, leaves),
        floating=expected.is_floating_point(),
    )


def _runner(
    target: Any, index: int | None, narrow: torch.dtype | None, *, floating: bool
) -> Callable[[Any, Any], Tensor]:
    """The call itself, in float64 throughout, except for roundings that the model asks for."""
    schema = getattr(target, "_schema", None)
    changes = schema is not None and schema.is_mutable

    def function(call_args: Any, call_kwargs: Any) -> Tensor:
        # Made from no floating tensor: in the model a float32, here a constant among float64.
        made = floating and not any(map(_is_real, pytree.tree_leaves(call_args)))
        if floating:  # 1/3 of integers would be a float32
            call_args = _without_integers(call_args)
        # Constants are computed in the dtype of the analysis, not in the one the code names.
        dtype = next((a.dtype for a in call_args if _is_real(a)), torch.float64)
        call_args = [dtype if _floating_dtype(a) else a for a in call_args]
        call_kwargs = {
            k: dtype if _floating_dtype(v) else v for k, v in call_kwargs.items()
        }
        # An in-place operator on parameters would write into the user's model.
        if changes:  # never the model's own tensor
            call_args = [call_args[0].clone(), *call_args[1:]]
        result = target(*call_args, **call_kwargs)
        value: Tensor = result if index is None else result[index]
        value = value.double() if made else value
        return value if narrow is None else value.to(narrow).to(value.dtype)

    return function


def _without_integers(call_args: Any) -> Any:
    """Integer tensors as float64 where no floating tensor sets the precision."""
    tensors = [a for a in call_args if isinstance(a, Tensor)]
    if not tensors or any(map(_is_real, tensors)):
        return list(call_args)
    return [a.double() if isinstance(a, Tensor) else a for a in call_args]


def _is_real(value: Any) -> bool:
    return isinstance(value, Tensor) and value.is_floating_point()


def _floating_dtype(value: Any) -> bool:
    return isinstance(value, torch.dtype) and value.is_floating_point


def _narrows(node: fx.Node, dtype: torch.dtype) -> bool:
    """Whether this conversion loses digits of what enters."""
    values = [n.meta.get("val") for n in node.all_input_nodes]
    before = [
        v.dtype for v in values if isinstance(v, Tensor) and v.is_floating_point()
    ]
    return any(torch.finfo(dtype).eps > torch.finfo(b).eps for b in before)


def _static_roles(target: Any, sources: list[Source]) -> dict[str, Role]:
    """Which named tensors are still plain factors after this operator; cautious where unsure."""
    names = [name for source in sources for name in source.names]
    # A name that enters twice (w·w, w beside w) breaks the rule "one entry of one
    # tensor".
    linear = target in FACTOR_KEEPING and len(names) == len(set(names))
    roles: dict[str, Role] = {}
    for source in sources:
        for name, role in source.roles.items():
            roles[name] = "factor" if linear and role == "factor" else "other"
    return roles
