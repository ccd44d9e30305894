"""Studies and published experiments on a GPU: only where there is one."""

from dataclasses import replace

import pytest
import torch

from experiments.__main__ import reproduce
from experiments.catalogue import EXPERIMENTS
from experiments.cifar_card import SMALL, Fit, Images, pretended_images, wishes
from secateurs_lab.study import (
    ACDCMethod,
    DGatingMethod,
    Dwf,
    Gradual,
    HAMMethod,
    Imp,
    PowerPropagationMethod,
    Prune,
    RigLMethod,
    SETMethod,
    Study,
    Training,
    run,
)

if not torch.cuda.is_available():
    pytest.skip("needs a GPU", allow_module_level=True)
pytestmark = pytest.mark.slow


METHODS = {
    "prune": Prune(),
    "drawn": Prune(score="synflow", rounds=5, how="sample", after="init"),
    "imp": Imp(per_round=0.5, rewind="1ep"),
    "gradual": Gradual(every="2it"),
    "dwf": Dwf(strength=0.05),
    "rigl": RigLMethod(every="2it"),
    "set": SETMethod(every="2it"),
    "acdc": ACDCMethod(),
    "ham": HAMMethod(),
    "d-gating": DGatingMethod(strength=0.01),
    "power-propagation": PowerPropagationMethod(),
}


@pytest.mark.parametrize("precision", ["float32", "bf16"])
def test_a_study_takes_the_gpu_by_itself(precision, tmp_path):
    study = Study(
        data="digits",
        methods=list(METHODS.values()),
        compressions=[4],
        train=Training(length="3ep", batch=64, precision=precision),
    )
    with run(study, tmp_path / "one.study") as store:
        rows = store.rows()
    assert {row.state for row in rows} == {"done"}, [row.reason for row in rows]
    assert all(row.provenance["device"].startswith("cuda") for row in rows)


@pytest.mark.parametrize("name", EXPERIMENTS.names())
def test_the_papers_experiments_run_there(name, tmp_path):
    scale = "smoke" if "smoke" in EXPERIMENTS[name].settings else "cpu"
    out = tmp_path / "rows.csv"
    reproduce(name, scale=scale, out=out, device="cuda")
    assert out.read_text().count("\n") > 1


PRETENDED = torch.cuda.get_device_name() == "pretend"
FIRST = {wish.method.title: wish for wish in wishes()}


@pytest.mark.parametrize("title", FIRST)
def test_a_captured_training_is_the_plain_one(title):
    """The same numbers as without a graph and a stream, up to the order of sums; and after the
    graph has warmed up, statistics of batch norm from the first batch on.
    """
    images = Images.of(pretended_images(), "cuda")
    # Each training reads them on a stream of its own.
    torch.cuda.synchronize()
    found = []
    for graphs in (False, not PRETENDED):
        fit = Fit(FIRST[title], images, replace(SMALL, device="cuda", graphs=graphs))
        assert bool(fit.gradients) == graphs, fit.notes
        # At its own rates, four steps of so small a network carry the roundings of bfloat16 to a
        # tenth of a weight.
        fit.rates = [rate / 10 for rate in fit.rates]
        for _ in range(4):
            fit.turn()
        found.append([tensor.detach().clone() for tensor in fit.model.state_dict().values()])
        while fit.done < fit.total:
            fit.turn()
        assert fit.end().state == "done"
    # Elsewhere the order of sums may decide which weight is cut or grown.
    for one, other in zip(*found, strict=True) if title.startswith(("dense", "dwf")) else ():
        torch.testing.assert_close(one, other, rtol=0.05, atol=0.02)


def test_the_published_recipes_take_their_first_steps_there():
    from experiments.experiment import on_device
    from experiments.path_pruning import LARGE, train

    with on_device("cuda"):
        done = train(replace(LARGE, examples=512, tested=256, epochs=2, drops=(1,)))
    assert next(done.model.parameters()).is_cuda
