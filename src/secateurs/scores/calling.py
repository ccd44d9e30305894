"""A model called on a batch, and what the decoder of an encoder-decoder (T5, BART, Whisper) is fed.

Such a model of transformers makes its decoder's inputs from `labels`. A score that needs no loss
runs the model without labels; then T5 has no decoder input at all, and BART silently takes the
encoder's. So they are made here, as the model itself would.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from secateurs.errors import ArgumentError, SecateursError, first_line
from secateurs.scores.batches import Batch, Inputs
from secateurs.scores.nested import tensors

_GIVEN = ("decoder_input_ids", "decoder_inputs_embeds")
_IGNORED = -100
"""Labels that count for no loss: padding."""


def call(model: nn.Module, inputs: Inputs) -> Any:
    """Call the model with a tensor, a tuple of positional or a dict of keyword arguments.

    What a model raises on data of another shape or precision names neither the model nor the data,
    so both are told; the model's own error is its cause.
    """
    try:
        if isinstance(inputs, Mapping):
            return model(**inputs)
        return model(*inputs) if isinstance(inputs, tuple) else model(inputs)
    # Memory that is full has nothing to do with the data's shape, and loops catch it by its type.
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
            f"{type(model).__name__} does not run on {_told(inputs)}: {first_line(error)}. Give the"
            " batch or example as the model is called, in its dtype."
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
    return not isinstance(inputs, Mapping) or all(
        inputs.get(n) is None for n in _GIVEN
    )


def _refusal(model: nn.Module, error: Exception) -> ArgumentError:
    """For a model that does not run because its decoder is given nothing."""
    return ArgumentError(
        f"{type(model).__name__} is an encoder-decoder, and the batch or example has nothing for"
        f" its decoder ({error}): put 'decoder_input_ids', or 'labels' from which they are made,"
        " into the dict of inputs."
    )


def _told(inputs: Any) -> str:
    """What the model was called with, in a few words."""
    forms = [f"{t.dtype} {tuple(t.shape)}" for t in tensors(inputs)]
    return (
        f"inputs of {', '.join(forms[:4])}" if forms else f"a {type(inputs).__name__}"
    )


def _token_ids(labels: object) -> bool:
    return (
        isinstance(labels, Tensor)
        and labels.ndim == 2
        and not labels.is_floating_point()
    )
