"""How much memory does pruning block by block take beside the model, and how long?

python benchmarks/prune_blocks.py [LAYERS] [WIDTH] [BLOCKS] [SEQUENCES]   prints a table (Markdown)
python benchmarks/prune_blocks.py tensors [LAYERS] ...    the most that tensors hold, row by row

A Llama of random weights in bfloat16 (grouped queries, 32,000 words), pruned to half on so many
sequences of 128 tokens (4); with BLOCKS only so many of its blocks are pruned. Memory is what is
resident at most while pruning, beside the model. SparseGPT and reconstruction, which need more
tokens than a row keeps weights, take part where there are so many; they may hold a block and one
matrix H. Each method has a process of its own, so that none finds what another has freed. What the
C library keeps of what was freed is resident, too; `tensors` looks after every operation which
tensors are alive, and counts them alone.
"""

import gc
import subprocess
import sys
import time
import weakref
from pathlib import Path

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten
from transformers import LlamaConfig, LlamaForCausalLM

import secateurs as sc


def resident(key):
    """VmRSS (now) or VmHWM (the most since `forget`), in bytes."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(key):
            return int(line.split()[1]) * 1024
    raise RuntimeError(f"no {key} in /proc/self/status")


def forget():
    """Let VmHWM begin anew."""
    gc.collect()
    Path("/proc/self/clear_refs").write_text("5")


@torch.no_grad()
def build(layers, width, empty=False):
    """The model, its weights drawn in place in the precision they are kept in; or no weights."""
    config = LlamaConfig(
        hidden_size=width,
        intermediate_size=width * 43 // 16,
        num_hidden_layers=layers,
        num_attention_heads=width // 128,
        num_key_value_heads=max(1, width // 512),
        vocab_size=32000,
        dtype="bfloat16",
    )
    default = torch.get_default_dtype()
    torch.set_default_dtype(torch.bfloat16)
    with torch.device("meta"):
        model = LlamaForCausalLM(config)
    torch.set_default_dtype(default)
    if empty:
        return model
    model.to_empty(device="cpu")
    # Drawing every weight of a large model takes longer than pruning it: rows are repeated.
    drawn = 0.02 * torch.randn(1 << 20)
    for name, parameter in model.named_parameters():
        if "norm" in name:
            parameter.fill_(1)
            continue
        flat = parameter.view(-1)
        for part in flat.split(len(drawn) - 1):  # shifted by one from piece to piece
            part.copy_(drawn[: len(part)])
    rotary = model.model.rotary_emb
    rotary.__init__(config)
    return model.eval()


HALF = {"scope": "row", "sparsity": 0.5}
WAYS = {
    "Wanda, row, 50 %": {"recipe": "wanda", **HALF},
    "magnitude, row, 60 %": {"recipe": "magnitude", "scope": "row", "sparsity": 0.6},
    "SparseGPT, 50 %": {"recipe": "sparsegpt", "sparsity": 0.5},
    "Wanda + reconstruction": {"recipe": "wanda", "reconstruct": True, **HALF},
    "SparseGPT + reconstruction": {"recipe": "sparsegpt", "reconstruct": True, "sparsity": 0.5},
}


def main(layers, width, blocks, sequences, tensors=False):
    config = build(layers, width, empty=True)
    weights = sum(p.numel() for p in config.parameters())
    block = sum(p.nbytes for p in config.model.layers[0].parameters())
    inputs = config.config.intermediate_size
    print(f"{weights / 1e9:.2f} · 10⁹ weights, {2 * weights / 1e9:.2f} GB;", end=" ")
    print(f"a block: {block / 1e9:.3f} GB; the largest H: {4 * inputs**2 / 1e9:.3f} GB\n")
    if tensors:
        print("| what | GB of tensors | in blocks |\n| --- | --- | --- |", flush=True)
    else:
        print("| what | s of the processor | GB before | most GB | above | in blocks | kept % |")
        print("| --- | --- | --- | --- | --- | --- | --- |", flush=True)
    for number, options in enumerate(WAYS.values()):
        solves = options["recipe"] == "sparsegpt" or "reconstruct" in options
        if not solves or 128 * sequences >= inputs / 2:
            own = [*["tensors"] * tensors, layers, width, blocks, sequences, number]
            subprocess.run([sys.executable, __file__, *map(str, own)], check=True)


class Alive(TorchDispatchMode):
    """The most bytes that tensors made inside hold at any time, those under 100 kB left out."""

    def __init__(self, model):
        super().__init__()
        self.most, self.made = 0, []
        self.model = {p.untyped_storage().data_ptr() for p in model.parameters()}

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        out = function(*args, **(kwargs or {}))
        for each in tree_flatten(out)[0]:
            if isinstance(each, torch.Tensor) and each.untyped_storage().nbytes() > 1e5:
                self.made.append(weakref.ref(each))
                held = [(ref, ref()) for ref in self.made]
                self.made = [ref for ref, tensor in held if tensor is not None]
                storages = (t.untyped_storage() for _, t in held if t is not None)
                sizes = {s.data_ptr(): s.nbytes() for s in storages}
                own = sum(size for place, size in sizes.items() if place not in self.model)
                self.most = max(self.most, own)
        return out


def row(layers, width, blocks, sequences, number, tensors=False):
    """One method; the row of the table."""
    torch.manual_seed(0)
    model = build(layers, width)
    block = sum(p.nbytes for p in model.model.layers[0].parameters())
    tokens = torch.randint(32000, (sequences, 128))
    batches = [{"input_ids": part} for part in tokens.split(1 if sequences <= 4 else 4)]
    chosen = [f"model.layers.{number}" for number in range(blocks or layers)]
    what, options = list(WAYS.items())[number]
    # The libraries are there before anything is counted: a small network is pruned first.
    few = {**options, "batch": [{"input_ids": tokens[:, :64]}], "blocks": ["model.layers.0"]}
    sc.prune_blocks_(build(2, 128), **few)
    if tensors:
        with Alive(model) as alive:
            sc.prune_blocks_(model, batch=batches, blocks=chosen, **options)
        print("|", what, "|", f"{alive.most / 1e9:.3f}", "|", f"{alive.most / block:.1f}", "|")
        return
    forget()
    before, begin = resident("VmRSS"), time.process_time()
    done = sc.prune_blocks_(model, batch=batches, blocks=chosen, **options)
    seconds, most = time.process_time() - begin, resident("VmHWM")
    above = most - before
    cells = (f"{before / 1e9:.2f}", f"{most / 1e9:.2f}", f"{above / 1e9:.3f}")
    share = f"{100 * done.report.density:.2f}"
    print("|", " | ".join((what, f"{seconds:.0f}", *cells, f"{above / block:.1f}", share)), "|")


if __name__ == "__main__":
    tensors = sys.argv[1:2] == ["tensors"]
    given = [int(argument) for argument in sys.argv[1 + tensors :]]
    if len(given) == 5:
        row(*given, tensors=tensors)
    else:
        main(*(given + [17, 4096, 0, 4][len(given) :]), tensors=tensors)
