"""What `compact` does to networks of other people, unmodified: pytorchcv and transformers.

    python benchmarks/compaction_zoo.py run --out zoo.csv      goes on where it stopped
    python benchmarks/compaction_zoo.py table --out zoo.csv

40 % of the filters of every hidden layer are zeroed, biases and norms kept (random weights and
batch-norm statistics). A row says what is left, how far the outputs are apart in float64 on two
inputs, and the first reason for what stays, or the refusal in its own words. "pruned, compacted" is
what `prune_channels_(channels=0.6)` and `compact` leave of the same network; dead filters go first.
The last rows zero the first head and half of the feed-forward neurons of transformers.
"""

import argparse
import csv
import re
import sys
import time
import warnings
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from torch import nn

import secateurs as sc

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
PYTORCHCV = (
    "resnet_cifar.resnet20_cifar10", "preresnet_cifar.preresnet20_cifar10",
    "seresnet_cifar.seresnet20_cifar10", "densenet_cifar.densenet40_k12_cifar10",
    "resnext_cifar.resnext29_32x4d_cifar10", "nin_cifar.nin_cifar10",
    "squeezenet.squeezenet_v1_1", "mobilenet.mobilenet_wd4",
    "mobilenetv2.mobilenetv2_wd4", "shufflenet.shufflenet_g3_wd4",
    "shufflenetv2.shufflenetv2_wd2", "mobilenetv3.mobilenetv3_small_w7d20",
    "igcv3.igcv3_wd4", "resnet.resnet10", "darknet.darknet_tiny",
    "ghostnet.ghostnet", "peleenet.peleenet", "regnet.regnetx002",
    "bninception.bninception", "inceptionv3.inceptionv3", "efficientnet.efficientnet_b0",
)  # fmt: skip


def zoo(name: str) -> tuple[nn.Module, torch.Tensor, str]:
    """A network of pytorchcv with random weights, and an input as small as it takes."""
    from dead_filters import dead_filters

    side = 32 if "cifar" in name else 224  # their last pools have a fixed size
    module, _, function = name.partition(".")
    # Not by its provider of all models, which wants torchvision.
    make = getattr(import_module(f"pytorchcv.models.{module}"), function)
    model = randomised(make())
    dead_filters(model, 0.4)
    return (
        model,
        torch.randn(1, 3, side, side, dtype=torch.float64),
        "40 % of filters",
    )


def randomised(model: nn.Module) -> nn.Module:
    """Float64, evaluation mode, batch-norm statistics that are not fresh ones."""
    for module in model.modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            nn.init.normal_(module.running_mean, std=0.1)
            nn.init.uniform_(module.running_var, 0.5, 2.0)
            nn.init.uniform_(module.weight, 0.5, 1.5)
            nn.init.normal_(module.bias, std=0.1)
    return model.double().eval()


def transformer(kind: str) -> tuple[nn.Module, Any, str]:
    """A small random transformer without its first head and half of its feed-forward neurons."""
    import transformers as t

    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4}
    words = {"vocab_size": 50, "intermediate_size": 64}
    ids = {"input_ids": torch.randint(50, (2, 7))}
    if kind == "ViT":
        config = t.ViTConfig(**sizes, intermediate_size=64, image_size=16, patch_size=8)
        model, given = (
            t.ViTForImageClassification(config),
            torch.randn(2, 3, 16, 16).double(),
        )
    elif kind == "BERT":
        model, given = (
            t.BertForSequenceClassification(t.BertConfig(**sizes, **words)),
            ids,
        )
    elif kind == "Llama":
        config = t.LlamaConfig(**sizes, **words, num_key_value_heads=2)
        model, given = t.LlamaForCausalLM(config), ids
    elif kind == "GPT-2":
        config = t.GPT2Config(n_embd=32, n_layer=2, n_head=4, n_inner=64, vocab_size=50)
        model, given = t.GPT2LMHeadModel(config), ids
    elif kind == "T5":
        config = t.T5Config(d_model=32, d_kv=8, d_ff=64, num_layers=2, num_heads=4, vocab_size=50)
        model = t.T5ForConditionalGeneration(config)
        given = ids | {"decoder_input_ids": ids["input_ids"][:, :5]}
    else:
        layer = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True)
        model, given = nn.TransformerEncoder(layer, 2), torch.randn(2, 7, 32).double()
    model.double().eval()
    beheaded_(model)
    return model, given, "1 head, half of neurons"


@torch.no_grad()
def beheaded_(model: nn.Module) -> None:
    """Zero rows of the first head, and of half of the feed-forward neurons, with their biases."""
    attention = {
        "query",
        "key",
        "value",
        "q",
        "k",
        "v",
        "q_proj",
        "k_proj",
        "v_proj",
        "c_attn",
    }
    up = {"intermediate.dense", "fc1", "wi", "up_proj", "linear1", "c_fc"}
    for name, module in model.named_modules():
        weight = getattr(module, "weight", getattr(module, "in_proj_weight", None))
        bias = getattr(module, "bias", getattr(module, "in_proj_bias", None))
        if weight is None or weight.ndim != 2:
            continue
        rows = weight.T if type(module).__name__ == "Conv1D" else weight
        gone = torch.zeros(len(rows), dtype=torch.bool)
        if name.split(".")[-1] in attention or "in_proj_weight" in dict(module.named_parameters()):
            gone[:8] = True
            if len(rows) == 96:  # queries, keys and values in one tensor
                gone[32:40], gone[64:72] = True, True
        elif name.endswith(tuple(up)):
            gone[:32] = True
        rows[gone] = 0
        if bias is not None:
            bias[gone] = 0


def convolutional(kind: str) -> tuple[nn.Module, torch.Tensor, str]:
    import transformers as t

    from dead_filters import dead_filters

    configs = {
        "ResNet": t.ResNetConfig(
            embedding_size=16, hidden_sizes=[16, 32, 48], depths=[1, 2, 1],
            layer_type="basic",
        ),
        "RegNet": t.RegNetConfig(
            embedding_size=16, hidden_sizes=[16, 32], depths=[1, 2], groups_width=8,
        ),
        "MobileNetV2": t.MobileNetV2Config(depth_multiplier=0.35, image_size=64),
        "ConvNext": t.ConvNextConfig(hidden_sizes=[16, 32], depths=[1, 1], num_stages=2),
    }  # fmt: skip
    model = getattr(t, f"{kind}ForImageClassification")(configs[kind])
    model = randomised(model)
    dead_filters(model, 0.4)
    return model, torch.randn(2, 3, 64, 64, dtype=torch.float64), "40 % of filters"


JOBS: dict[str, Callable[[], tuple[nn.Module, Any, str]]] = {
    **{f"pytorchcv {name}": lambda name=name: zoo(name) for name in PYTORCHCV},
    **{
        f"transformers {kind}": lambda kind=kind: convolutional(kind)
        for kind in ("ResNet", "RegNet", "MobileNetV2", "ConvNext")
    },
    **{
        f"{'torch' if kind == 'TransformerEncoder' else 'transformers'} {kind}": (
            lambda kind=kind: transformer(kind)
        )
        for kind in ("ViT", "BERT", "GPT-2", "Llama", "T5", "TransformerEncoder")
    },
}
COLUMNS = (
    "network", "zeroed", "parameters left", "pruned, compacted", "difference", "seconds", "says",
)  # fmt: skip


@torch.inference_mode()
def apart(model: nn.Module, small: nn.Module, x: Any) -> float:
    """The largest relative difference, on this input and another one."""
    found = 0.0
    another = (
        {name: torch.cat([ids, ids], dim=1) for name, ids in x.items()}
        if isinstance(x, dict)
        else 0.7 * x.flip(0) + 0.1
    )
    for given in (x, another):
        pairs = [
            list(tensors(form(**given) if isinstance(given, dict) else form(given)))
            for form in (model, small)
        ]
        for a, b in zip(*pairs, strict=True):
            found = max(found, float((a - b).abs().max() / a.abs().max()))
    return found


def tensors(output: object) -> list[torch.Tensor]:
    # A cache of keys and values holds heads, which are not there any more.
    own = (
        {k: v for k, v in output.items() if "past" not in k} if isinstance(output, dict) else output
    )
    leaves = torch.utils._pytree.tree_leaves(own)
    return [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]


def row(name: str) -> dict[str, object]:
    """One network; a refusal is a result."""
    torch.manual_seed(0)
    model, x, zeroed = JOBS[name]()
    start = time.process_time()
    found: dict[str, object] = {"network": name, "zeroed": zeroed}
    try:
        small = sc.compact(model, x)
    except sc.errors.SecateursError as error:
        return found | {"says": f"refused: {type(error).__name__}: {error}"[:300]}
    before, after = (sum(p.numel() for p in form.parameters()) for form in (model, small))
    kept = small.compaction.kept
    sc.prune_channels_(fresh := JOBS[name]()[0], x, channels=0.6)
    pruned = sum(p.numel() for p in sc.compact(fresh, x).parameters())
    return found | {
        "parameters left": f"{after / before:.3f}",
        "pruned, compacted": f"{pruned / before:.3f}",
        "difference": f"{apart(model, small, x):.1e}",
        "seconds": round(time.process_time() - start, 1),
        "says": "; ".join(f"{k.channels} × {k.why}" for k in kept[:2])[:300],
    }


def run(path: Path, only: str) -> None:
    done = {found["network"] for found in rows(path)}
    with path.open("a", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS)
        if not done:
            writer.writeheader()
        for name in JOBS:
            if name not in done and re.search(only, name):
                try:
                    writer.writerow(row(name))
                except Exception as error:
                    said = f"FAILED: {type(error).__name__}: {error}"[:300]
                    writer.writerow({"network": name, "says": said})
                file.flush()


def rows(path: Path) -> list[dict[str, str]]:
    if not path.exists():
        return []
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def table(path: Path) -> None:
    print("|", " | ".join(COLUMNS), "|\n" + "|---" * len(COLUMNS) + "|")
    for found in rows(path):
        cells = [found[column].replace("\n", " ") for column in COLUMNS]
        print("|", " | ".join(cells), "|")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=("run", "table"))
    parser.add_argument("--out", default="zoo.csv")
    parser.add_argument("--only", default="", help="networks whose name this expression finds")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    if asked.what == "run":
        run(Path(asked.out), asked.only)
    else:
        table(Path(asked.out))


if __name__ == "__main__":
    main()
