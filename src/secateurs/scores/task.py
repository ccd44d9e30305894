"""What a score rule is: a function of a `Task`, registered under a name."""

import logging
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import cache
from typing import Any, Literal, TypeAlias, TypedDict

import torch
from torch import Tensor, nn

from secateurs.base.parameters import Params
from secateurs.base.registry import Registry
from secateurs.errors import ArgumentError, ScoreError, SecateursError, first_line

_log = logging.getLogger("secateurs.scores")

# Tensors inside nested tuples, lists, mappings and dataclasses.


def tensors(value: Any) -> Iterator[Tensor]:
    """Every tensor of nested tuples, lists, mappings and dataclasses, in order."""
    if isinstance(value, Tensor):
        yield value
        return
    for part in _parts(value):
        yield from tensors(part)


def map_tensors(value: Any, change: Any) -> Any:
    """The same nesting of tuples, lists and mappings with every tensor changed; other values
    stay.
    """
    if isinstance(value, Tensor):
        return change(value)
    if isinstance(value, Mapping):
        return {key: map_tensors(part, change) for key, part in value.items()}
    if isinstance(value, (tuple, list)):
        parts = [map_tensors(part, change) for part in value]
        return tuple(parts) if isinstance(value, tuple) else parts
    return value


def _parts(value: Any) -> Iterable[Any]:
    if isinstance(value, Mapping):
        return list(value.values())
    if isinstance(value, (tuple, list)):
        return value
    if is_dataclass(value) and not isinstance(value, type):
        return [getattr(value, entry.name) for entry in fields(value)]
    return ()


# Data for scores: one batch, a list of batches or a loader; inputs as a tensor, a tuple or a dict;
# any output.

Inputs: TypeAlias = Tensor | tuple[Any, ...] | Mapping[str, Any]
"""What a model is called with: one positional tensor, a tuple of positional or a dict of keyword
arguments.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """Inputs and, where given, targets of some examples."""

    inputs: Inputs
    targets: Any = None

    @property
    def size(self) -> int:
        """How many examples: the length of the first input tensor."""
        return next((len(tensor) for tensor in tensors(self.inputs) if tensor.ndim), 1)

    def first(self) -> Inputs:
        """The inputs of the first example, as a batch of one."""
        size = self.size
        # Only what has the batch in front is cut: a scalar or a shared table stays
        # whole.
        inputs: Inputs = map_tensors(
            self.inputs, lambda t: t[:1] if t.ndim and len(t) == size else t
        )
        return inputs


def batches(data: Any, *, device: torch.device | None = None) -> Iterator[Batch]:
    """The data as batches. A tuple `(x, y)`, a tensor or a dict is one batch; anything else
    iterates over batches.

    Inside a list or loader a batch may also be a list `[x, y]`, as `DataLoader` makes it. In a dict
    of keyword arguments without targets of its own, "labels" are the targets.
    """
    single = isinstance(data, (tuple, Tensor, Mapping))
    if not single and not isinstance(data, Iterable):
        raise ArgumentError(
            f"batch={data!r} is a {type(data).__name__}: give (x, y), a list of such batches or a"
            " loader."
        )
    for item in (data,) if single else data:
        yield move_batch(_batch(item), device)


def move_batch(batch: Batch, device: torch.device | None) -> Batch:
    """The batch with its tensors on the device."""
    return Batch(inputs=_to(batch.inputs, device), targets=_to(batch.targets, device))


def logits(output: Any) -> Tensor:
    """The tensor a loss is taken of: the output itself, its `logits`, or else its first
    floating-point tensor.
    """
    if isinstance(output, Tensor):
        return output
    named = output.get("logits") if isinstance(output, Mapping) else getattr(output, "logits", None)
    if isinstance(named, Tensor):
        return named
    return floating(output)[0]


def floating(output: Any) -> list[Tensor]:
    """Every floating-point tensor of an output, in order; at least one."""
    found = [tensor for tensor in tensors(output) if tensor.is_floating_point()]
    if not found:
        raise ScoreError(
            f"the model's output, a {type(output).__name__}, holds no floating-point tensor to"
            " score by."
        )
    return found


def _batch(item: Any) -> Batch:
    if isinstance(item, Batch):
        return item
    if isinstance(item, Mapping):
        return Batch(
            # With labels among its inputs, a model of Hugging Face would compute a loss that is not
            # used.
            inputs={k: v for k, v in item.items() if k != "labels"},
            targets=item.get("labels"),
        )
    if isinstance(item, (tuple, list)) and len(item) == 2:
        # DataLoader turns tuples of inputs into lists; a tuple means positional
        # arguments here.
        inputs = tuple(item[0]) if isinstance(item[0], list) else item[0]
        return Batch(inputs=inputs, targets=item[1])
    if isinstance(item, Tensor):
        return Batch(inputs=item)
    raise ArgumentError(
        f"a batch is a {type(item).__name__}{_length(item)}; give (inputs, targets), a tensor or a"
        " dict of inputs, or a list or loader of these."
    )


def _length(item: Any) -> str:
    return f" of length {len(item)}" if isinstance(item, (tuple, list)) else ""


def _to(value: Any, device: torch.device | None) -> Any:
    # An inference tensor cannot take part in a backward pass, a copy of it can.
    return map_tensors(value, lambda t: (t.clone() if t.is_inference() else t).to(device))


# A model called on a batch, and what the decoder of an encoder-decoder (T5, BART, Whisper) is fed.
#
# Such a model of transformers makes its decoder's inputs from `labels`. A score that needs no loss
# runs the model without labels; then T5 has no decoder input at all, and BART silently takes the
# encoder's. So they are made here, as the model itself would.

_GIVEN = ("decoder_input_ids", "decoder_inputs_embeds")
_IGNORED = -100
"""Labels that count for no loss: padding."""


def call(model: nn.Module, inputs: Inputs) -> Any:
    """Call the model with a tensor, a tuple of positional or a dict of keyword arguments.

    Errors on data of another shape or precision name neither the model nor the data. The error
    raised here names both; the model's own error is its cause."""
    try:
        if isinstance(inputs, Mapping):
            return model(**inputs)
        return model(*inputs) if isinstance(inputs, tuple) else model(inputs)
    # Running out of memory has nothing to do with the data's shape, and loops catch it by its type.
    except (SecateursError, torch.OutOfMemoryError):
        raise
    except (
        AttributeError,
        LookupError,
        RuntimeError,
        TypeError,
        ValueError,
    ) as error:
        if _lacks_decoder_inputs(model, inputs):
            raise _refusal(model, error) from error
        raise ArgumentError(
            f"{type(model).__name__} does not run on {_inputs_in_words(inputs)}:"
            f" {first_line(error)}. Give the batch or example as the model is called, in its dtype."
        ) from error


def with_decoder_inputs(model: nn.Module, batch: Batch) -> Batch:
    """The batch with `decoder_input_ids` made from its labels where the model needs and lacks them.

    They are the labels one place to the right, behind the token a decoder starts with.
    """
    labels, inputs = batch.targets, batch.inputs
    if not _lacks_decoder_inputs(model, inputs) or not _token_ids(labels):
        return batch
    start = getattr(model.config, "decoder_start_token_id", None)
    if start is None:
        return batch
    padding = getattr(model.config, "pad_token_id", None) or 0
    shifted = torch.cat([labels.new_full((len(labels), 1), start), labels[:, :-1]], 1)
    ids = shifted.masked_fill(shifted == _IGNORED, padding)
    return replace(batch, inputs=dict(inputs, decoder_input_ids=ids))


def _lacks_decoder_inputs(model: nn.Module, inputs: Any) -> bool:
    """Whether this is an encoder-decoder of transformers, called without decoder inputs."""
    config = getattr(model, "config", None)
    if not getattr(config, "is_encoder_decoder", False):
        return False
    return not isinstance(inputs, Mapping) or all(inputs.get(n) is None for n in _GIVEN)


def _refusal(model: nn.Module, error: Exception) -> ArgumentError:
    """The error for a model that does not run because its decoder has no input."""
    return ArgumentError(
        f"{type(model).__name__} is an encoder-decoder, and the batch or example has nothing for"
        f" its decoder ({error}): put 'decoder_input_ids', or 'labels' from which they are made,"
        " into the dict of inputs."
    )


def _inputs_in_words(inputs: Any) -> str:
    """The inputs of the model in a few words, for errors."""
    forms = [f"{t.dtype} {tuple(t.shape)}" for t in tensors(inputs)]
    return f"inputs of {', '.join(forms[:4])}" if forms else f"a {type(inputs).__name__}"


def _token_ids(labels: object) -> bool:
    return isinstance(labels, Tensor) and labels.ndim == 2 and not labels.is_floating_point()


Convention: TypeAlias = Literal["paper", "reference"]
"""Which formula, where the paper and the code published with the method differ (docs/scores.md)."""


Mode: TypeAlias = Literal["keep", "train", "eval"]
"""The mode the model is scored in; "keep" is the mode the user left it in, module by module."""

Need: TypeAlias = Literal["batch", "loss", "example"]
Loss: TypeAlias = Callable[[Any, Any], Tensor]


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """What a score rule works on.

    `model` is a private copy and `parameters` its chosen parameters by name, leaves that require a
    gradient; a rule may change both. `batches()` iterates the data anew at each call, `example` is
    one input of the model, `keep` how many entries stay of the chosen parameters together (None
    where nobody has said it), and `generator` is where a rule draws its numbers from. (A rule
    registered with `runs=False` sees the user's own model and only reads it.)
    """

    model: nn.Module
    parameters: dict[str, nn.Parameter]
    convention: Convention = "paper"
    data: Any = None
    loss: Loss | None = None
    output: Callable[[Any], Any] | None = None
    example: Inputs | None = None
    keep: int | None = None
    generator: torch.Generator | None = None

    def batches(self) -> Iterator[Batch]:
        """The data, batch by batch, on the device of the model, with inputs for a decoder made
        from labels where they are lacking.
        """
        for batch in batches(self.data, device=self.device):
            yield with_decoder_inputs(self.model, batch)

    @property
    def device(self) -> torch.device:
        """The device of the first chosen parameter."""
        return next(iter(self.parameters.values())).device


class Finite(dict[str, Tensor]):
    """Scores of a rule that has looked at every entry and found no NaN and no infinity: they are
    not read a second time.
    """


class ScoreFields(TypedDict, total=False):
    """Keywords of `secateurs.score` and of the registered rules, for functions that hand them on.

    A rule of your own may have others: bind those with `functools.partial`.
    """

    batch: Any
    loss: Loss | None
    convention: Convention
    mode: Mode | None
    draws: int | None
    temperature: float | None
    relative: bool


Rule: TypeAlias = Callable[..., Params]
"""`rule(task, **options) -> {parameter name: tensor}`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoreRule:
    """A score: the rule, what the caller must give, whether it runs the model, and what it does
    once before rounds.
    """

    name: str
    rule: Rule
    needs: frozenset[Need] = frozenset()
    runs: bool = True
    prepare: Callable[[Task], None] | None = None
    gradients: "Gradients | None" = None
    description: str = ""


Gradients: TypeAlias = Callable[..., dict[str, Tensor] | None]
"""`gradients(task, **options)`: the gradients of which a score is |weight ⊙ gradient|; None where
the score takes more than that.
"""

SCORES: Registry[ScoreRule] = Registry(
    "score",
    homes={
        "grasp": "secateurs.scores.rules.grasp",
        "jacobian": "secateurs.scores.rules.jacobian",
        "magnitude": "secateurs.scores.rules.magnitude",
        "path": "secateurs.scores.rules.path",
        "path-draw": "secateurs.scores.rules.path_draw",
        "random": "secateurs.scores.rules.random",
        "snip": "secateurs.scores.rules.snip",
        "synflow": "secateurs.scores.rules.synflow",
        "synflow-chi": "secateurs.scores.rules.synflow",
        "taylor": "secateurs.scores.rules.taylor",
        "wanda": "secateurs.scores.rules.wanda",
    },
)
"""Every score by name. Register your own with `@score_rule("name")`."""


def score_rule(
    name: str,
    *,
    needs: Iterable[Need] = (),
    runs: bool = True,
    prepare: Callable[[Task], None] | None = None,
    gradients: Gradients | None = None,
) -> Callable[[Rule], Rule]:
    """Decorator: register `rule(task, **options) -> {name: tensor}` as a score.

    `needs` lists what the caller must give: "batch", "loss", "example" (taken from the batch when
    only that is given). `runs=False` promises that the rule neither runs the model nor writes to
    it: no copy is made. `prepare(task)` changes the copy once before all rounds; the rule then
    promises to leave the values of parameters and buffers alone, and a round costs no fresh copy.
    `gradients(task, **options)`, for a prepared score that is |weight ⊙ gradient|, gives the
    gradients alone: rounds then choose without writing the scores.

    >>> @score_rule("cube")
    ... def cube(task):
    ...     "|w|³: the same masks as magnitude, steeper draws."
    ...     return {name: p.detach().abs() ** 3 for name, p in task.parameters.items()}
    >>> "cube" in SCORES
    True
    >>> del SCORES._rules["cube"]  # an example leaves nothing behind
    """
    strange = sorted(set(needs) - {"batch", "loss", "example"})
    if strange:
        raise ArgumentError(
            f"score {name!r} needs {strange}; a rule can need 'batch', 'loss' and 'example'."
        )

    def decorate(rule: Rule) -> Rule:
        # The first paragraph of the docstring is what lists of scores print.
        summary = " ".join((rule.__doc__ or "").strip().partition("\n\n")[0].split())
        entry = ScoreRule(
            name=name,
            rule=rule,
            needs=frozenset(needs),
            runs=runs,
            prepare=prepare,
            gradients=gradients,
            description=summary,
        )
        SCORES.register(name)(entry)
        return rule

    return decorate


# The loss of each batch: the user's own, or the one a model computes itself.


def losses(task: Task, *, temperature: float = 1.0) -> Iterator[tuple[int, Tensor]]:
    """Size and mean loss of each batch, the outputs divided by the temperature; an error at the
    end if no batch has a gradient that is more than rounding errors.
    """
    found = sound = False
    for number, batch in enumerate(task.batches()):
        found = True
        if task.loss is None:
            yield batch.size, _own_loss(task, batch, number, temperature)
            sound = True  # its targets are labels
            continue
        output = _seen_by_loss(task, batch, number, temperature)
        # The first batch decides it, unless there is nothing to rank.
        sound = sound or not is_rounding(task.loss, output, batch.targets)
        yield batch.size, _loss(task.loss, output, batch.targets, number)
    if not found:
        raise ArgumentError(
            "the data has no batch; a loader that was read to its end must be made again."
        )
    if not sound:
        raise ScoreError(
            "the gradient of the loss is zero up to rounding, so there is nothing to rank: most"
            " likely the targets are the model's own outputs. Give labels (output.argmax(1) where"
            " there are none), or take a score that needs no loss, such as 'wanda'; to distil,"
            " prune first and train on these targets."
        )


def _seen_by_loss(task: Task, batch: Batch, number: int, temperature: float) -> Any:
    """What the loss is given of the model's output on one batch."""
    if batch.targets is None:
        raise ArgumentError(
            f"batch {number} has no targets, and the loss needs them: give (x, y) as a tuple "
            "(a list is taken as a list of batches)."
        )
    whole = call(task.model, batch.inputs)
    output = logits(whole) if task.output is None else task.output(whole)
    if task.output is None and (parts := _unpacked(whole)):
        _say_unpacked(parts, type(task.model).__name__)
    if temperature == 1:
        return output
    if not isinstance(output, Tensor):
        raise ArgumentError(
            f"a temperature divides one tensor, and output= gives a {type(output).__name__}."
        )
    return output / temperature


def _unpacked(whole: Any) -> int:
    """How many floating-point tensors an output has from which the loss gets the first; 0 where
    there is nothing to choose, or one is called logits.
    """
    found = [tensor for tensor in tensors(whole) if tensor.is_floating_point()]
    return len(found) if len(found) > 1 and logits(whole) is found[0] and not _named(whole) else 0


def _named(whole: Any) -> bool:
    return "logits" in whole if isinstance(whole, Mapping) else hasattr(whole, "logits")


@cache  # once, not in each of a hundred rounds
def _say_unpacked(parts: int, kind: str) -> None:
    _log.warning(
        "the loss is given the first of the %d tensors that %s returns: output= chooses another,"
        " output=lambda whole: whole gives all",
        parts,
        kind,
    )


def _loss(loss: Loss, output: Any, targets: Any, number: int) -> Tensor:
    try:
        value = loss(output, targets)
    # A RuntimeError too, but not because of the targets.
    except torch.OutOfMemoryError:
        raise
    except (AttributeError, IndexError, RuntimeError, TypeError, ValueError) as error:
        # Torch names neither the batch nor its inputs: most often the targets do not fit.
        raise ArgumentError(
            f"the loss fails on batch {number}, outputs {_value_in_words(output)}, targets"
            f" {_value_in_words(targets)}: {str(error).splitlines()[0]}"
        ) from error
    if not isinstance(value, Tensor) or value.numel() != 1:
        raise ArgumentError(
            f"loss returned {_value_in_words(value)}; it must average over the batch to one number."
        )
    return value.reshape(())


def wide_dtype(tensor: Tensor) -> torch.dtype:
    """The precision of scores: at least single, since products of half-precision numbers would
    vanish.
    """
    return torch.promote_types(tensor.dtype, torch.float32)


# Whether a gradient is more than rounding errors.

ULPS = 32
"""Errors of this many units in the last place are usual after some layers: a teacher that ran in
other batches, on other threads or another device differs from the model itself by about as much.
Half-precision outputs are off by half a unit, since sums are made in single precision.
"""

_WHOLE = 2**18
"""In float32 all large numbers are whole."""


def is_rounding(loss: Loss, output: Any, targets: Any) -> bool:
    """Whether ∂L/∂output is zero, or moves by half of its size when output and targets move by
    rounding errors. At the minimum of a loss nothing but such errors is left of its gradient.

    Its size alone says nothing: that of a well trained network is as small, and right in most of
    its digits.

    >>> def square(output, target):
    ...     return (output - target).square().mean()
    >>> output = torch.tensor([1e-20, 2e-20])
    >>> is_rounding(square, output, output * 1.01), is_rounding(square, output, output * (1 + 1e-7))
    (False, True)
    """
    if not (isinstance(output, Tensor) and output.is_floating_point()):
        return False
    try:
        slope = _slope(loss, output, targets)
        if not bool(slope.isfinite().all()):
            return False
        largest = slope.abs().max()
        if not largest:
            return True
        # Divided first: squares of small numbers would be zero.
        slope, others = slope / largest, []
        for numbers in ((_moved(output), targets), (output, map_tensors(targets, _moved_data))):
            others.append(_slope(loss, *numbers) / largest)
    # A loss that is wrong, or cannot be called twice: what follows says so.
    except (ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError, ValueError):
        return False
    # Measured: 0.7 and more of rounding errors, 0.03 and less of sure networks.
    return math.hypot(*(float((o - slope).norm() / slope.norm()) for o in others)) >= 0.5


def _slope(loss: Loss, output: Tensor, targets: Any) -> Tensor:
    """∂L/∂output; what the loss draws is the same each time, and not missed afterwards."""
    leaf = output.detach().clone().requires_grad_()
    devices = [output.device] if output.device.type == "cuda" else []
    with torch.enable_grad(), torch.random.fork_rng(devices=devices):
        (found,) = torch.autograd.grad(loss(leaf, targets), leaf)
    return found.to(wide_dtype(found))


def _moved(values: Tensor) -> Tensor:
    """Every number moved by some units in the last place, up or down."""
    values = values.detach()
    source = torch.Generator().manual_seed(0)
    signs = torch.rand(values.shape, generator=source).sub_(0.5).sign_().to(values)
    units = ULPS if values.dtype.itemsize > 2 else 0.5
    return values + values * signs * (units * torch.finfo(values.dtype).eps)


def _moved_data(values: Tensor) -> Tensor:
    """The same of targets, unless all are whole numbers: classes, zeros and ones are exact."""
    if not values.is_floating_point():
        return values
    exact = (values == values.round()) & (values.abs() < _WHOLE)
    return values if bool(exact.all()) else _moved(values)


def _own_loss(task: Task, batch: Batch, number: int, temperature: float) -> Tensor:
    """The loss a model of Hugging Face computes itself when `labels` are among its inputs."""
    if not isinstance(batch.inputs, Mapping) or batch.targets is None:
        raise ArgumentError(
            f"batch {number} is not a dict with 'labels', from which a model computes its own loss:"
            " give loss=, a function loss(output, y) that averages over the batch."
        )
    if temperature != 1:
        raise ArgumentError("a temperature divides outputs, so it needs loss= of your own.")
    output = call(task.model, {**batch.inputs, "labels": batch.targets})
    value = output.get("loss") if isinstance(output, Mapping) else getattr(output, "loss", None)
    if not isinstance(value, Tensor) or value.numel() != 1:
        raise ArgumentError(
            f"{type(task.model).__name__} returned no loss for its labels: give loss=."
        )
    return value.reshape(())


def _value_in_words(value: object) -> str:
    return (
        f"a tensor of shape {tuple(value.shape)}"
        if isinstance(value, Tensor)
        else f"a {type(value).__name__}"
    )
