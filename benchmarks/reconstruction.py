"""What is lost by pruning a small Llama block by block, with and without reconstruction.

    python benchmarks/reconstruction.py

Three blocks of 96 features with random weights, embeddings of very different sizes, words as
frequent as Zipf's law has them: 64 sequences of 64 tokens to calibrate on, 16 others to measure.
Printed: ‖last hidden states − those of the whole model‖ / ‖those of the whole model‖, and seconds.
The floor solves every row of every layer exactly, in float64, in the same order.
"""

import copy
import time

import torch
from torch import Tensor, nn
from transformers import LlamaConfig, LlamaForCausalLM

import secateurs as sc
from secateurs.llm.least_squares import solve_rows

WAYS = {"60 % a row": {"scope": "row", "sparsity": 0.6}, "2:4": {"pattern": "2:4"}}


def build() -> LlamaForCausalLM:
    """The model, always the same."""
    torch.manual_seed(0)
    sizes = {"hidden_size": 96, "intermediate_size": 192, "vocab_size": 211}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2}
    config = LlamaConfig(num_hidden_layers=3, max_position_embeddings=256, **sizes, **heads)
    model = LlamaForCausalLM(config).eval()
    with torch.no_grad():
        model.model.embed_tokens.weight.mul_(torch.logspace(-1, 1, 96))
    return model


def draw(sequences: int) -> Tensor:
    """Tokens, the k-th word with a chance in proportion to 1/k."""
    chance = 1 / torch.arange(1, 212).float()
    return torch.multinomial(chance, sequences * 64, replacement=True).view(sequences, 64)


@torch.no_grad()
def floor(model: nn.Module, masks: dict[str, Tensor], tokens: Tensor) -> nn.Module:
    """Every row of every layer solved exactly on the same masks."""
    for name, mask in masks.items():
        layer, met = model.get_submodule(name.removesuffix(".weight")), []
        hook = layer.register_forward_pre_hook(lambda _, args, met=met: met.append(args[0]))
        model.model(tokens)
        hook.remove()
        x = torch.cat([each.reshape(-1, each.shape[-1]) for each in met]).double()
        gram = x.T @ x
        solved = solve_rows(layer.weight.double(), mask, gram, 0.01 * float(gram.diagonal().mean()))
        layer.weight.copy_(solved)
    return model


def main() -> None:
    """Print the table."""
    whole = build()
    calibration, test = draw(64), draw(16)
    batch = [{"input_ids": part} for part in calibration.split(16)]
    with torch.no_grad():
        wanted = whole.model(test).last_hidden_state
    print("| amount | method | error | s |\n| --- | --- | --- | --- |")
    for amount, fields in WAYS.items():
        for score in ("magnitude", "wanda"):
            for reconstruct in (False, True):
                model, begun = copy.deepcopy(whole), time.perf_counter()
                own = {"scope": "row", **fields} if "sparsity" in fields else fields
                done = sc.prune_blocks_(model, score, batch=batch, reconstruct=reconstruct, **own)
                took = time.perf_counter() - begun
                with torch.no_grad():
                    error = (model.model(test).last_hidden_state - wanted).norm() / wanted.norm()
                name = f"{score}{' + reconstruction' if reconstruct else ''}"
                print(f"| {amount} | {name} | {float(error):.4f} | {took:.1f} |", flush=True)
        begun = time.perf_counter()
        exact = floor(copy.deepcopy(whole), dict(done.masks), calibration)
        with torch.no_grad():
            error = (exact.model(test).last_hidden_state - wanted).norm() / wanted.norm()
        took = time.perf_counter() - begun
        print(
            f"| {amount} | wanda, each row exactly | {float(error):.4f} | {took:.1f} |", flush=True
        )


if __name__ == "__main__":
    main()
