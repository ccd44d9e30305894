"""Compare pruning methods fairly: a study that can be killed and resumed, and one page at the end.

Run it with `python examples/compare_methods.py`. It takes about a minute on one core. Run it
again: nothing is computed twice.
"""

import secateurs_lab as lab
from secateurs_lab.report import write_page


def main(length: str = "100ep", compressions: tuple[float, ...] = (5, 20, 50)) -> list:
    """Train every method at every compression; return the rows of the table."""
    study = lab.study.Study(
        name="digits",
        data="digits",
        model="lenet-300-100",
        methods=[
            lab.study.Prune(score="magnitude"),
            lab.study.Prune(score="snip", after="init"),
            lab.study.Prune(score="random"),
            lab.study.Dwf(target=True, train={"lr": 0.15}),  # a short run: a small rate
        ],
        compressions=list(compressions),
        seeds=[0],
        train=lab.study.Training(length=length, batch=64),
    )
    with lab.study.run(study) as store:  # rows and weights go to the folder digits.study
        rows = store.rows()
    for row in rows:
        print(f"{row.label:28} {row.compression:8.1f}x {row.accuracy:8.1%}")
    page = write_page("digits.study", "digits.html")
    print(f"the whole comparison: {page}")
    return rows


if __name__ == "__main__":
    main()
