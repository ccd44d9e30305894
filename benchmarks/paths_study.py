"""The paths paper in small: mask overlaps (table 1) and retraining after random rescaling (table
2), paper beside.

PYTHONPATH=src OMP_NUM_THREADS=1 python benchmarks/paths_study.py >
benchmarks/results/paths_study.md
"""

from secateurs.study.reproduce import path_pruning as paths

SETTINGS = paths.PathSettings(percents=(10, 20, 40, 60, 80))


def main() -> None:
    trained = paths.train(SETTINGS)
    print("# Magnitude against Φ-pruning: a small residual network on the digits\n")
    print("Command: `PYTHONPATH=src OMP_NUM_THREADS=1 python benchmarks/paths_study.py`.")
    print(
        "Machine: 2 cores AMD EPYC, no GPU, one thread. The paper's figures are of ResNet-18 on"
        " ImageNet.\n"
    )
    print(f"`{SETTINGS}`\n\nDense accuracy: {trained.accuracy:.1f} %.\n")
    print("| pair | pruned % | overlap % | paper % |\n|---|---|---|---|")
    for cell in paths.mask_overlaps(trained, SETTINGS):
        print(f"| {cell.pair} | {cell.percent} | {cell.overlap:.0f} | {cell.paper:.0f} |")
    print(
        "\n| method | pruned % | rescaled | same mask | accuracy % | paper %"
        " |\n|---|---|---|---|---|---|"
    )
    for row in paths.retrainings(trained, SETTINGS):
        flags = " | ".join("yes" if flag else "no" for flag in (row.rescaled, row.same_mask))
        print(
            f"| {row.method} | {row.percent} | {flags} | {row.accuracy:.1f} | {row.paper:.1f} |",
            flush=True,
        )


if __name__ == "__main__":
    main()
