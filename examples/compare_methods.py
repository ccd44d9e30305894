"""Compare pruning methods fairly: a study that can be killed and resumed, and one page at the end.

Run it with `python examples/compare_methods.py`. It takes about a minute on one core. Run it
again: nothing is computed twice.
"""

import secateurs as sc
from secateurs.report import write_page


def main(length: str = "100ep", compressions: tuple[float, ...] = (5, 20, 50)) -> list:
    """Train every method at every compression; return the rows of the table."""
    study = sc.study.Study(
        name="digits",
        data="digits",
        model="lenet-300-100",
        methods=[
            sc.study.Prune(score="magnitude"),
            sc.study.Prune(score="snip", after="init"),
            sc.study.Prune(score="random"),
            sc.study.Dwf(target=True, train={"lr": 0.15}),  # a short run: a small rate
        ],
        compressions=list(compressions),
        seeds=[0],
        train=sc.study.Training(length=length, batch=64),
    )
    with sc.study.run(study) as store:  # rows and weights go to the folder digits.study
        rows = store.rows()
    for row in rows:
        print(f"{row.label:28} {row.compression:8.1f}x {row.accuracy:8.1%}")
    page = write_page("digits.study", "digits.html")
    print(f"the whole comparison: {page}")
    return rows


if __name__ == "__main__":
    main()
