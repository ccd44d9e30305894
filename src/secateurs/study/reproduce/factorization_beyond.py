"""Twice the paper's compressions: factorized training, then an exchange of the weights that it left.

Every run is a frozen `Beyond`; `run` trains and returns one `Row`. Nothing is chosen by the test images.
"""

from dataclasses import asdict, dataclass
from time import perf_counter

from secateurs.random import generator
from secateurs.study.reproduce.exchange import Exchange, exchange
from secateurs.study.reproduce.factorization import OURS, Settings, survivors
from secateurs.study.reproduce.tiny import Tiny
from secateurs.train.denormals import flushed_denormals

PAPER = (506, 1422)
"""Compressions of LeNet-300-100 at which the paper's depth 3 is within 5 and within 10 points of the dense net."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Beyond:
    """Train at `strength` as in the table of factorization, then exchange down to this compression."""

    compression_asked: float
    strength: float = 3e-3
    seed: int = 0
    rounds: int = 40
    share: float = 1.0
    q: float = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """Compression and accuracies in percent: of the start, cut at its gap, and of the result."""

    beyond: Beyond
    start_compression: float
    start_accuracy: float
    compression: float
    train_accuracy: float
    accuracy: float
    units: str
    seconds: float

    def flat(self) -> dict[str, str]:
        """One line of a CSV file, settings first."""
        results = {name: value for name, value in asdict(self).items() if name != "beyond"}
        return {name: _text(value) for name, value in {**asdict(self.beyond), **results}.items()}


def grid() -> list[Beyond]:
    """Both of the paper's limits, doubled and as they are, three seeds."""
    return [Beyond(compression_asked=float(factor * c), seed=s) for factor in (2, 1) for s in (0, 1, 2) for c in PAPER]


def key(beyond: Beyond) -> dict[str, str]:
    """The settings as text: what identifies a row."""
    return {name: _text(value) for name, value in asdict(beyond).items()}


def run(beyond: Beyond) -> Row:
    """Train, exchange, measure; one thread."""
    start = perf_counter()
    parameters, images = survivors(Settings(seed=beyond.seed, strength=beyond.strength, **OURS))
    net, total = Tiny.of(parameters), sum(p.numel() for p in parameters)
    began = total / net.kept, net.accuracy(images.test_x, images.test_y)
    how = Exchange(rounds=beyond.rounds, share=beyond.share, q=beyond.q)
    with flushed_denormals():
        net = exchange(net, images.x, images.y, keep=int(total / beyond.compression_asked), how=how,
                       generator=generator(beyond.seed, "exchange"))  # fmt: skip
    return Row(
        beyond=beyond,
        start_compression=began[0],
        start_accuracy=began[1],
        compression=total / net.kept,
        train_accuracy=net.accuracy(images.x, images.y),
        accuracy=net.accuracy(images.test_x, images.test_y),
        units="-".join(str(n) for n in (len(net.pixels), *(len(b) for b in net.biases))),
        seconds=perf_counter() - start,
    )


def _text(value: object) -> str:
    return f"{value:.6g}" if isinstance(value, float) else str(value)
