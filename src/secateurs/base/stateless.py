"""A model run with other tensors, in another mode or as a copy, and left exactly as it was; and in
float64 without the cost of torch's copies."""

import copy
import tempfile
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from torch.utils._python_dispatch import TorchDispatchMode

from secateurs.base.interrupts import Uninterrupted
from secateurs.base.parameters import refuse_scripted
from secateurs.errors import DataError, SecateursError


def call_with(
    model: nn.Module,
    tensors: Mapping[str, Tensor],
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any] | None = None,
) -> Any:
    """What the model returns with these parameters and buffers; tied ones follow each other.

    `torch.func.functional_call` alone is not safe where one module has two names: it puts a tensor
    into the same place twice, and puts its own tensor back at the end. The model's parameters are
    then plain copies: ties to other modules are broken, and an optimizer trains what nobody reads.
    Here every place is named once.

    Args:
        model: any module; afterwards it holds the very same objects as before.
        tensors: by any name of a parameter or buffer. Those that are absent keep their own.
        args, kwargs: of the call.

    Example:
        >>> _ = torch.manual_seed(0)
        >>> model = nn.Linear(2, 1)
        >>> answer = call_with(model, {"weight": torch.zeros(1, 2)}, (torch.ones(2),))
        >>> bool(answer == model.bias)
        True
    """
    named: dict[str, Tensor] = dict(model.named_buffers(remove_duplicate=False))
    named.update(model.named_parameters(remove_duplicate=False))
    given = {id(named[name]): tensor for name, tensor in tensors.items()}
    places = {name: given[id(own)] for name, own in _places(model) if id(own) in given}
    return torch.func.functional_call(model, places, args, dict(kwargs or {}), tie_weights=False)


def _places(model: nn.Module) -> Iterator[tuple[str, Tensor]]:
    """Every place that holds a tensor, once, however many names its module has."""
    for prefix, module in model.named_modules():
        own = (*module._parameters.items(), *module._buffers.items())
        for name, tensor in own:
            if tensor is not None:
                yield f"{prefix}.{name}" if prefix else name, tensor


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """The model in evaluation mode: no dropout, no batch statistics. Afterwards every module is in
    its own mode.
    """
    modes = [(module, module.training) for module in model.modules()]
    try:
        model.eval()
        yield
    finally:
        with Uninterrupted():
            for module, training in modes:
                module.training = training


@contextmanager
def restoring() -> Iterator[Callable[[Iterable[Tensor]], None]]:
    """After an error or Ctrl-C, weights that were kept before they changed are what they were.

    They lie in a file without a name, since memory may not hold a model twice.

    >>> from contextlib import suppress
    >>> weight = torch.ones(2)
    >>> with suppress(ValueError), restoring() as keep:
    ...     keep([weight])
    ...     raise ValueError(weight.zero_())
    >>> weight
    tensor([1., 1.])
    """
    kept: list[Tensor] = []
    # Without a buffer, which would hold back the error of a full disk.
    with tempfile.TemporaryFile(buffering=0) as file:

        def keep(weights: Iterable[Tensor]) -> None:
            for weight in weights:
                try:
                    left = _bytes(weight).numpy().data
                    while left:
                        left = left[file.write(left) :]
                except OSError as error:
                    raise DataError(
                        f"{tempfile.gettempdir()} does not hold the weights as they were"
                        f" ({error.strerror}), and nothing was changed: name another folder by"
                        " TMPDIR."
                    ) from error
                kept.append(weight)

        try:
            yield keep
        except BaseException:
            with Uninterrupted():
                _read_back(kept, file)
            raise


def _read_back(kept: list[Tensor], file: Any) -> None:
    # The last first: of a weight of two blocks, what was kept last has the first's zeros.
    end = sum(weight.nbytes for weight in kept)
    for weight in reversed(kept):
        end -= weight.nbytes
        file.seek(end)
        held = torch.empty(weight.shape, dtype=weight.dtype)
        left = _bytes(held).numpy().data
        while left:
            left = left[file.readinto(left) :]
        weight.detach().copy_(held)


def _bytes(weight: Tensor) -> Tensor:
    return weight.detach().cpu().contiguous().flatten().view(torch.uint8)


def private_copy(model: nn.Module, *, error: type[SecateursError]) -> nn.Module:
    """A deep copy that takes no gradients along and can copy tensors with a history; `error` is
    raised where there is none.
    """
    refuse_scripted(model)
    memo: dict[int, Any] = {}
    for parameter in model.parameters():
        # A lazy parameter has no values to clone.
        if not is_lazy(parameter):
            # Handed to deepcopy as already copied, so that gradients in `.grad` are not copied.
            memo[id(parameter)] = nn.Parameter(parameter.detach().clone(), requires_grad=False)
    for module in model.modules():
        for value in vars(module).values():
            # Such as the weight that weight_norm computes.
            if isinstance(value, Tensor) and not value.is_leaf:
                memo[id(value)] = value.detach().clone()
            # A dozen tables of a module are of hooks, and empty; deepcopy asks each how it is made.
            elif type(value) in (OrderedDict, dict) and not value:
                memo[id(value)] = type(value)()
    try:
        return copy.deepcopy(model, memo)
    except Exception as cause:
        raise error(
            f"{type(model).__name__} cannot be copied ({cause}), and the work is done on a copy so"
            " that the model stays as it is. Make it work with copy.deepcopy: remove locks, open"
            " files and computed tensors it holds."
        ) from cause


# torch has no kernel for convolutions in float64: it copies all windows out and multiplies
# matrices, group by group. The copy of an image of 128x128 with 32 channels is 37 MB, which the
# system hands out anew every time, and each of some hundred groups wakes all threads: on a busy
# machine with two of them a MobileNetV3 took 9 s instead of 0.07.

_COPIED = 2**20
"""Numbers that a part's windows may have: the copy then stays in the cache."""

_ALONE = 2**15
"""Numbers of a result that torch leaves to the calling thread; they stay in the cache, too."""


@contextmanager
def convolving_in_parts() -> Iterator[None]:
    """Convolutions of images in float64 run a few rows at a time, depthwise ones tap by tap.

    The same products are summed, in another order where it is depthwise. Nothing else changes.
    """
    with _InParts():  # type: ignore[no-untyped-call]
        yield


class _InParts(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Sees every operator, and computes some convolutions itself."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten.convolution.default and not kwargs:
            result = _in_parts(*args)
            if result is not None:
                return result
        return func(*args, **(kwargs or {}))


def _in_parts(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: list[int],
    padding: list[int],
    dilation: list[int],
    transposed: bool,
    _: list[int],
    groups: int,
) -> Tensor | None:
    """The convolution; None where torch is as good."""
    plain = type(x) is Tensor and x.device.type == "cpu" and x.dtype == torch.float64
    if transposed or not plain or x.ndim != 4 or not _fits(x, weight, bias, groups):
        return None
    spans = [d * (k - 1) + 1 for d, k in zip(dilation, weight.shape[2:], strict=True)]
    high, wide = (
        (size + 2 * pad - span) // step + 1
        for size, pad, span, step in zip(x.shape[2:], padding, spans, stride, strict=True)
    )
    if min(high, wide) < 1:
        return None
    depthwise = groups > 1 and weight.shape[1] == 1 and weight.shape[0] == groups
    row = wide * weight[0].numel() * (1 if depthwise else groups)
    if not depthwise and (groups > 1 or high * row <= 2 * _COPIED):
        return None
    padded = torch.nn.functional.pad(x, [padding[1], padding[1], padding[0], padding[0]])
    if depthwise:
        return _tap_by_tap(padded, weight, bias, stride, dilation, (high, wide))
    rows = max(1, _COPIED // row)
    parts = [
        torch.conv2d(
            padded[:, :, first * stride[0] : (min(first + rows, high) - 1) * stride[0] + spans[0]],
            weight, bias, stride, 0, dilation,
        )
        for first in range(0, high, rows)
    ]  # fmt: skip
    return torch.cat(parts, 2)


def _fits(x: Tensor, weight: Tensor, bias: Tensor | None, groups: int) -> bool:
    """Where anything does not fit, torch says what."""
    tensors = [weight] if bias is None else [weight, bias]
    same = all(t.dtype == x.dtype and t.device == x.device for t in tensors)
    channels = weight.ndim == 4 and x.shape[1] == weight.shape[1] * groups
    rows = weight.shape[0] % groups == 0 and (bias is None or bias.shape == weight.shape[:1])
    return same and channels and rows


def _tap_by_tap(
    padded: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    stride: list[int],
    dilation: list[int],
    size: tuple[int, int],
) -> Tensor:
    result = padded.new_zeros(padded.shape[0], weight.shape[0], *size)
    if bias is not None:
        result += bias[:, None, None]
    some = max(1, _ALONE // (size[0] * size[1]))
    parts = (torch.split(t, some, dim) for t, dim in ((result, 1), (padded, 1), (weight, 0)))
    for total, x, w in zip(*parts, strict=True):
        for i in range(w.shape[2]):
            for j in range(w.shape[3]):
                window = x[:, :, i * dilation[0] :: stride[0], j * dilation[1] :: stride[1]]
                total.addcmul_(window[:, :, : size[0], : size[1]], w[:, 0, i, j, None, None])
    return result
