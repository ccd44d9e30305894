"""The perplexity of a language model, as papers on pruning report it."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from secateurs.base.copies import evaluating
from secateurs.base.parameters import check_model
from secateurs.base.printing import Reported
from secateurs.errors import ArgumentError, ScoreError
from secateurs.llm.blocks import uncached
from secateurs.scores.task import call, logits

ROWS = 256
"""Positions whose logits are turned into probabilities together: a window of 2048 positions and
50,000 words takes 400 MB more in single precision."""

GLANCE = 8
"""Tokens on which a model is tested for seeing what it is to predict."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Perplexity(Reported):
    """A perplexity, and what it was measured on: figures of other contexts do not compare.

    Attributes:
        value: exp of the mean negative log-likelihood of the scored tokens.
        context: Tokens in a window.
        windows: How many whole windows there are.
        scored: Tokens that were predicted: all of a window but its first.
        left_over: Tokens behind the last whole window, which count for nothing.
    """

    value: float
    context: int
    windows: int
    scored: int
    left_over: int

    def __float__(self) -> float:
        return self.value

    def __rich__(self) -> str:
        return (
            f"perplexity {self.value:.4f} · context {self.context} · {self.windows:,} windows ·"
            f" {self.scored:,} tokens scored · {self.left_over:,} left over"
        )


def perplexity(
    model: nn.Module, tokens: Tensor | Sequence[int] | Mapping[str, Any], *, context: int = 2048
) -> Perplexity:
    """exp(−mean log p(tᵢ | t₁ … tᵢ₋₁)) over whole windows of a text, each on its own.

    The text is cut into windows of `context` tokens that do not overlap; the rest is left over, and
    the first token of a window is given, not predicted. That is how the papers on GPTQ, SparseGPT
    and Wanda count. For their figures the text is one string (the WikiText-2 test set joined by
    blank lines) that is tokenised once, and the context is 2048, or the model's longest.

    Args:
        model: a causal language model, called with token numbers of shape (1, context). Evaluation
            mode and no cache while this runs; probabilities are computed in single precision.
        tokens: the numbers of one text: a tensor of shape (length,) or (1, length), a list, or what
            a tokenizer returns (a mapping with `input_ids`).
        context: the length of a window.

    >>> from torch import nn
    >>> guess = nn.Sequential(nn.Embedding(10, 4), nn.Linear(4, 10))
    >>> with torch.no_grad():
    ...     _ = guess[1].weight.zero_(), guess[1].bias.zero_()
    >>> print(perplexity(guess, list(range(10)) * 10, context=32))
    perplexity 10.0000 · context 32 · 3 windows · 93 tokens scored · 4 left over
    """
    check_model(model)
    text = _text(model, tokens)
    _check_context(model, context, len(text))
    windows = text[: len(text) // context * context].view(-1, 1, context)
    total = 0.0
    with torch.no_grad(), evaluating(model), uncached(model):
        _refuse_foresight(model, text[:GLANCE])
        for number, window in enumerate(windows):
            loss = _negative_log_likelihood(model, window)
            if math.isnan(loss):
                raise ScoreError(
                    f"the logits of window {number} (tokens {number * context} to"
                    f" {(number + 1) * context - 1}) hold NaN or infinite values: look at the"
                    " model's weights, or run it in a wider dtype."
                )
            total += loss
    scored = len(windows) * (context - 1)
    return Perplexity(
        # A mean beyond 709 has no exp in double precision.
        value=float(torch.tensor(total / scored, dtype=torch.float64).exp()),
        context=context,
        windows=len(windows),
        scored=scored,
        left_over=len(text) - windows.numel(),
    )


def _text(model: nn.Module, tokens: Any) -> Tensor:
    """The token numbers in one row, on the model's device."""
    given = tokens
    if isinstance(tokens, Mapping):
        if "input_ids" not in tokens:
            raise ArgumentError(
                f"tokens is a mapping of {', '.join(map(str, tokens))}: 'input_ids' is missing."
            )
        given = tokens["input_ids"]
    try:
        text = torch.as_tensor(given)
    except (TypeError, ValueError, RuntimeError) as error:
        raise ArgumentError(
            f"tokens is a {type(given).__name__} that cannot be read as one row of numbers: give"
            " the token numbers of one text, as a tokenizer returns them."
        ) from error
    if text.is_floating_point() or text.is_complex() or text.dtype == torch.bool:
        raise ArgumentError(f"tokens has dtype {text.dtype}: token numbers are whole numbers.")
    if text.ndim not in (1, 2) or (text.ndim == 2 and len(text) != 1):
        raise ArgumentError(
            f"tokens has shape {tuple(text.shape)}: give one text, of shape (length,) or"
            " (1, length). Rows that follow one another are one text as tokens.reshape(-1)."
        )
    text = text.reshape(-1).long()
    words = getattr(getattr(model, "config", None), "vocab_size", None)
    low, high = (int(text.min()), int(text.max())) if len(text) else (0, 0)
    if low < 0 or (isinstance(words, int) and high >= words):
        place = int((text == (low if low < 0 else high)).nonzero()[0])
        known = f" and the model knows 0 to {words - 1}" if isinstance(words, int) else ""
        raise ArgumentError(
            f"tokens[{place}] is {low if low < 0 else high}{known}: use the tokenizer of this"
            " model, and leave padding (-100) out."
        )
    return text.to(next(model.parameters()).device)


def _check_context(model: nn.Module, context: object, length: int) -> None:
    if isinstance(context, bool) or not isinstance(context, int) or context < 2:
        raise ArgumentError(f"context={context!r}: give a whole number of tokens, at least 2.")
    config = getattr(model, "config", None)
    if getattr(config, "is_encoder_decoder", False):
        raise ArgumentError(
            f"{type(model).__name__} is an encoder-decoder: a perplexity over windows of one text"
            " is that of a causal language model."
        )
    longest = getattr(config, "max_position_embeddings", None)
    if isinstance(longest, int) and context > longest:
        raise ArgumentError(
            f"context={context}, and {type(model).__name__} was made for {longest} positions"
            f" (config.max_position_embeddings): give context={longest} or less."
        )
    if length < context:
        raise ArgumentError(
            f"tokens holds {length:,}, which is less than one window of context={context}: give a"
            " longer text or a smaller context."
        )


def _refuse_foresight(model: nn.Module, text: Tensor) -> None:
    """Refuse a model that sees the tokens it is to predict (BERT): its perplexity means nothing."""
    other = text.clone()
    other[-1] = text[0] if text[0] != text[-1] else int(text[0] == 0)
    first, second = (_logits_of(model, ids[None])[:-1].float() for ids in (text, other))
    # The same kernels on the same shapes: the margin is for mixtures of experts, whose sums run in
    # another order.
    if (first - second).abs().max() > 1e-3 * first.abs().max():
        raise ArgumentError(
            f"{type(model).__name__} is not causal: its outputs change with later tokens, which it "
            "should predict. Perplexity is for causal language models; for BERT, for example, "
            "load the class made for that, with is_decoder=True."
        )


def _logits_of(model: nn.Module, window: Tensor) -> Tensor:
    """One row of logits for every token."""
    found = logits(call(model, window))
    if found.ndim != 3 or found.shape[:2] != window.shape:
        raise ArgumentError(
            f"{type(model).__name__} returns {tuple(found.shape)} for {window.shape[1]} tokens:"
            " logits of shape (1, length, words) are expected, such as those of a class"
            " ...ForCausalLM or ...LMHeadModel."
        )
    return found[0]


def _negative_log_likelihood(model: nn.Module, window: Tensor) -> float:
    """The sum over the tokens of a window but the first."""
    rows, wanted = _logits_of(model, window)[:-1], window[0, 1:]
    pieces = zip(torch.split(rows, ROWS), torch.split(wanted, ROWS), strict=True)
    # float64 so that the sum does not depend on the length of the pieces.
    losses = [F.cross_entropy(a.float(), b, reduction="none").double().sum() for a, b in pieces]
    return float(torch.stack(losses).sum())
