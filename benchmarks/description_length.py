"""A bound on the test error of LeNet-300-100 on Fashion-MNIST, from its length as a message.

    python benchmarks/description_length.py [--strengths 2e-3 4e-3] [--data fashion-mnist]

Trains by deep weight factorization (our own recipe of `weight-factorization`: a moving λ, rate 0.5,
25 epochs of tuning after the cut), then writes each network as a message, with its values tuned for
300 steps. The test set is looked at for the last column only.
"""

import argparse
from dataclasses import replace

import torch

from secateurs.optim.factorized.collapse import gap
from secateurs.papers.factorization import plans
from secateurs.papers.factorization.training import train, tuned_accuracy
from secateurs.paths import description_length
from secateurs.stateless import call_with


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--strengths", type=float, nargs="*", default=[2e-3, 3e-3, 4e-3, 6e-3])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--tune", type=int, default=300)
    args = parser.parse_args()
    torch.set_num_threads(1)
    heads = ("λ", "weights", "compression", "bits", "values", "wrong in training")
    print(f"| {' | '.join(heads)} | **bound** | wrong in test |")
    print("| --- " * 8 + "|")
    for strength in args.strengths:
        settings = replace(plans.TEXT, **plans.OURS, strength=strength, seed=args.seed)
        images = plans.load_images(settings)
        trained = train(settings, images)
        model = trained.cut_(gap(trained.weights))
        tuned_accuracy(model, settings, images)
        found = description_length(
            model,
            images.train_x,
            images.train_y,
            tune=args.tune,
            generator=torch.Generator().manual_seed(args.seed),
            batch=10_000,
        )
        with torch.no_grad():
            answers = call_with(model, found.weights, (images.test_x,)).argmax(1)
        wrong = float((answers != images.test_y).float().mean())
        print(
            f"| {strength:g} | {found.kept} | {found.compression:.0f}× | {found.bits:.0f} |"
            f" {found.levels} | {found.training_error:.2%} | **{found.bound:.2%}** | {wrong:.2%} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
