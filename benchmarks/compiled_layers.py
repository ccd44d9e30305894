"""Compiled layers inside the user's modules against torch: BERT, GPT-2, Llama, ViT, a GRU.

Forms are called in turns in one process. Processor time of the process and the clock are both
printed, as medians in milliseconds, with the largest difference relative to the largest output.
Random weights, of which the smallest are zero: no kernel's time depends on their values.
"""

import argparse
import os
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
import transformers as hf
from torch import Tensor, nn

import secateurs as sc

VOCABULARY = 8000


class Tagger(nn.Module):
    """Tokens, a feed-forward layer, a GRU and a second one."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.gru = nn.Embedding(VOCABULARY, 512), nn.GRU(512, 128, batch_first=True)
        self.a, self.b = nn.Linear(512, 2048), nn.Linear(2048, 512)
        self.c, self.d = nn.Linear(128, 2048), nn.Linear(2048, 64)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.table(tokens)
        x = x + self.b(torch.relu(self.a(x)))
        y: Tensor = self.d(torch.relu(self.c(self.gru(x)[0])))
        return y


SIZE = {"num_hidden_layers": 4, "num_attention_heads": 6, "hidden_size": 384}
MODELS: dict[str, Callable[[], nn.Module]] = {
    "BERT": lambda: hf.BertModel(hf.BertConfig(**SIZE, intermediate_size=1536)),
    "GPT-2": lambda: hf.GPT2LMHeadModel(
        hf.GPT2Config(n_embd=384, n_layer=4, n_head=6, vocab_size=VOCABULARY)
    ),
    "Llama": lambda: hf.LlamaForCausalLM(
        hf.LlamaConfig(**SIZE, intermediate_size=1024, num_key_value_heads=2, vocab_size=VOCABULARY)
    ),
    "ViT": lambda: hf.ViTForImageClassification(hf.ViTConfig(**SIZE, intermediate_size=1536)),
    "GRU": Tagger,
}


def given(name: str, batch: int, length: int) -> dict[str, Tensor]:
    """The inputs of a call."""
    if name == "ViT":
        return {"pixel_values": torch.randn(batch, 3, 224, 224)}
    tokens = torch.randint(0, VOCABULARY, (batch, length))
    return {"tokens" if name == "GRU" else "input_ids": tokens}


def zeroed(model: nn.Module, sparsity: float) -> nn.Module:
    """The smallest weights of every linear layer become zero, but those of the head."""
    with torch.no_grad():
        for name, layer in model.named_modules():
            if type(layer).__name__ in ("Linear", "Conv1D") and name != "lm_head":
                size = layer.weight.abs()
                layer.weight.mul_(size > size.flatten().kthvalue(int(sparsity * size.numel()))[0])
    return model.eval()


def medians(calls: dict[str, Callable[[], Any]], rounds: int) -> dict[str, tuple[float, float]]:
    """(processor time, clock) of each call in milliseconds, called in turns."""
    spent: dict[str, list[tuple[float, float]]] = {name: [] for name in calls}
    with torch.inference_mode():
        for _ in range(rounds + 1):
            for name, call in calls.items():
                start = time.process_time(), time.perf_counter()
                call()
                end = time.process_time(), time.perf_counter()
                spent[name].append((1e3 * (end[0] - start[0]), 1e3 * (end[1] - start[1])))
    return {
        name: (statistics.median(a for a, _ in t[1:]), statistics.median(b for _, b in t[1:]))
        for name, t in spent.items()
    }


def first(output: Any) -> Tensor:
    return output if isinstance(output, Tensor) else output[0]


def decoding(model: Any, tokens: Tensor, steps: int) -> Callable[[], Tensor]:
    """Tokens one by one over a cache; the last answer."""

    def call() -> Tensor:
        done = model(input_ids=tokens, use_cache=True)
        for k in range(steps):
            past = done.past_key_values
            done = model(tokens[:, k : k + 1], past_key_values=past, use_cache=True)
        return first(done)

    return call


def between(model: nn.Module, fast: nn.Module, a: Tensor, b: Tensor) -> float:
    """The largest difference relative to the largest output; −1 for the model itself."""
    return -1.0 if fast is model else float((a - b).abs().max() / a.abs().max())


def row(what: str, calls: dict[str, Callable[[], Any]], apart: float, rounds: int) -> None:
    took = medians(calls, rounds)
    (a, c), (b, d) = took["torch"], took["fast"]
    same = "the model itself" if apart < 0 else f"{apart:.1e}"
    print(f"| {what} | {a:.1f} | {b:.1f} | **{a / b:.2f}** | {c / d:.2f} | {same} |", flush=True)


def compare(name: str, sparsity: float, sizes: list[tuple[int, int]], rounds: int) -> None:
    torch.manual_seed(0)
    model = zeroed(MODELS[name](), sparsity)
    fast = sc.accelerate(model, given(name, *sizes[0]), rivals={})
    for batch, length in sizes:
        call = given(name, batch, length)
        with torch.inference_mode():
            a, b = first(model(**call)), first(fast(**call))
        calls = {"torch": lambda c=call: model(**c), "fast": lambda c=call: fast(**c)}
        row(
            f"{name}, {sparsity:.0%}, {batch} × {length}", calls, between(model, fast, a, b), rounds
        )
    if name in ("GPT-2", "Llama"):
        tokens = torch.randint(0, VOCABULARY, (1, 16))
        both = {"torch": decoding(model, tokens, 16), "fast": decoding(fast, tokens, 16)}
        with torch.inference_mode():
            apart = between(model, fast, both["torch"](), both["fast"]())
        row(f"{name}, {sparsity:.0%}, 16 tokens, then 16 one by one", both, apart, rounds)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", nargs="+", default=[*MODELS])
    parser.add_argument("--sparsity", nargs="+", type=float, default=[0.9, 0.8])
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--sizes", nargs="+", default=["1x128", "4x128", "1x37"])
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    hf.logging.set_verbosity_error()
    print(f"torch {torch.__version__}, {args.threads} thread(s), load {os.getloadavg()[0]:.1f}\n")
    print("| model, zeros, batch × tokens | torch ms | fast ms | ratio | by the clock | apart |")
    print("| --- | --- | --- | --- | --- | --- |")
    for name in args.models:
        for sparsity in args.sparsity:
            sizes = [(int(b), int(n)) for b, n in (size.split("x") for size in args.sizes)]
            compare(name, sparsity, [(1, 197)] if name == "ViT" else sizes, args.rounds)


if __name__ == "__main__":
    main()
