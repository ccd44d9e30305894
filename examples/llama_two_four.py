"""Prune a Llama to 2:4, and compare its perplexity before and after.

Run it with `python examples/llama_two_four.py`. It takes a minute on one core, most of it to train
a network small enough for that on the manual of Python.
"""

from copy import deepcopy
from pydoc_data.topics import topics

import torch
from transformers import LlamaConfig, LlamaForCausalLM

import secateurs as sc

CONTEXT = 64


def train(text: torch.Tensor, steps: int) -> LlamaForCausalLM:
    """A Llama of two blocks that reads bytes. With a real one you would begin below."""
    sizes = {"hidden_size": 96, "intermediate_size": 256, "num_hidden_layers": 2}
    model = LlamaForCausalLM(LlamaConfig(vocab_size=128, num_attention_heads=4, **sizes))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for _ in range(steps):
        batch = windows(text, 16)
        model(input_ids=batch, labels=batch).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    return model


def windows(text: torch.Tensor, count: int) -> torch.Tensor:
    """Pieces of the text from anywhere."""
    starts = torch.randint(len(text) - CONTEXT, (count,)).tolist()
    return torch.stack([text[start : start + CONTEXT] for start in starts])


def main(steps: int = 600) -> dict[str, float]:
    """Train, prune copies in four ways, return the perplexities."""
    text = torch.tensor([min(ord(letter), 127) for letter in "\n".join(topics.values())])
    text, test = text[:-8192], text[-8192:]
    dense = train(text, steps)
    found = {"dense": sc.perplexity(dense, test, context=CONTEXT)}

    batches = [{"input_ids": windows(text, 16)} for _ in range(4)]  # what it is pruned on
    for name, score, reconstruct in (
        ("magnitude", "magnitude", False),
        ("Wanda", "wanda", False),
        ("SparseGPT", "sparsegpt", False),
        ("Wanda, reconstructed", "wanda", True),
    ):
        model = deepcopy(dense)
        done = sc.prune_blocks_(model, score, pattern="2:4", batch=batches, reconstruct=reconstruct)
        found[name] = sc.perplexity(model, test, context=CONTEXT)
    print(f"{done.report.sparsity:.0%} of the weights in the blocks are zero")
    for name, perplexity in found.items():
        print(f"{name:>20}: {perplexity}")
    sc.save_sparse(model, "llama.safetensors")  # the zeros take no room in the file
    return {name: float(perplexity) for name, perplexity in found.items()}


if __name__ == "__main__":
    main()
