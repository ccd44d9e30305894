"""What certificates cost, in plain float64 forward passes of the same network on the same batch,
and seconds per ball.

    python benchmarks/certificates.py

Capturing the two models is not counted: it is done once for any number of balls.
"""

import copy
import time

import torch

import secateurs as sc
import secateurs_lab as lab
from secateurs.base.random import generator
from secateurs.proof.domain import ball_domain
from secateurs.proof.methods import run_methods
from secateurs.proof.problem import OWN_UNIT, read_problem

NETWORKS = (
    ("lenet-300-100", {}, 64),
    ("lenet-5", {}, 64),
    ("resnet-18", {"size": 32}, 4),
)


def prepare(name, options, balls):
    """A network with 20 % of its weights cut, random inputs, and its problem without and with
    outward rounding.
    """
    dense = lab.models.build(name, generator=generator(0, name), **options).eval()
    sparse = copy.deepcopy(dense)
    sc.apply_(sparse, sc.select(sc.score(sparse, "magnitude"), sparsity=0.2))
    shape = (3, 32, 32) if options else (1, 28, 28)
    x = torch.rand(balls, *shape, generator=generator(0, "inputs"))
    problems = [read_problem(dense, sparse, x[:1], unit=unit) for unit in (0.0, OWN_UNIT)]
    return dense.double(), ball_domain(x, 0.004), problems


def best(run, repeats):
    """The shortest of some runs after one to warm up, in seconds."""
    run()
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        run()
        times.append(time.perf_counter() - start)
    return min(times)


def rows():
    for name, options, balls in NETWORKS:
        model, domain, (exact, outward) = prepare(name, options, balls)
        with torch.no_grad():
            forward = best(lambda m=model, d=domain: m(d.center), 5)
        for method in ("two-stream", "interval"):
            for label, problem in (("", exact), (", outward rounding", outward)):
                seconds = best(lambda p=problem, d=domain, m=method: run_methods(p, d, [m]), 5)
                yield [name, f"{method}{label}", balls, forward, seconds]
        if name.startswith("lenet"):
            for some in (1, balls if name == "lenet-300-100" else 2):
                part = domain[:some]
                seconds = best(lambda p=outward, d=part: run_methods(p, d, ["linear"]), 2)
                yield [
                    name,
                    "linear, outward rounding",
                    some,
                    forward * some / balls,
                    seconds,
                ]


def main():
    torch.set_num_threads(1)
    print(
        "| network | method | balls | plain forward (s) | certificate (s) | forward passes |"
        " seconds per ball |"
    )
    print("| --- | --- | --- | --- | --- | --- | --- |")
    for name, method, balls, forward, seconds in rows():
        cells = (
            name,
            method,
            balls,
            f"{forward:.4f}",
            f"{seconds:.4f}",
            f"{seconds / forward:.1f}",
        )
        print("| " + " | ".join(map(str, cells)) + f" | {seconds / balls:.2g} |", flush=True)


if __name__ == "__main__":
    main()
