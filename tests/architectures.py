"""Networks of the literature, written compactly from their published descriptions, for the tests of
graphs and paths.

`ZOO` maps a name to (builder, input shape). Widths and depths are the published ones; inputs are as
small as the architecture allows, so that capture and evaluation stay quick.
"""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn


def conv_bn(inp: int, out: int, kernel: int | tuple[int, int] = 3, **options) -> nn.Sequential:
    options.setdefault(
        "padding",
        kernel // 2 if isinstance(kernel, int) else tuple(k // 2 for k in kernel),
    )
    return nn.Sequential(
        nn.Conv2d(inp, out, kernel, bias=False, **options),
        nn.BatchNorm2d(out),
        nn.ReLU(inplace=True),
    )


# -- ResNet (He et al. 2015)
# -------------------------------------------------------------------------------------------


class BasicBlock(nn.Module):
    expansion = 1

    def __init__(self, inp: int, width: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inp, width, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.relu = nn.ReLU(inplace=True)
        self.conv2 = nn.Conv2d(width, width, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.downsample = shortcut(inp, width, stride)

    def forward(self, x: Tensor) -> Tensor:
        identity = x if self.downsample is None else self.downsample(x)
        out = self.bn2(self.conv2(self.relu(self.bn1(self.conv1(x)))))
        out += identity
        return self.relu(out)


class Bottleneck(nn.Module):
    expansion = 4

    def __init__(self, inp: int, width: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            conv_bn(inp, width, 1),
            conv_bn(width, width, 3, stride=stride),
            nn.Conv2d(width, width * 4, 1, bias=False),
            nn.BatchNorm2d(width * 4),
        )
        self.downsample = shortcut(inp, width * 4, stride)

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.body(x) + (x if self.downsample is None else self.downsample(x)))


def shortcut(inp: int, out: int, stride: int) -> nn.Module | None:
    if stride == 1 and inp == out:
        return None
    return nn.Sequential(nn.Conv2d(inp, out, 1, stride, bias=False), nn.BatchNorm2d(out))


class ResNet(nn.Module):
    def __init__(
        self,
        block: type,
        depths: tuple[int, ...],
        classes: int = 1000,
        base: int = 64,
    ) -> None:
        super().__init__()
        self.stem = nn.Sequential(conv_bn(3, base, 7, stride=2), nn.MaxPool2d(3, 2, 1))
        blocks, inp = [], base
        for stage, depth in enumerate(depths):
            for i in range(depth):
                blocks.append(block(inp, base * 2**stage, 2 if stage and not i else 1))
                inp = base * 2**stage * block.expansion
        self.blocks = nn.Sequential(*blocks)
        self.avgpool = nn.AdaptiveAvgPool2d((1, 1))
        self.fc = nn.Linear(inp, classes)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(torch.flatten(self.avgpool(self.blocks(self.stem(x))), 1))


def resnet18(classes: int = 1000) -> nn.Module:
    return ResNet(BasicBlock, (2, 2, 2, 2), classes)


def resnet34() -> nn.Module:
    return ResNet(BasicBlock, (3, 4, 6, 3))


def resnet50() -> nn.Module:
    return ResNet(Bottleneck, (3, 4, 6, 3))


def resnet152() -> nn.Module:
    return ResNet(Bottleneck, (3, 8, 36, 3))


# -- VGG (Simonyan and Zisserman 2014), AlexNet (Krizhevsky 2014)
# ------------------------------------------------------


def vgg_bn(depth: int, classes: int = 1000, hidden: int = 512) -> nn.Module:
    """The classifier is narrower than published (4096): it would only cost memory here."""
    repeats = {16: (2, 2, 3, 3, 3), 19: (2, 2, 4, 4, 4)}[depth]
    layers: list[nn.Module] = []
    inp = 3
    for width, times in zip((64, 128, 256, 512, 512), repeats, strict=True):
        for _ in range(times):
            layers += [
                nn.Conv2d(inp, width, 3, padding=1),
                nn.BatchNorm2d(width),
                nn.ReLU(inplace=True),
            ]
            inp = width
        layers.append(nn.MaxPool2d(2))
    head = [
        nn.Linear(512 * 4, hidden),
        nn.ReLU(True),
        nn.Dropout(),
        nn.Linear(hidden, hidden),
        nn.ReLU(True),
    ]
    return nn.Sequential(
        *layers,
        nn.AdaptiveAvgPool2d(2),
        nn.Flatten(),
        *head,
        nn.Dropout(),
        nn.Linear(hidden, classes),
    )


class AlexNet(nn.Module):
    def __init__(self, hidden: int = 256) -> None:
        super().__init__()
        relu, pool = nn.ReLU(inplace=True), nn.MaxPool2d(3, 2)
        self.features = nn.Sequential(
            *(
                nn.Conv2d(3, 64, 11, 4, 2),
                relu,
                pool,
                nn.Conv2d(64, 192, 5, padding=2),
                relu,
                pool,
            ),
            *(
                nn.Conv2d(192, 384, 3, padding=1),
                relu,
                nn.Conv2d(384, 256, 3, padding=1),
                relu,
            ),
            *(nn.Conv2d(256, 256, 3, padding=1), relu, pool),
        )
        self.avgpool = nn.AdaptiveAvgPool2d((6, 6))
        self.classifier = nn.Sequential(
            *(nn.Dropout(), nn.Linear(256 * 36, hidden), nn.ReLU(True), nn.Dropout()),
            *(nn.Linear(hidden, hidden), nn.ReLU(True), nn.Linear(hidden, 1000)),
        )

    def forward(self, x: Tensor) -> Tensor:
        x = self.avgpool(self.features(x))  # 6×6 out of 2×2: windows overlap
        return self.classifier(x.view(x.size(0), 256 * 6 * 6))


# -- DenseNet-121 (Huang et al. 2016)
# ----------------------------------------------------------------------------------


class DenseLayer(nn.Module):
    def __init__(self, inp: int, growth: int) -> None:
        super().__init__()
        self.norm1, self.conv1 = (
            nn.BatchNorm2d(inp),
            nn.Conv2d(inp, 4 * growth, 1, bias=False),
        )
        self.norm2, self.conv2 = (
            nn.BatchNorm2d(4 * growth),
            nn.Conv2d(4 * growth, growth, 3, padding=1, bias=False),
        )
        self.relu = nn.ReLU(inplace=True)

    def forward(self, features: list[Tensor]) -> Tensor:
        x = torch.cat(features, 1)
        x = self.conv1(self.relu(self.norm1(x)))
        return F.dropout(self.conv2(self.relu(self.norm2(x))), p=0.1, training=self.training)


class DenseNet(nn.Module):
    def __init__(self, depths: tuple[int, ...] = (6, 12, 24, 16), growth: int = 32) -> None:
        super().__init__()
        width = 2 * growth
        self.stem = nn.Sequential(conv_bn(3, width, 7, stride=2), nn.MaxPool2d(3, 2, 1))
        self.stages, self.transitions = nn.ModuleList(), nn.ModuleList()
        for stage, depth in enumerate(depths):
            self.stages.append(
                nn.ModuleList(DenseLayer(width + i * growth, growth) for i in range(depth))
            )
            width += depth * growth
            if stage + 1 < len(depths):
                shrink = [
                    nn.BatchNorm2d(width),
                    nn.ReLU(True),
                    nn.Conv2d(width, width // 2, 1, bias=False),
                ]
                self.transitions.append(nn.Sequential(*shrink, nn.AvgPool2d(2)))
                width //= 2
        self.norm, self.fc = nn.BatchNorm2d(width), nn.Linear(width, 1000)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        for i, stage in enumerate(self.stages):
            features = [x]
            for layer in stage:
                features.append(layer(features))
            x = torch.cat(features, 1)
            x = self.transitions[i](x) if i < len(self.transitions) else x
        return self.fc(F.adaptive_avg_pool2d(F.relu(self.norm(x), inplace=True), 1).flatten(1))


# -- GoogLeNet (Szegedy et al. 2014), Inception-v3 (2015)
# --------------------------------------------------------------


class Inception(nn.Module):
    def __init__(
        self,
        inp: int,
        one: int,
        red3: int,
        three: int,
        red5: int,
        five: int,
        proj: int,
    ) -> None:
        super().__init__()
        self.one = conv_bn(inp, one, 1)
        self.three = nn.Sequential(conv_bn(inp, red3, 1), conv_bn(red3, three, 3))
        self.five = nn.Sequential(conv_bn(inp, red5, 1), conv_bn(red5, five, 3))
        self.pool = nn.Sequential(nn.MaxPool2d(3, 1, 1, ceil_mode=True), conv_bn(inp, proj, 1))

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([self.one(x), self.three(x), self.five(x), self.pool(x)], 1)


class GoogLeNet(nn.Module):
    """With the input transform and the auxiliary heads that evaluation never runs."""

    def __init__(self) -> None:
        super().__init__()
        pool = nn.MaxPool2d(3, 2, ceil_mode=True)
        self.stem = nn.Sequential(
            conv_bn(3, 64, 7, stride=2),
            pool,
            conv_bn(64, 64, 1),
            conv_bn(64, 192, 3),
            pool,
        )
        self.three = nn.Sequential(
            Inception(192, 64, 96, 128, 16, 32, 32),
            Inception(256, 128, 128, 192, 32, 96, 64),
        )
        self.four = nn.Sequential(
            Inception(480, 192, 96, 208, 16, 48, 64),
            Inception(512, 160, 112, 224, 24, 64, 64),
            Inception(512, 128, 128, 256, 24, 64, 64),
            Inception(512, 112, 144, 288, 32, 64, 64),
            Inception(528, 256, 160, 320, 32, 128, 128),
        )
        self.five = nn.Sequential(
            Inception(832, 256, 160, 320, 32, 128, 128),
            Inception(832, 384, 192, 384, 48, 128, 128),
        )
        self.pool, self.pool5 = pool, nn.MaxPool2d(2, 2, ceil_mode=True)
        self.aux = nn.Linear(512, 1000)
        self.fc = nn.Linear(1024, 1000)

    def forward(self, x: Tensor) -> Tensor:
        red = torch.unsqueeze(x[:, 0], 1) * (0.229 / 0.5) + (0.485 - 0.5) / 0.5
        green = torch.unsqueeze(x[:, 1], 1) * (0.224 / 0.5) + (0.456 - 0.5) / 0.5
        blue = torch.unsqueeze(x[:, 2], 1) * (0.225 / 0.5) + (0.406 - 0.5) / 0.5
        x = self.four(self.pool(self.three(self.stem(torch.cat((red, green, blue), 1)))))
        if self.training:
            return self.fc(x.mean((2, 3))), self.aux(x.mean((2, 3)))
        return self.fc(torch.flatten(F.adaptive_avg_pool2d(self.five(self.pool5(x)), (1, 1)), 1))


class MixedA(nn.Module):
    def __init__(self, inp: int, pool: int) -> None:
        super().__init__()
        self.one = conv_bn(inp, 64, 1)
        self.five = nn.Sequential(conv_bn(inp, 48, 1), conv_bn(48, 64, 5))
        self.three = nn.Sequential(conv_bn(inp, 64, 1), conv_bn(64, 96, 3), conv_bn(96, 96, 3))
        self.proj = conv_bn(inp, pool, 1)

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat(
            [
                self.one(x),
                self.five(x),
                self.three(x),
                self.proj(F.avg_pool2d(x, 3, 1, 1)),
            ],
            1,
        )


class MixedB(nn.Module):
    def __init__(self, inp: int) -> None:
        super().__init__()
        self.three = conv_bn(inp, 384, 3, stride=2, padding=0)
        self.deep = nn.Sequential(
            conv_bn(inp, 64, 1),
            conv_bn(64, 96, 3),
            conv_bn(96, 96, 3, stride=2, padding=0),
        )

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([self.three(x), self.deep(x), F.max_pool2d(x, 3, 2)], 1)


class MixedC(nn.Module):
    def __init__(self, inp: int, width: int) -> None:
        super().__init__()
        row, column = (1, 7), (7, 1)
        self.one, self.proj = conv_bn(inp, 192, 1), conv_bn(inp, 192, 1)
        self.seven = nn.Sequential(
            conv_bn(inp, width, 1),
            conv_bn(width, width, row),
            conv_bn(width, 192, column),
        )
        self.twice = nn.Sequential(
            *(
                conv_bn(inp, width, 1),
                conv_bn(width, width, column),
                conv_bn(width, width, row),
            ),
            *(conv_bn(width, width, column), conv_bn(width, 192, row)),
        )

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat(
            [
                self.one(x),
                self.seven(x),
                self.twice(x),
                self.proj(F.avg_pool2d(x, 3, 1, 1)),
            ],
            1,
        )


class MixedD(nn.Module):
    def __init__(self, inp: int) -> None:
        super().__init__()
        self.three = nn.Sequential(conv_bn(inp, 192, 1), conv_bn(192, 320, 3, stride=2, padding=0))
        deep = (
            conv_bn(inp, 192, 1),
            conv_bn(192, 192, (1, 7)),
            conv_bn(192, 192, (7, 1)),
        )
        self.seven = nn.Sequential(*deep, conv_bn(192, 192, 3, stride=2, padding=0))

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([self.three(x), self.seven(x), F.max_pool2d(x, 3, 2)], 1)


class MixedE(nn.Module):
    def __init__(self, inp: int) -> None:
        super().__init__()
        self.one, self.proj = conv_bn(inp, 320, 1), conv_bn(inp, 192, 1)
        self.three = conv_bn(inp, 384, 1)
        self.deep = nn.Sequential(conv_bn(inp, 448, 1), conv_bn(448, 384, 3))
        self.rows = nn.ModuleList(conv_bn(384, 384, (1, 3)) for _ in range(2))
        self.columns = nn.ModuleList(conv_bn(384, 384, (3, 1)) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        branches = [self.one(x)]
        for i, stem in enumerate((self.three(x), self.deep(x))):
            branches.append(torch.cat([self.rows[i](stem), self.columns[i](stem)], 1))
        return torch.cat([*branches, self.proj(F.avg_pool2d(x, 3, 1, 1))], 1)


class InceptionV3(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(
            *(
                conv_bn(3, 32, 3, stride=2, padding=0),
                conv_bn(32, 32, 3, padding=0),
                conv_bn(32, 64, 3),
            ),
            *(
                nn.MaxPool2d(3, 2),
                conv_bn(64, 80, 1),
                conv_bn(80, 192, 3, padding=0),
                nn.MaxPool2d(3, 2),
            ),
        )
        self.mixed = nn.Sequential(
            *(MixedA(192, 32), MixedA(256, 64), MixedA(288, 64), MixedB(288)),
            *(
                MixedC(768, 128),
                MixedC(768, 160),
                MixedC(768, 160),
                MixedC(768, 192),
                MixedD(768),
            ),
            *(MixedE(1280), MixedE(2048)),
        )
        self.dropout, self.fc = nn.Dropout(), nn.Linear(2048, 1000)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(
            torch.flatten(self.dropout(F.adaptive_avg_pool2d(self.mixed(self.stem(x)), 1)), 1)
        )


# -- SqueezeNet (Iandola et al. 2016), MobileNet (Howard et al. 2017), ShuffleNet (Zhang et al.
# 2017) ------------------


class Fire(nn.Module):
    def __init__(self, inp: int, squeeze: int, expand: int) -> None:
        super().__init__()
        self.squeeze, self.relu = nn.Conv2d(inp, squeeze, 1), nn.ReLU(inplace=True)
        self.one, self.three = (
            nn.Conv2d(squeeze, expand, 1),
            nn.Conv2d(squeeze, expand, 3, padding=1),
        )

    def forward(self, x: Tensor) -> Tensor:
        x = self.relu(self.squeeze(x))
        return torch.cat([self.relu(self.one(x)), self.relu(self.three(x))], 1)


def squeezenet() -> nn.Module:
    pool = nn.MaxPool2d(3, 2, ceil_mode=True)
    return nn.Sequential(
        *(
            nn.Conv2d(3, 96, 7, 2),
            nn.ReLU(True),
            pool,
            Fire(96, 16, 64),
            Fire(128, 16, 64),
            Fire(128, 32, 128),
            pool,
        ),
        *(
            Fire(256, 32, 128),
            Fire(256, 48, 192),
            Fire(384, 48, 192),
            Fire(384, 64, 256),
            pool,
            Fire(512, 64, 256),
        ),
        *(
            nn.Dropout(),
            nn.Conv2d(512, 1000, 1),
            nn.ReLU(True),
            nn.AdaptiveAvgPool2d(1),
            nn.Flatten(),
        ),
    )


def mobilenet() -> nn.Module:
    plan = [
        (32, 64, 1),
        (64, 128, 2),
        (128, 128, 1),
        (128, 256, 2),
        (256, 256, 1),
        (256, 512, 2),
    ]
    plan += [(512, 512, 1)] * 5 + [(512, 1024, 2), (1024, 1024, 1)]
    layers = [conv_bn(3, 32, 3, stride=2)]
    for inp, out, stride in plan:
        layers += [
            conv_bn(inp, inp, 3, stride=stride, groups=inp),
            conv_bn(inp, out, 1),
        ]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(1024, 1000))


class ShuffleUnit(nn.Module):
    def __init__(self, channels: int, groups: int) -> None:
        super().__init__()
        self.groups = groups
        self.reduce = conv_bn(channels, channels // 4, 1, groups=groups)
        self.depthwise = nn.Conv2d(
            channels // 4,
            channels // 4,
            3,
            padding=1,
            groups=channels // 4,
            bias=False,
        )
        self.bn = nn.BatchNorm2d(channels // 4)
        self.grow = nn.Conv2d(channels // 4, channels, 1, groups=groups, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        y = self.reduce(x)
        n, c, h, w = y.shape
        y = (
            y.view(n, self.groups, c // self.groups, h, w)
            .transpose(1, 2)
            .contiguous()
            .view(n, c, h, w)
        )
        return F.relu(x + self.grow(self.bn(self.depthwise(y))))


class ShuffleNetV2Unit(nn.Module):
    """Channel split with `chunk`, as in version 2 (Ma et al. 2018), shuffled by the operator."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        half = channels // 2
        depthwise = [
            nn.Conv2d(half, half, 3, padding=1, groups=half, bias=False),
            nn.BatchNorm2d(half),
        ]
        self.branch = nn.Sequential(conv_bn(half, half, 1), *depthwise, conv_bn(half, half, 1))
        self.shuffle = nn.ChannelShuffle(2)

    def forward(self, x: Tensor) -> Tensor:
        left, right = x.chunk(2, dim=1)
        return self.shuffle(torch.cat((left, self.branch(right)), dim=1))


def shufflenet() -> nn.Module:
    units = [
        ShuffleUnit(48, 3),
        ShuffleUnit(48, 3),
        nn.AvgPool2d(3, 2, 1),
        ShuffleNetV2Unit(48),
        ShuffleNetV2Unit(48),
    ]
    return nn.Sequential(
        conv_bn(3, 48, 3, stride=2),
        *units,
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(48, 10),
    )


# -- U-Net (Ronneberger et al. 2015)
# -----------------------------------------------------------------------------------


class UNet(nn.Module):
    """`up` is 'transposed' (published) or 'nearest', the latter with padding worked out from the
    shapes.
    """

    def __init__(self, up: str, width: int = 8) -> None:
        super().__init__()
        w, self.up_kind = width, up
        self.down1, self.down2 = self.twice(1, w), self.twice(w, 2 * w)
        self.bottom = self.twice(2 * w, 4 * w)
        self.up2, self.up1 = self.up(4 * w, 2 * w), self.up(2 * w, w)
        self.join2, self.join1 = self.twice(4 * w, 2 * w), self.twice(2 * w, w)
        self.head = nn.Conv2d(w, 2, 1)

    def twice(self, inp: int, out: int) -> nn.Module:
        return nn.Sequential(conv_bn(inp, out), conv_bn(out, out))

    def up(self, inp: int, out: int) -> nn.Module:
        if self.up_kind == "transposed":
            return nn.ConvTranspose2d(inp, out, 2, 2)
        return nn.Sequential(
            nn.Upsample(scale_factor=2, mode="nearest"),
            nn.Conv2d(inp, out, 3, padding=1),
        )

    def fit(self, x: Tensor, skip: Tensor) -> Tensor:
        dy, dx = skip.size(2) - x.size(2), skip.size(3) - x.size(3)
        return torch.cat([skip, F.pad(x, [dx // 2, dx - dx // 2, dy // 2, dy - dy // 2])], dim=1)

    def forward(self, x: Tensor) -> Tensor:
        one = self.down1(x)
        two = self.down2(F.max_pool2d(one, 2))
        x = self.bottom(F.max_pool2d(two, 2))
        x = self.join2(self.fit(self.up2(x), two))
        return self.head(self.join1(self.fit(self.up1(x), one)))


# -- others
# ------------------------------------------------------------------------------------------


class Tied(nn.Module):
    """An autoencoder whose decoder is the transposed encoder, beside a second name for the
    encoder.
    """

    def __init__(self) -> None:
        super().__init__()
        self.encoder = nn.Linear(12, 5)
        self.alias = self.encoder
        self.decoder_bias = nn.Parameter(torch.randn(12))

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(torch.relu(self.alias(x)), self.encoder.weight.t(), self.decoder_bias)


class Siamese(nn.Module):
    """One branch applied to two inputs in parallel."""

    def __init__(self) -> None:
        super().__init__()
        self.branch, self.head = (
            nn.Sequential(nn.Linear(6, 7), nn.ReLU()),
            nn.Linear(7, 3),
        )

    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        return self.head(self.branch(a) - self.branch(b))


def huggingface_resnet() -> nn.Module:
    from transformers import ResNetConfig, ResNetForImageClassification

    config = ResNetConfig(
        embedding_size=16,
        hidden_sizes=[16, 32],
        depths=[2, 2],
        layer_type="bottleneck",
        num_labels=5,
    )
    return ResNetForImageClassification(config)


def lenet_300_100() -> nn.Module:
    layers = nn.Linear(784, 300), nn.ReLU(), nn.Linear(300, 100), nn.ReLU(), nn.Linear(100, 10)
    return nn.Sequential(nn.Flatten(), *layers)


def lenet_5() -> nn.Module:
    return nn.Sequential(
        *(nn.Conv2d(1, 6, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(6, 16, 5), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()),
        *(nn.Linear(400, 120), nn.ReLU(), nn.Linear(120, 84), nn.ReLU(), nn.Linear(84, 10)),
    )


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 3))


ZOO: dict[str, tuple[Callable[[], nn.Module], tuple[tuple[int, ...], ...]]] = {
    "mlp": (mlp, ((6,),)),
    "resnet18": (resnet18, ((3, 64, 64),)),
    "resnet34": (resnet34, ((3, 33, 33),)),
    "resnet50": (resnet50, ((3, 33, 33),)),
    "resnet152": (resnet152, ((3, 33, 33),)),
    "vgg16-bn": (lambda: vgg_bn(16), ((3, 64, 64),)),
    "vgg19-bn": (lambda: vgg_bn(19), ((3, 64, 64),)),
    "alexnet": (AlexNet, ((3, 96, 96),)),
    "densenet121": (DenseNet, ((3, 64, 64),)),
    "googlenet": (GoogLeNet, ((3, 64, 64),)),
    "inception-v3": (InceptionV3, ((3, 107, 107),)),
    "squeezenet": (squeezenet, ((3, 64, 64),)),
    "mobilenet": (mobilenet, ((3, 64, 64),)),
    "shufflenet": (shufflenet, ((3, 32, 32),)),
    "unet-transposed": (lambda: UNet("transposed"), ((1, 18, 23),)),
    "unet-nearest": (lambda: UNet("nearest"), ((1, 18, 23),)),
    "huggingface-resnet": (huggingface_resnet, ((3, 32, 32),)),
    "tied": (Tied, ((12,),)),
    "siamese": (Siamese, ((6,), (6,))),
}


def build(name: str) -> tuple[nn.Module, list[Tensor]]:
    """A model of the zoo with non-trivial batch-norm statistics, float64, evaluation mode, and an
    input of batch 2.
    """
    make, shapes = ZOO[name]
    model = make().double().eval()
    for module in model.modules():
        if isinstance(module, nn.modules.batchnorm._BatchNorm):
            nn.init.normal_(module.running_mean, std=0.1)
            nn.init.uniform_(module.running_var, 0.5, 2.0)
            nn.init.uniform_(module.weight, 0.5, 1.5)
            nn.init.normal_(module.bias, std=0.1)
    return model, [torch.randn(2, *shape, dtype=torch.float64) for shape in shapes]
