"""Half of the channels out of common networks: what is left, beside Torch-Pruning.

    python benchmarks/channels_table.py left --out left.csv     parameters left, fresh networks
    python benchmarks/channels_table.py losses --seeds 5 --out losses.csv
    python benchmarks/channels_table.py tuned --out tuned.csv   a task learnt, cut, tuned again
    python benchmarks/channels_table.py table --out left.csv    any of these files as a table

All go on where they stopped. `left` cuts networks fresh from their classes (seed 0): "exact" is
`prune_channels_(channels=0.5)` and `compact`, "inexact" is `exact=False`; Torch-Pruning 1.6 has
`BasePruner(pruning_ratio=0.5)`, magnitude of groups, heads named as its own examples do
(not those of `nn.MultiheadAttention`, with which it cuts no stream). "loss" is
‖f − g‖ / ‖f‖ of the outputs on eight random inputs. `tuned` trains small networks first (digits as
rows or pictures; sequences whose next token depends on the last two), cuts and trains 1/3 as long
again. Needs torch-pruning, and for some rows timm, ultralytics, segmentation-models-pytorch.
"""

import argparse
import copy
import csv
import re
import signal
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

import secateurs as sc
import secateurs_lab as lab

Inputs = Any
WORDS = 32


def stubs() -> None:
    """Two operators that torchvision's wheel looks for and a build for CPUs may not have."""
    if hasattr(torch.ops.torchvision, "nms"):
        return
    library = torch.library.Library("torchvision", "DEF")
    for name in ("nms", "qnms"):
        library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    globals()["_library"] = library  # or it goes with this call


def ids(count: int = 8, steps: int = 12) -> torch.Tensor:
    return torch.randint(WORDS, (count, steps), generator=torch.Generator().manual_seed(1))


class Encoder(nn.Module):
    """torch's own encoder between two linear layers, over rows of features."""

    def __init__(
        self, features: int = 8, width: int = 64, heads: int = 4, *, places: bool = True
    ) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(width, heads, 4 * width, 0.0, batch_first=True)
        self.into = nn.Linear(features, width)
        self.places = nn.Parameter(0.1 * torch.randn(1, 8, width)) if places else 0.0
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(width, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.encoder(self.into(x) + self.places).mean(1))


def hugging(kind: str, width: int = 64, layers: int = 2) -> tuple[nn.Module, Inputs]:
    import transformers as t

    sizes = {"hidden_size": width, "num_hidden_layers": layers, "num_attention_heads": 4}
    words = {"vocab_size": WORDS, "max_position_embeddings": 32}
    if kind == "BERT":
        config = t.BertConfig(**sizes, **words, intermediate_size=4 * width, num_labels=4)
        return t.BertForSequenceClassification(config), {"input_ids": ids()}
    if kind == "DistilBERT":
        config = t.DistilBertConfig(
            dim=width, n_layers=layers, n_heads=4, hidden_dim=4 * width, **words
        )
        return t.DistilBertForSequenceClassification(config), {"input_ids": ids()}
    if kind == "GPT-2":
        config = t.GPT2Config(
            n_embd=width, n_layer=layers, n_head=4, vocab_size=WORDS, n_positions=32
        )
        return t.GPT2LMHeadModel(config), {"input_ids": ids()}
    if kind == "Llama":
        config = t.LlamaConfig(**sizes, **words, intermediate_size=3 * width, num_key_value_heads=2)
        return t.LlamaForCausalLM(config), {"input_ids": ids()}
    if kind == "T5":
        config = t.T5Config(
            d_model=width, d_kv=16, d_ff=4 * width, num_layers=layers, num_heads=4,
            vocab_size=WORDS,
        )  # fmt: skip
        model = t.T5ForConditionalGeneration(config)
        return model, {"input_ids": ids(), "decoder_input_ids": ids()[:, :5]}
    config = t.ViTConfig(
        **sizes, intermediate_size=4 * width, image_size=8, patch_size=2, num_channels=1,
        num_labels=10,
    )  # fmt: skip
    return t.ViTForImageClassification(config), torch.randn(8, 1, 8, 8)


def convnext() -> tuple[nn.Module, Inputs]:
    import timm

    return timm.create_model("convnext_atto", num_classes=10), torch.randn(8, 3, 64, 64)


def unet() -> tuple[nn.Module, Inputs]:
    import segmentation_models_pytorch as smp

    model = smp.Unet("resnet18", encoder_weights=None, classes=4)
    return model, torch.randn(4, 3, 64, 64)


def yolo() -> tuple[nn.Module, Inputs]:
    from ultralytics import YOLO

    model = YOLO("yolov8n.yaml", verbose=False).model.eval()
    example = torch.randn(2, 3, 64, 64)
    with torch.no_grad():
        model(example)  # called once before: it keeps anchors
    return model.requires_grad_(True), example


FRESH: dict[str, Callable[[], tuple[nn.Module, Inputs]]] = {
    **{name: lambda name=name: hugging(name, 128, 3) for name in ("BERT", "DistilBERT")},
    "nn.TransformerEncoder": lambda: (Encoder(16, 128, 8, places=False), torch.randn(8, 8, 16)),
    "ConvNeXt-atto": convnext,
    "U-Net (ResNet-18)": unet,
    "YOLOv8n, called once before": yolo,
    **{name: lambda name=name: hugging(name, 128, 3) for name in ("GPT-2", "Llama", "ViT", "T5")},
}


def answers(model: nn.Module, inputs: Inputs) -> torch.Tensor:
    return answer_of(model(**inputs) if isinstance(inputs, dict) else model(inputs))


def answer_of(out: Any) -> torch.Tensor:
    out = getattr(out, "logits", out)
    return out if isinstance(out, torch.Tensor) else out[0]


def size(model: nn.Module) -> int:
    return sum(p.numel() for p in model.parameters())


@contextmanager
def limited(seconds: int = 60) -> Iterator[None]:
    """Not more than so many seconds of processor time."""

    def stop(*_: object) -> None:
        raise TimeoutError(f"not done after {seconds} s of processor time")

    signal.signal(signal.SIGVTALRM, stop)
    signal.setitimer(signal.ITIMER_VIRTUAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)


def torch_pruned(model: nn.Module, inputs: Inputs) -> nn.Module:
    """Cut by Torch-Pruning, as its examples for transformers do: heads keep their number, their
    size halves; the attributes that modules count by are set by hand afterwards."""
    import torch_pruning as tp

    heads: dict[nn.Module, int] = {}
    names = ("classifier", "lm_head", "head", "head.fc", "segmentation_head.0", "model.22")
    last = [module for name, module in model.named_modules() if name in names]
    for module in model.modules():
        count = getattr(module, "num_attention_heads", getattr(module, "n_heads", None))
        for name in ("query", "key", "value", "q_lin", "k_lin", "v_lin", "q_proj"):
            if isinstance(count, int) and isinstance(getattr(module, name, None), nn.Linear):
                heads[getattr(module, name)] = count
        if hasattr(module, "k_proj") and hasattr(module, "config"):
            heads[module.q_proj] = module.config.num_attention_heads
            shared = getattr(module.config, "num_key_value_heads", heads[module.q_proj])
            heads[module.k_proj] = heads[module.v_proj] = shared
    pruner = tp.pruner.BasePruner(
        model,
        inputs,
        importance=tp.importance.GroupMagnitudeImportance(p=2),
        pruning_ratio=0.5,
        num_heads=heads,
        ignored_layers=last,
        output_transform=lambda out: answer_of(out).sum(),
    )
    pruner.step()
    for module in model.modules():
        for name in ("query", "q_lin", "q_proj"):
            layer = getattr(module, name, None)
            if layer in heads:
                width, count = layer.out_features, heads[layer]
                for attribute in ("attention_head_size", "head_dim"):
                    if hasattr(module, attribute):
                        setattr(module, attribute, width // count)
                for attribute in ("all_head_size", "dim"):
                    if hasattr(module, attribute):
                        setattr(module, attribute, width)
    return model


def batches(inputs: Inputs, count: int) -> Inputs:
    """The first samples of the inputs."""
    if isinstance(inputs, dict):
        return {name: value[:count] for name, value in inputs.items()}
    return inputs[:count]


LEFT = ("network", "parameters", "exact", "inexact", "loss", "Torch-Pruning", "its loss",
        "seconds", "says")  # fmt: skip


@torch.no_grad()
def left(name: str) -> dict[str, object]:
    torch.manual_seed(0)
    model, inputs = FRESH[name]()
    model.eval()
    for _, p in model.named_parameters():
        if p.ndim == 1 and not p.any():
            p.normal_(std=0.02)  # biases of fresh networks are all alike
    before, total, one = answers(model, inputs), size(model), batches(inputs, 1)
    row: dict[str, object] = {"network": name, "parameters": total}
    said, start = [], time.process_time()
    exact, inexact, other = (copy.deepcopy(model) for _ in range(3))
    sc.prune_channels_(exact, one, channels=0.5)
    row["exact"] = share(size(sc.compact(exact, one)), total)
    sc.prune_channels_(inexact, one, channels=0.5, exact=False)
    small = sc.compact(inexact, one)
    said.append(f"compact differs from the cut model by {small.compaction.difference:.0e}")
    row |= {"inexact": share(size(small), total), "loss": loss_of(before, small, inputs)}
    row["seconds"] = round(time.process_time() - start, 1)
    try:
        with torch.enable_grad(), limited():
            torch_pruned(other, one)
        row["Torch-Pruning"] = share(size(other), total)
        row["its loss"] = loss_of(before, other, inputs)
    except Exception as error:  # a refusal is a result
        row.setdefault("Torch-Pruning", type(error).__name__)
        said.append(f"Torch-Pruning: {type(error).__name__}: {error}"[:120])
    return row | {"says": "; ".join(said)}


LOSSES = ("network", "seeds", "loss", "its loss", "loss by squares", "apart", "drawn at random")


def squares(task: Any) -> dict[str, torch.Tensor]:
    """w², of which Torch-Pruning's magnitude of a group is a sum; ours is one of |w|."""
    return {name: weight.detach().square() for name, weight in task.parameters.items()}


@torch.no_grad()
def losses(name: str, seeds: int) -> dict[str, object]:
    """The loss of both over several fresh networks: one of them alone says little. "by squares" is
    ours by Torch-Pruning's score, "apart" the largest difference from its loss then.
    """
    found: dict[str, list[float]] = {}
    for seed in range(seeds):
        torch.manual_seed(seed)
        model, inputs = FRESH[name]()
        model.eval()
        for p in model.parameters():
            if p.ndim == 1 and not p.any():
                p.normal_(std=0.02)
        before, one = answers(model, inputs), batches(inputs, 1)
        rules = {"loss": "magnitude", "loss by squares": squares, "drawn at random": "random"}
        for what, rule in rules.items():
            cut = copy.deepcopy(model)
            draw = torch.Generator().manual_seed(seed)
            sc.prune_channels_(cut, one, rule, channels=0.5, exact=False, generator=draw)
            found.setdefault(what, []).append(float(loss_of(before, cut, inputs)))
        with torch.enable_grad():
            torch_pruned(model, one)
        found.setdefault("its loss", []).append(float(loss_of(before, model, inputs)))
    pairs = zip(found["loss by squares"], found["its loss"], strict=True)
    apart = max(abs(ours - its) for ours, its in pairs)
    row: dict[str, object] = {"network": name, "seeds": seeds, "apart": f"{apart:.3f}"}
    for what, seen in found.items():
        row[what] = f"{sum(seen) / seeds:.3f} ({min(seen):.3f} to {max(seen):.3f})"
    return row


def share(part: int, whole: int) -> str:
    return f"{part:,} ({part / whole:.1%})"


def loss_of(before: torch.Tensor, model: nn.Module, inputs: Inputs) -> str:
    after = answers(model, inputs)
    if after.shape != before.shape:
        return "another shape"
    return f"{float((after - before).norm() / before.norm()):.3f}"


# Small networks that have learnt something, cut, and trained again for a third of the time.


def digits(shape: tuple[int, ...]) -> tuple[torch.Tensor, ...]:
    data = lab.data.load("digits")
    train, test = (x.reshape(len(x), *shape) for x in (data.train_x, data.test_x))
    return train, data.train_y, test, data.test_y


def sequences() -> tuple[torch.Tensor, ...]:
    """Tokens of which each follows from the last two by a fixed random table, one in ten drawn."""
    generator = torch.Generator().manual_seed(2)
    table = torch.randint(WORDS, (WORDS, WORDS), generator=generator)
    found = torch.randint(WORDS, (3000, 16), generator=generator)
    noise = torch.rand(found.shape, generator=generator) < 0.1
    for step in range(2, 16):
        follows = table[found[:, step - 2] % 4, found[:, step - 1]]
        found[:, step] = torch.where(noise[:, step], found[:, step], follows)
    return found[:2500], found[:2500], found[2500:], found[2500:]


def labelled() -> tuple[torch.Tensor, ...]:
    """Which of four tokens is the most frequent of a sequence."""
    generator = torch.Generator().manual_seed(3)
    found = torch.randint(WORDS, (3000, 12), generator=generator)
    found = torch.where(torch.rand(found.shape, generator=generator) < 0.6, found % 4, found)
    counts = torch.stack([(found == word).sum(1) for word in range(4)], 1)
    labels = (counts + 0.1 * torch.arange(4.0)).argmax(1)
    return found[:2500], labels[:2500], found[2500:], labels[2500:]


LEARNT: dict[str, tuple[Callable[[], nn.Module], Callable[[], tuple[torch.Tensor, ...]], int]] = {
    "nn.TransformerEncoder, digits": (Encoder, lambda: digits((8, 8)), 600),
    "ViT, digits": (lambda: hugging("ViT")[0], lambda: digits((1, 8, 8)), 600),
    "BERT, counting": (lambda: hugging("BERT")[0], labelled, 600),
    "GPT-2, next token": (lambda: hugging("GPT-2")[0], sequences, 900),
    "Llama, next token": (lambda: hugging("Llama")[0], sequences, 900),
}


def cost(model: nn.Module, x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The loss and what of the answers is right; a sequence is asked for its next tokens."""
    out = answers(model, {"input_ids": x} if x.dtype == torch.long else x)
    if y.ndim == 2:
        out, y = out[:, 1:-1].flatten(0, 1), y[:, 2:].flatten()
    return F.cross_entropy(out, y), (out.argmax(1) == y).double().mean()


def train(model: nn.Module, data: tuple[torch.Tensor, ...], steps: int, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    rate = torch.optim.lr_scheduler.OneCycleLR(optimizer, 2e-3, steps)
    model.train()
    for _ in range(steps):
        some = torch.randint(len(data[0]), (64,), generator=generator)
        optimizer.zero_grad()
        cost(model, data[0][some], data[1][some])[0].backward()
        optimizer.step()
        rate.step()
    model.eval()


@torch.no_grad()
def accuracy(model: nn.Module, data: tuple[torch.Tensor, ...]) -> str:
    return f"{float(cost(model.eval(), data[2], data[3])[1]):.1%}"


TUNED = ("network", "seed", "dense", "left", "cut", "tuned", "Torch-Pruning", "its cut",
         "its tuned", "seconds", "says")  # fmt: skip


def tuned(name: str, seed: int) -> dict[str, object]:
    make, load, steps = LEARNT[name]
    torch.manual_seed(seed)
    model, data, start = make(), load(), time.process_time()
    train(model, data, steps, seed)
    row: dict[str, object] = {"network": name, "seed": seed, "dense": accuracy(model, data)}
    ours, other, total = copy.deepcopy(model), copy.deepcopy(model), size(model)
    example: Inputs = data[0][:1]
    example = {"input_ids": example} if example.dtype == torch.long else example
    sc.prune_channels_(ours, example, channels=0.5, exact=False)
    row |= {"left": share(size(ours), total), "cut": accuracy(ours, data)}
    train(ours, data, steps // 3, seed + 100)
    row["tuned"] = accuracy(ours, data)
    small = sc.compact(ours, example)
    says = [f"compact differs by {small.compaction.difference:.0e}"]
    try:
        with limited():
            torch_pruned(other, example)
        row |= {"Torch-Pruning": share(size(other), total), "its cut": accuracy(other, data)}
        train(other, data, steps // 3, seed + 100)
        row["its tuned"] = accuracy(other, data)
    except Exception as error:
        says.append(f"Torch-Pruning: {type(error).__name__}: {error}"[:120])
    return row | {"seconds": round(time.process_time() - start, 1), "says": "; ".join(says)}


def rows(path: Path) -> list[dict[str, str]]:
    if not path.exists():
        return []
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def run(
    path: Path, columns: tuple[str, ...], jobs: dict[str, Callable[[], Any]], only: str
) -> None:
    done = {f"{found['network']}{found.get('seed', '')}" for found in rows(path)}
    with path.open("a", newline="") as file:
        writer = csv.DictWriter(file, columns)
        if not done:
            writer.writeheader()
        for name, job in jobs.items():
            if name not in done and re.search(only, name):
                writer.writerow(job())
                file.flush()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=("left", "losses", "tuned", "table"))
    parser.add_argument("--out", default="channels.csv")
    parser.add_argument("--only", default="", help="networks whose name this expression finds")
    parser.add_argument("--seeds", type=int, default=2)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    path = Path(asked.out)
    if asked.what == "table":
        found = rows(path)
        print("|", " | ".join(found[0]), "|\n" + "|---" * len(found[0]) + "|")
        for each in found:
            print("|", " | ".join(each.values()), "|")
        return
    stubs()
    if asked.what == "left":
        run(path, LEFT, {name: lambda name=name: left(name) for name in FRESH}, asked.only)
    elif asked.what == "losses":
        names = ("BERT", "DistilBERT", "nn.TransformerEncoder", "ViT")
        jobs = {name: lambda name=name: losses(name, asked.seeds) for name in names}
        run(path, LOSSES, jobs, asked.only)
    else:
        seeds = range(asked.seeds)
        jobs = {
            f"{name}{seed}": lambda name=name, seed=seed: tuned(name, seed)
            for seed in seeds
            for name in LEARNT
        }
        run(path, TUNED, jobs, asked.only)


if __name__ == "__main__":
    sys.exit(main())
