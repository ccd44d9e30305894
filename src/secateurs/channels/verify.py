"""Checks on inputs, in float64, that two models are the same function: on every call of
`compact`."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from secateurs.base.convolving import convolving_in_parts
from secateurs.base.resized import resize_attribute_
from secateurs.channels.labels import Labelled, leaves
from secateurs.channels.removal import Resized
from secateurs.graph import Example
from secateurs.graph.untouched import keeping


def samples(example: Example, like: Tensor) -> Iterator[Example]:
    """The example's first sample, one of random numbers, and a batch of both kinds, in the dtype
    and on the device of `like`."""
    generator = torch.Generator().manual_seed(0)

    def first(tensor: Tensor) -> Tensor:
        # Ids and flags are not numbers to convert.
        moved = like if tensor.is_floating_point() else like.device
        return tensor[:1].detach().to(moved)

    def noise(tensor: Tensor) -> Tensor:
        if not tensor.is_floating_point():
            return _shuffle(tensor, generator).to(like.device)
        # Drawn in float64 and then cast: the same input for a model of any dtype.
        return torch.randn(tensor[:1].shape, generator=generator, dtype=torch.float64).to(like)

    def both(tensor: Tensor) -> Tensor:
        return torch.cat([first(tensor), noise(tensor)])

    # The example may be all zeros, which hides what a random input shows; one sample hides what
    # samples do to each other.
    for change in (first, noise, both):
        if isinstance(example, Tensor):
            yield change(example)
        elif isinstance(example, Mapping):
            yield {name: change(tensor) for name, tensor in example.items()}
        else:
            yield [change(tensor) for tensor in example]


def _shuffle(ids: Tensor, generator: torch.Generator) -> Tensor:
    """Ids drawn from the example's own, so that none lies outside of a vocabulary."""
    known = ids.detach().cpu().flatten()
    index = torch.randint(len(known), ids[:1].shape, generator=generator)
    return known[index]


@torch.no_grad()
def difference(one: nn.Module, other: nn.Module, example: Example) -> float:
    """The largest |f(x) − g(x)| / max |f(x)| over all outputs, on two inputs; infinite where a
    shape differs. Both models stay as they were."""
    *alone, _ = samples(example, _like(one))
    with _kept(one), _kept(other), convolving_in_parts():
        # The other first: if it does not even run, nothing was computed in vain.
        found = [run(other, x) for x in alone]
        return max(_apart(run(one, x), y) for x, y in zip(alone, found, strict=True))


def difference_in_a_batch(
    one: nn.Module,
    other: nn.Module,
    example: Example,
    mode: Callable[[], Any] = torch.no_grad,
) -> float:
    """The same on a batch of two inputs; on each of two where f takes no batch."""
    *_, together = samples(example, _like(one))
    with _kept(one), _kept(other):
        try:
            with mode():
                wanted = run(one, together)
        except Exception:  # it takes one sample at a time, or does not run in this mode
            return difference(one, other, example)
        try:
            with mode():
                found = run(other, together)
            with torch.no_grad():
                return _apart(wanted, found)
        except (RuntimeError, ValueError, IndexError, TypeError, AssertionError):
            return float("inf")


def difference_in_every_mode(
    one: nn.Module, other: nn.Module, example: Example, *, alike: bool = False
) -> float:
    """The largest of `difference_in_a_batch`, with gradients and without, and in inference mode.

    alike: a batch of `one` was found to answer alike in all of these, as `capture` compares it.
        It then answers once, and in every mode only where `other` is not close to that.
    """
    if not alike:
        return max(difference_in_a_batch(one, other, example, mode) for mode in _MODES)
    *_, together = samples(example, _like(one))
    with _kept(one), _kept(other):
        try:
            with torch.no_grad():
                wanted = run(one, together)
            apart = [_in_mode(other, together, wanted, mode) for mode in _MODES]
        except Exception:  # one sample at a time, or a mode in which one of them does not run
            apart = [float("inf")]
    if max(apart) <= _CLOSE:
        return max(apart)
    return difference_in_every_mode(one, other, example)


_MODES: tuple[Callable[[], Any], ...] = (torch.no_grad, torch.enable_grad, torch.inference_mode)
_CLOSE = 1e-5
"""Sums in another order differ by less in single precision."""


def _in_mode(model: nn.Module, together: Example, wanted: object, mode: Callable[[], Any]) -> float:
    with mode():
        found = run(model, together)
    with torch.no_grad():
        return _apart(wanted, found)


@contextmanager
def _kept(model: nn.Module) -> Iterator[None]:
    """Keeps our copies as they are, whatever runs, since one of them is returned to the user."""
    before = [(b, b.clone()) for b in model.buffers()]
    with keeping(model):
        yield
    for buffer, values in before:
        buffer.copy_(values)


def _like(model: nn.Module) -> Tensor:
    return next(model.parameters(), torch.zeros((), dtype=torch.float64))


def _apart(ours: object, theirs: object) -> float:
    pairs = zip(leaves(ours), leaves(theirs), strict=True)
    return max((relative(a, b) for a, b in pairs), default=0.0)


def run(model: nn.Module, example: Example) -> object:
    """The model on an example."""
    if isinstance(example, Tensor):
        return model(example)
    return model(**example) if isinstance(example, Mapping) else model(*example)


def relative(a: Tensor, b: Tensor) -> float:
    """max |a − b| / max |a|."""
    if a.shape != b.shape:
        return float("inf")
    if not a.numel():
        return 0.0
    scale = float(a.abs().max())
    apart = float((a.double() - b.double()).abs().max())
    if apart == 0:
        return 0.0
    # `apart == apart` fails for NaN: outputs that are
    # no numbers count as infinitely far.
    return apart / scale if scale > 0 and apart == apart else float("inf")


@torch.no_grad()
def failing_module(model: nn.Module, example: Example) -> str | None:
    """The name of the innermost module whose forward pass raises; None where it runs."""
    open_: list[str] = []
    names = {module: name for name, module in model.named_modules()}

    def begin(module: nn.Module, *_: Any) -> None:
        open_.append(names[module])

    def end(*_: Any) -> None:
        open_.pop()

    with ExitStack() as stack:
        for module in names:
            # A module that raises never ends, so it is on top of the list.
            for handle in (
                module.register_forward_pre_hook(begin),
                module.register_forward_hook(end),
            ):
                stack.callback(handle.remove)
        try:
            run(model, next(samples(example, _like(model))))
        except Exception:  # the model's own code
            return open_[-1] if open_ else ""
    return None


# Slices the tensors of a copy of the model and sets the sizes its modules keep as attributes.


def shrink_(
    model: nn.Module,
    found: Labelled,
    tensors: Mapping[str, Tensor],
    changes: Sequence[Resized],
    fresh: Iterable[str] = (),
) -> None:
    """Cut a copy of a labelled model down: its tensors, its layers' sizes, its own attributes."""
    narrow_(model, tensors, set(fresh))
    resize_(model, found)
    for change in changes:
        resize_attribute_(model.get_submodule(change.module), change.attribute, change.after)


def narrow_(model: nn.Module, tensors: Mapping[str, Tensor], fresh: set[str]) -> None:
    """Replace parameters and buffers by smaller ones, ties kept; new biases are registered.

    tensors: the new values by name (tied ones under their first name), in any dtype: each is cast
    to its own.
    """
    parameters = dict(model.named_parameters(remove_duplicate=False))
    buffers = dict(model.named_buffers(remove_duplicate=False))
    with torch.no_grad():
        # By identity, because tied parameters are one tensor and have to stay one.
        new: dict[int, Tensor] = {}
        for name, value in tensors.items():
            if name in parameters:
                new[id(parameters[name])] = _parameter(parameters[name], value)
            elif name in buffers:
                new[id(buffers[name])] = value.to(buffers[name]).contiguous()
        for module in set(model.modules()):
            _replace_(module, new)
        for name in fresh:
            _register_(model, name, tensors[name])


def _parameter(old: nn.Parameter, value: Tensor) -> nn.Parameter:
    return nn.Parameter(value.detach().to(old).clone(), requires_grad=old.requires_grad)


def _replace_(module: nn.Module, new: Mapping[int, Tensor]) -> None:
    # Straight into the tables: setting an attribute
    # would break under a property of that name.
    for table in (module._parameters, module._buffers):
        for leaf, old in table.items():
            if id(old) in new:
                table[leaf] = new[id(old)]  # type: ignore[assignment]


def _register_(model: nn.Module, name: str, value: Tensor) -> None:
    path, _, leaf = name.rpartition(".")
    owner = model.get_submodule(path)
    # A new bias takes dtype, device and training from the weight beside it.
    weight = next(owner.parameters(recurse=False))
    owner.register_parameter(
        leaf,
        nn.Parameter(value.detach().to(weight), requires_grad=weight.requires_grad),
    )


def resize_(model: nn.Module, found: Labelled) -> None:
    """Set the sizes that PyTorch's own layers store; their forward pass reads the number of
    groups.
    """
    for use in found.uses:
        owner = model.get_submodule(use.node.place.module)
        if use.axes.groups > 1 and isinstance(owner, nn.modules.conv._ConvNd):
            transposed = isinstance(owner, nn.modules.conv._ConvTransposeNd)
            # Dimension 0 of a weight spans all groups: inputs of a transposed
            # convolution, outputs of the others.
            before = use.into.numel() if transposed else use.out.numel()
            owner.groups = owner.weight.shape[0] * use.axes.groups // before
    for module in model.modules():
        sync_size_attributes_(module)


def sync_size_attributes_(module: nn.Module) -> None:
    """Set in_features, out_channels and the like from the shapes of the tensors."""
    if isinstance(module, nn.modules.conv._ConvNd):
        sizes = module.weight.shape[0], module.weight.shape[1] * module.groups
        if isinstance(module, nn.modules.conv._ConvTransposeNd):
            module.in_channels, module.out_channels = sizes
        else:
            module.out_channels, module.in_channels = sizes
    elif isinstance(module, nn.Linear):
        module.out_features, module.in_features = module.weight.shape
    elif (
        isinstance(module, nn.modules.batchnorm._NormBase)
        # Even a norm without a weight of its own has the statistics.
        and module.running_var is not None
    ):
        module.num_features = module.running_var.shape[0]
    elif isinstance(module, nn.LayerNorm | nn.RMSNorm) and module.weight is not None:
        module.normalized_shape = tuple(module.weight.shape)
    elif isinstance(module, nn.Embedding):
        module.embedding_dim = module.weight.shape[1]
    elif isinstance(module, nn.MultiheadAttention):
        _sync_attention_(module, module.out_proj.weight.shape[1])


def _sync_attention_(module: nn.MultiheadAttention, width: int) -> None:
    """The heads keep their size: a narrower attention has fewer of them."""
    if width != module.embed_dim:
        module.embed_dim, module.num_heads = width, width // module.head_dim
        if module._qkv_same_embed_dim:
            module.kdim = module.vdim = width
