"""Models and data that every score is tried on, and a bit-exact picture of everything a score must
not change.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

import secateurs as sc


class Awkward(nn.Module):
    """Convolution, batch norm, dropout, tied weights, a frozen layer, an embedding that rescales
    itself as it runs, a counter that is not a tensor, an unused parameter, and gradients on some
    parameters only.
    """

    def __init__(self, dtype: torch.dtype = torch.float64) -> None:
        super().__init__()
        self.conv = nn.Conv2d(2, 4, 3, padding=1, groups=2)
        self.norm = nn.BatchNorm2d(4)
        self.drop = nn.Dropout(0.5)
        self.frozen = nn.Linear(16, 8)
        self.first = nn.Linear(8, 8, bias=False)
        self.again = nn.Linear(8, 8)
        self.again.weight = self.first.weight
        self.table = nn.Embedding(3, 8, max_norm=0.1)
        self.spectral = nn.utils.parametrizations.spectral_norm(nn.Linear(8, 8))
        self.head = nn.Linear(8, 3)
        self.calls = 0
        self.to(dtype)
        self.frozen.requires_grad_(False)
        self.norm.eval()
        self.head.bias.grad = torch.ones_like(self.head.bias)

    def forward(self, x: Tensor) -> Tensor:
        self.calls += 1
        hidden = F.avg_pool2d(F.relu(self.norm(self.conv(x))), 2).flatten(1)
        hidden = F.relu(self.frozen(self.drop(hidden)))
        hidden = F.relu(self.again(F.relu(self.first(hidden))))
        return self.head(self.spectral(hidden) + self.table(torch.tensor([0])))


WHERE = [nn.Conv2d, "frozen.weight", "first.weight", "head.weight"]
"""The weights of `Awkward` that every score knows (Wanda has no inputs for a parametrised weight).
"""


def awkward(dtype: torch.dtype = torch.float64) -> Awkward:
    torch.manual_seed(3)
    return Awkward(dtype)


def data(dtype: torch.dtype = torch.float64, n: int = 6) -> tuple[Tensor, Tensor]:
    g = torch.Generator().manual_seed(5)
    return torch.randn(n, 2, 4, 4, generator=g, dtype=torch.float64).to(dtype), torch.randint(
        3, (n,), generator=g
    )


def arguments(dtype: torch.dtype = torch.float64) -> dict:
    """What any registered score can ask for."""
    batch = data(dtype)
    return {"batch": batch, "loss": F.cross_entropy, "example": batch[0][:1]}


def scored(name, model, **changes):
    return sc.score(
        model,
        name,
        **{"where": WHERE, **arguments(), "generator": seeded(), **changes},
    )


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def picture(model: nn.Module) -> dict:
    """Every bit of the model and of the global generators."""
    seen = {f"parameter {n}": bits(p) for n, p in model.named_parameters(remove_duplicate=False)}
    seen |= {f"flag {n}": p.requires_grad for n, p in model.named_parameters()}
    seen |= {
        f"gradient {n}": None if p.grad is None else bits(p.grad)
        for n, p in model.named_parameters()
    }
    seen |= {f"identity {n}": id(p) for n, p in model.named_parameters(remove_duplicate=False)}
    seen |= {f"version {n}": p._version for n, p in model.named_parameters()}
    seen |= {f"buffer {n}": bits(b) for n, b in model.named_buffers()}
    for name, module in model.named_modules():
        seen[f"mode {name}"] = module.training
        seen[f"hooks {name}"] = [
            len(v) for k, v in sorted(vars(module).items()) if k.endswith("hooks")
        ]
        seen[f"names {name}"] = sorted(vars(module))
    seen["random"] = bits(torch.get_rng_state())
    seen["grad mode"] = torch.is_grad_enabled()
    return seen


def bits(tensor: Tensor) -> tuple:
    tensor = tensor.detach()
    flat = tensor.contiguous().view(-1).view(torch.uint8)
    return tuple(tensor.shape), tensor.stride(), tensor.dtype, flat.numpy().tobytes()


def changed(before: dict, after: dict) -> list[str]:
    """What is not as it was, by name."""
    return [key for key in {**before, **after} if before.get(key) != after.get(key)]
