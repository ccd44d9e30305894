"""What `compact` does to networks of other people, unmodified: pytorchcv and transformers.

    python benchmarks/compaction_zoo.py run --out zoo.csv      goes on where it stopped
    python benchmarks/compaction_zoo.py table --out zoo.csv

40 % of the filters of every hidden layer are zeroed, biases and norms kept (random weights and
batch-norm statistics). A row says what is left, how far the outputs are apart in float64 on two
inputs, and the first reason for what stays, or the refusal in its own words. The last rows zero
whole heads or feed-forward neurons of transformers.
"""

import argparse
import csv
import sys
import time
import warnings
from collections.abc import Callable
from importlib import import_module
from pathlib import Path

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
    "bninception.bninception",
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
    """Float64, evaluation mode, batch-norm statistics that are no fresh ones."""
    for module in model.modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            nn.init.normal_(module.running_mean, std=0.1)
            nn.init.uniform_(module.running_var, 0.5, 2.0)
            nn.init.uniform_(module.weight, 0.5, 1.5)
            nn.init.normal_(module.bias, std=0.1)
    return model.double().eval()


def vit() -> tuple[nn.Module, torch.Tensor, str]:
    import transformers as t

    config = t.ViTConfig(
        hidden_size=32, num_hidden_layers=2, num_attention_heads=4,
        intermediate_size=64, image_size=16, patch_size=8,
    )  # fmt: skip
    model = t.ViTForImageClassification(config)
    with torch.no_grad():
        for layer in model.vit.modules():
            if isinstance(layer, nn.Linear) and layer.out_features == 64:
                layer.weight[:32], layer.bias[:32] = 0, 0  # half of the neurons
    return (
        model.double().eval(),
        torch.randn(2, 3, 16, 16).double(),
        "half of neurons",
    )


def bert() -> tuple[nn.Module, torch.Tensor, str]:
    import transformers as t

    config = t.BertConfig(
        hidden_size=32, num_hidden_layers=2, num_attention_heads=4,
        intermediate_size=64, vocab_size=50,
    )  # fmt: skip
    model = t.BertForSequenceClassification(config)
    with torch.no_grad():
        for name, layer in model.named_modules():
            if name.endswith(("query", "key", "value")):
                layer.weight[:8], layer.bias[:8] = 0, 0  # the first head
    return model.double().eval(), torch.randint(50, (2, 7)), "one of four heads"


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


JOBS: dict[str, Callable[[], tuple[nn.Module, torch.Tensor, str]]] = {
    **{f"pytorchcv {name}": lambda name=name: zoo(name) for name in PYTORCHCV},
    **{
        f"transformers {kind}": lambda kind=kind: convolutional(kind)
        for kind in ("ResNet", "RegNet", "MobileNetV2", "ConvNext")
    },
    "transformers ViT": vit,
    "transformers BERT": bert,
}
COLUMNS = ("network", "zeroed", "parameters left", "difference", "seconds", "says")


@torch.inference_mode()
def apart(model: nn.Module, small: nn.Module, x: torch.Tensor) -> float:
    """The largest relative difference, on this input and another one."""
    found = 0.0
    for given in (x, x if not x.is_floating_point() else 0.7 * x.flip(0) + 0.1):
        pairs = [list(tensors(form(given))) for form in (model, small)]
        for a, b in zip(*pairs, strict=True):
            found = max(found, float((a - b).abs().max() / a.abs().max()))
    return found


def tensors(output: object) -> list[torch.Tensor]:
    leaves = torch.utils._pytree.tree_leaves(output)
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
    before, after = (
        sum(p.numel() for p in form.parameters()) for form in (model, small)
    )
    kept = small.compaction.kept
    return found | {
        "parameters left": f"{after / before:.3f}",
        "difference": f"{apart(model, small, x):.1e}",
        "seconds": round(time.process_time() - start, 1),
        "says": "; ".join(f"{k.channels} × {k.why}" for k in kept[:2])[:300],
    }


def run(path: Path) -> None:
    done = {found["network"] for found in rows(path)}
    with path.open("a", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS)
        if not done:
            writer.writeheader()
        for name in JOBS:
            if name not in done:
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
    asked = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    {"run": run, "table": table}[asked.what](Path(asked.out))


if __name__ == "__main__":
    main()
