"""The networks: published parameter counts, shapes, reproducible initialisation, the text of each
error.
"""

import math
import threading

import pytest
import torch
from torch import nn

from secateurs.errors import ArgumentError, UnknownNameError
from secateurs_lab.models import MODELS, build, initialise_

# Where the number is published or can be counted by hand.
COUNTS = {
    ("lenet-300-100", ()): 784 * 300 + 300 + 300 * 100 + 100 + 100 * 10 + 10,
    (
        "lenet-5",
        (("batch_norm", False),),
    ): 61_706,  # LeCun et al. 1998 with full connections
    ("lenet-5", ()): 61_706 + 2 * (6 + 16),
    ("vgg-16", (("hidden", 0),)): 14_728_266,  # the CIFAR version in common use
    ("vgg-16", ()): 15_253_578,  # "VGG-D 15.2M" in Lee et al. 2019, table 2
    ("vgg-19", (("hidden", 0),)): 20_040_522,
    ("vgg-19", ()): 20_040_522 + 512 * 512 + 512,
    ("resnet-18", ()): 11_173_962,
    ("resnet-34", ()): 21_282_122,
    ("resnet-20", ()): 269_722
    + 16 * 32
    + 32 * 64
    + 2 * (32 + 64),  # He's 0.27M plus two projection shortcuts
    ("wrn-16-8", ()): 10_961_370,  # "11.0M" in Zagoruyko & Komodakis 2016, table 4
    ("wrn-20-32", ()): 1_084_586,
}


def count(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


@pytest.mark.parametrize(("name", "options"), COUNTS, ids=str)
def test_parameter_counts_are_the_published_ones(name, options):
    assert count(build(name, **dict(options))) == COUNTS[name, options]


def test_wrn_20_32_is_counted_by_hand():
    w = 32
    convolutions = 9 * (3 * w + 6 * w * w + 2 * w * w + 5 * 4 * w * w + 8 * w * w + 5 * 16 * w * w)
    shortcuts = 2 * w * w + 8 * w * w
    norms = 2 * (7 * w + 7 * 2 * w + 7 * 4 * w)
    assert count(build("wrn-20-32")) == convolutions + shortcuts + norms + 4 * w * 10 + 10


@pytest.mark.parametrize("name", MODELS.names())
def test_every_model_maps_images_to_finite_logits_and_backpropagates(name):
    made = MODELS[name]
    model = build(name, classes=7, generator=torch.Generator().manual_seed(1))
    x = torch.randn(2, made.in_channels, made.size, made.size)
    y = model(x)
    assert y.shape == (2, 7) and y.isfinite().all()
    y.sum().backward()
    assert all(parameter.grad is not None for parameter in model.parameters())
    assert made.summary and len(made.summary) < 100


@pytest.mark.parametrize("name", MODELS.names())
def test_the_generator_decides_every_weight_and_nothing_else_is_drawn(name):
    torch.manual_seed(5)
    state = torch.get_rng_state()
    one, two = (build(name, generator=torch.Generator().manual_seed(3)) for _ in range(2))
    other = build(name, generator=torch.Generator().manual_seed(4))
    assert torch.equal(torch.get_rng_state(), state)
    assert all(
        torch.equal(a, b)
        for a, b in zip(one.state_dict().values(), two.state_dict().values(), strict=True)
    )
    assert any(
        not torch.equal(a, b) for a, b in zip(one.parameters(), other.parameters(), strict=True)
    )


@pytest.mark.parametrize("name", [name for name in MODELS if MODELS[name].smallest > 1])
def test_the_smallest_image_passes_and_a_smaller_one_is_refused(name):
    made = MODELS[name]
    x = torch.zeros(1, made.in_channels, made.smallest, made.smallest)
    assert build(name, size=made.smallest).eval()(x).shape == (1, 10)
    with pytest.raises(
        ArgumentError, match=rf"{name} cannot read .* at least {made.smallest} pixels"
    ):
        build(name, size=made.smallest - 1)


def test_larger_images_pass_through_the_convolutional_networks():
    x = torch.zeros(1, 3, 64, 64)
    assert all(
        build(name, size=64).eval()(x).shape == (1, 10)
        for name in ("vgg-16", "resnet-20", "wrn-16-8")
    )


def test_kaiming_normal_has_variance_two_over_fan_in_and_zero_biases():
    weight = build("lenet-300-100", generator=torch.Generator().manual_seed(0)).fc1.weight
    # The sample variance of n normal numbers has relative standard deviation sqrt(2/n): six of
    # them, p < 2e-9.
    assert abs(weight.var().item() / (2 / 784) - 1) < 6 * math.sqrt(2 / weight.numel())
    assert not build("lenet-300-100").fc1.bias.any()


def test_torch_rule_is_uniform_within_one_over_root_fan_in():
    layer = build("lenet-300-100", init="torch", generator=torch.Generator().manual_seed(0)).fc1
    assert 0.99 / 28 < layer.weight.abs().max() <= 1 / 28
    assert layer.bias.any()


def test_a_frozen_value_of_the_initialisation():
    model = build("lenet-5", generator=torch.Generator().manual_seed(0))
    assert model.fc3.bias.eq(0).all()
    assert model.conv1.weight.sum().item() == pytest.approx(1.974493384361267, rel=1e-6)


def test_initialisation_does_not_depend_on_the_number_of_threads():
    threads = torch.get_num_threads()
    one = build("vgg-16", generator=torch.Generator().manual_seed(0))
    try:
        torch.set_num_threads(2 if threads == 1 else 1)
        two = build("vgg-16", generator=torch.Generator().manual_seed(0))
    finally:
        torch.set_num_threads(threads)
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), two.parameters(), strict=True))


def test_build_in_another_thread_leaves_the_meta_device_to_itself():
    made = []
    worker = threading.Thread(target=lambda: made.append(build("lenet-5")))
    worker.start()
    worker.join()
    assert torch.zeros(1).device.type == "cpu" and made[0].fc1.weight.device.type == "cpu"


def test_batch_norm_starts_as_the_identity():
    bn = build("resnet-20").bn
    assert (
        bn.weight.eq(1).all()
        and bn.bias.eq(0).all()
        and bn.running_mean.eq(0).all()
        and bn.running_var.eq(1).all()
    )
    assert bn.num_batches_tracked == 0


def test_errors_name_the_value_and_the_way_out():
    with pytest.raises(
        UnknownNameError, match="there is no model 'lenet5'. Did you mean 'lenet-5'"
    ):
        build("lenet5")
    with pytest.raises(
        ArgumentError,
        match="for vgg-16, there is no option 'hiden'. Did you mean 'hidden'",
    ):
        build("vgg-16", hiden=1)
    with pytest.raises(
        ArgumentError,
        match="for wrn-16-8, there is no option 'depth'.* Known: classes, in_channels",
    ):
        build("wrn-16-8", depth=1)
    with pytest.raises(UnknownNameError, match="there is no initialisation 'kaiming'"):
        build("lenet-5", init="kaiming")
    with pytest.raises(ArgumentError, match="at least one channel and one class, not 1 and 0"):
        build("lenet-5", classes=0)
    with pytest.raises(
        ArgumentError, match="cannot initialise '0': there is no rule for Embedding"
    ):
        initialise_(nn.Sequential(nn.Embedding(2, 2)))
