"""Published networks from other packages: what is captured computes what the model computes."""

import functools
import importlib
import importlib.util
import inspect
import re
import warnings
from collections.abc import Callable
from pathlib import Path

import torch
from torch import nn

from attack.cases import Tally
from secateurs.errors import CaptureError
from secateurs.graph import capture, evaluate

_NAMES = """
resnet10 resnet12 resnet14 resnet18 resnet26 resnetbc26b resnet34 resnet50 preresnet10 preresnet18
seresnet10 seresnet18 resnext14_16x4d resnext26_32x2d seresnext50_32x4d resnet10_cub vgg11 bn_vgg11
bn_vgg11b vgg13 alexnet alexnetb zfnet zfnetb squeezenet_v1_0 squeezenet_v1_1 squeezeresnet_v1_0
squeezeresnet_v1_1 mobilenet_w1 mobilenet_wd2 mobilenet_wd4 fdmobilenet_w1 fdmobilenet_wd2
mobilenetv2_w1 mobilenetv2b_wd2 shufflenet_g1_w1 shufflenet_g2_w1 shufflenet_g3_w1 shufflenetv2_wd2
shufflenetv2_w1 shufflenetv2b_wd2 menet108_8x1_g3 menet128_8x1_g4 densenet121 peleenet dla34 dla46c
dla46xc darknet_tiny darknet_ref darknet19 igcv3_w1 hrnet_w18_small_v1 hrnet_w18_small_v2
vovnet27s vovnet39 hardnet39ds hardnet68ds selecsls42 selecsls42b espnetv2_wd2 dicenet_wd2 bagnet9
bagnet17 condensenet74_c4_g4 nin_cifar10 resnet20_cifar10 resnet56_cifar10 preresnet20_cifar10
seresnet20_cifar10 resnext29_32x4d_cifar10 densenet40_k12_cifar10 densenet40_k12_bc_cifar10
pyramidnet110_a48_cifar10 wrn16_10_cifar10 wrn20_10_1bit_cifar10 ror3_56_cifar10 rir_cifar10
diaresnet20_cifar10 xdensenet40_2_k24_bc_cifar10 shakeshakeresnet20_2x16d_cifar10 inceptionv3
bninception diracnet18v2 diracnet34v2 regnetx002 regnetx004 regnety002 polynet airnet50_1x64d_r2
scnet50 resnesta18 sepreresnet10
mnasnet_b1 fbnet_cb proxylessnas_cpu spnasnet ghostnet lwopenpose2d_mobilenet_cmupan_coco
"""
PYTORCHCV = _NAMES.split()

TRANSFORMERS = (
    "resnet", "regnet-x", "regnet-y", "mobilenet_v1", "convnext", "poolformer",
    "bit", "mobilenet_v2", "levit", "efficientnet",
)  # fmt: skip


def sides_of(name: str) -> tuple[int, ...]:
    """Images to try, the smallest first: some architectures have pools of a fixed size."""
    if name.startswith("transformers:"):
        return (64,)
    return (32,) if "cifar" in name else (96, 224)


def build(name: str) -> tuple[nn.Module, torch.Tensor]:
    """A network with random weights and statistics in eval mode, and an image that it takes."""
    g = torch.Generator().manual_seed(0)
    for side in sides_of(name):
        model = _built(name, side).eval()
        image = torch.randn(1, 3, side, side, generator=g)
        try:
            with torch.no_grad():
                model(image)
        except RuntimeError:
            if side == sides_of(name)[-1]:
                raise
            continue
        break
    with torch.no_grad():
        for module in model.modules():
            if getattr(module, "running_mean", None) is not None:
                module.running_mean.normal_(0, 0.2, generator=g)
                module.running_var.uniform_(0.5, 2.0, generator=g)
    return model, image


def _built(name: str, side: int) -> nn.Module:
    if name.startswith("transformers:"):
        return _transformer(name.removeprefix("transformers:"))
    return _pytorchcv(name, side)


def _pytorchcv(name: str, side: int) -> nn.Module:
    make = getattr(importlib.import_module(_rooms()[name]), name)
    options = {"in_size": (side, side)}
    if "in_size" not in inspect.signature(make).parameters:
        options = {} if not takes_keywords(make) else options
    try:
        return make(pretrained=False, **options)
    except TypeError:  # some builders take no size
        return make(pretrained=False)


def takes_keywords(make: Callable[..., object]) -> bool:
    """Whether it hands on what it does not know."""
    kinds = {p.kind for p in inspect.signature(make).parameters.values()}
    return inspect.Parameter.VAR_KEYWORD in kinds


@functools.cache
def _rooms() -> dict[str, str]:
    """Which module has which network: the package's own list imports torchvision."""
    spec = importlib.util.find_spec("pytorchcv")
    folder = Path(spec.submodule_search_locations[0]) / "models"
    return {
        name: f"pytorchcv.models.{path.stem}"
        for path in sorted(folder.glob("*.py"))
        for name in re.findall(r"^def ([a-z]\w+)\(", path.read_text("utf-8"), flags=re.M)
        if path.stem != "model_store"
    }


def _transformer(name: str) -> nn.Module:
    import transformers as t

    small = {"num_labels": 5}
    if name == "resnet":
        c = t.ResNetConfig(embedding_size=8, hidden_sizes=[8, 16], depths=[1, 2], **small)
        return t.ResNetForImageClassification(c)
    if name.startswith("regnet"):
        kind = name.removeprefix("regnet-")
        sizes = {"embedding_size": 8, "hidden_sizes": [8, 16], "depths": [1, 1]}
        c = t.RegNetConfig(**sizes, groups_width=8, layer_type=kind, **small)
        return t.RegNetForImageClassification(c)
    if name == "bit":
        c = t.BitConfig(
            embedding_size=8,
            hidden_sizes=[8, 16],
            depths=[1, 1],
            num_groups=4,
            **small,
        )
        return t.BitForImageClassification(c)
    if name == "convnext":
        c = t.ConvNextConfig(
            hidden_sizes=[8, 16],
            depths=[1, 1],
            num_stages=2,
            hidden_act="relu",
            **small,
        )
        return t.ConvNextForImageClassification(c)
    if name == "poolformer":
        c = t.PoolFormerConfig(hidden_act="relu", **small)
        return t.PoolFormerForImageClassification(c)
    if name == "levit":
        return t.LevitForImageClassification(t.LevitConfig(image_size=64, **small))
    if name == "efficientnet":
        c = t.EfficientNetConfig(hidden_act="relu", **small)
        return t.EfficientNetForImageClassification(c)
    kind = {"mobilenet_v1": "MobileNetV1", "mobilenet_v2": "MobileNetV2"}[name]
    config = getattr(t, f"{kind}Config")(hidden_act="relu", **small)
    return getattr(t, f"{kind}ForImageClassification")(config)


def attack_capture(name: str) -> Tally:
    """One network: equal to its graph on two images of its own, or refused in words."""
    tally = Tally()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            model, x = build(name)
    except Exception as error:  # not in this release, or too small an image
        tally.counts["could not be built"] += 1
        tally.errors.append(f"{name} was not built: {type(error).__name__}: {error}"[:200])
        return tally
    try:
        graph = capture(model, x)
    except CaptureError as error:
        tally.counts["refused"] += 1
        tally.counts[f"refused: {name}: {str(error)[:120]}"] += 1
        return tally
    other = torch.randn(x.shape, generator=torch.Generator().manual_seed(7)) * 0.5 + 0.3
    with torch.no_grad():
        for image in (x, other):
            theirs = _answer(model, image, graph.output_name)
            ours = evaluate(graph, [image.double()], graph.state(model)).to(theirs.dtype)
            gap = float((ours - theirs).abs().max()) / (float(theirs.abs().max()) + 1e-12)
            if not gap <= 1e-3:
                tally.violations.append(f"{name}: the graph is off by {gap:.3g}")
    tally.counts["captured and equal"] += not tally.violations
    return tally


def _answer(model: nn.Module, x: torch.Tensor, output: str) -> torch.Tensor:
    found = model(x)
    if isinstance(found, torch.Tensor):
        return found
    return found[int(output)] if output.isdigit() else found[output]
