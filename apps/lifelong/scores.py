"""What an accuracy matrix says of remembering and of learning: formulas, each with its source.

`matrix[i][j]` is the success on the held-out tasks of stage j after stage i, both counted from 0 in
the order of learning, of T stages. All results are differences or means of success rates.
"""

from collections.abc import Callable, Sequence
from statistics import fmean
from typing import TypeAlias

Matrix: TypeAlias = Sequence[Sequence[float]]


def compute_acc(matrix: Matrix) -> float:
    """Returns ACC, the mean of the last row: `(1/T) Σ_j R[T-1][j]`.

    Source: Lopez-Paz & Ranzato 2017, "Gradient Episodic Memory", section 2.

    >>> round(compute_acc([[0.8, 0.1], [0.6, 0.7]]), 6)
    0.65
    """
    return fmean(matrix[-1])


def compute_aia(matrix: Matrix) -> float:
    """Returns the average incremental accuracy: the mean over i of the mean of `R[i][0..i]`.

    Source: Rebuffi et al. 2017, "iCaRL", section 4; named so by Douillard et al. 2020, "PODNet".

    >>> round(compute_aia([[0.8, 0.1], [0.6, 0.7]]), 6)
    0.725
    """
    return fmean(fmean(row[: i + 1]) for i, row in enumerate(matrix))


def compute_bwt(matrix: Matrix) -> float:
    """Returns backward transfer: `(1/(T-1)) Σ_{j<T-1} (R[T-1][j] - R[j][j])`.

    Source: Lopez-Paz & Ranzato 2017, "Gradient Episodic Memory", section 2.

    >>> round(compute_bwt([[0.8, 0.1], [0.6, 0.7]]), 6)
    -0.2
    """
    last = len(matrix) - 1
    return fmean(matrix[last][j] - matrix[j][j] for j in range(last))


def compute_fwt(matrix: Matrix, base: Sequence[float]) -> float:
    """Returns forward transfer: `(1/(T-1)) Σ_{j>0} (R[j-1][j] - b[j])`, b the base's successes.

    Source: Lopez-Paz & Ranzato 2017, section 2, whose b is of random weights.

    >>> round(compute_fwt([[0.8, 0.3], [0.6, 0.7]], [0.2, 0.2]), 6)
    0.1
    """
    return fmean(matrix[j - 1][j] - base[j] for j in range(1, len(matrix)))


def compute_forgetting(matrix: Matrix) -> float:
    """Returns forgetting: `(1/(T-1)) Σ_{j<T-1} (max_{i<T-1} R[i][j] - R[T-1][j])`.

    Source: Chaudhry et al. 2018, "Riemannian Walk", section 4.

    >>> round(compute_forgetting([[0.8, 0.1, 0.1], [0.9, 0.7, 0.1], [0.5, 0.6, 0.7]]), 6)
    0.25
    """
    last = len(matrix) - 1
    best = (max(matrix[i][j] for i in range(last)) for j in range(last))
    return fmean(top - matrix[last][j] for j, top in enumerate(best))


def compute_intransigence(matrix: Matrix, expert: Sequence[float]) -> float:
    """Returns intransigence, what was not learnt when it was its turn: `mean_j (e[j] - R[j][j])`.

    e are the successes of experts, each trained on its stage alone. Source: Chaudhry et al. 2018,
    section 4, whose reference is trained on all stages so far.

    >>> round(compute_intransigence([[0.8, 0.1], [0.6, 0.7]], [0.8, 0.9]), 6)
    0.1
    """
    return fmean(expert[j] - matrix[j][j] for j in range(len(matrix)))


def compute_min_acc(matrix: Matrix) -> float:
    """Returns min-ACC: the mean over j < T-1 of the lowest success on stage j after learning it.

    Source: De Lange et al. 2023, "Continual evaluation for lifelong learning", section 3, who
    evaluate after every step; here it is after every stage.

    >>> round(compute_min_acc([[0.8, 0.1, 0.1], [0.5, 0.7, 0.1], [0.6, 0.4, 0.7]]), 6)
    0.45
    """
    last = len(matrix) - 1
    return fmean(min(matrix[i][j] for i in range(j + 1, last + 1)) for j in range(last))


def compute_kl_old(divergences: Matrix) -> float:
    """Returns how far a stage moves the policy on earlier stages' tasks, in nats per token.

    `divergences[i-1][j]`, j <= i, is KL(policy before stage i || after it) on stage j's tasks:
    `(1/(T-1)) Σ_{i>0} (1/i) Σ_{j<i} D[i-1][j]`.

    >>> round(compute_kl_old([[0.1, 0.5], [0.2, 0.4, 0.7]]), 6)
    0.2
    """
    return fmean(fmean(row[:-1]) for row in divergences)


def compute_kl_new(divergences: Matrix) -> float:
    """Returns how far a stage moves the policy on its own tasks: `(1/(T-1)) Σ_{i>0} D[i-1][i]`.

    `divergences` are as in `compute_kl_old`. Source: Shenfeld et al. 2025, "RL's Razor", where it
    tells how much is forgotten; theirs is between one task's policy and the base.

    >>> round(compute_kl_new([[0.1, 0.5], [0.2, 0.4, 0.7]]), 6)
    0.6
    """
    return fmean(row[-1] for row in divergences)


def compute_scores(
    matrix: Matrix, base: Sequence[float], expert: Sequence[float]
) -> dict[str, float | None]:
    """Returns all figures by name; None where a method has one row alone, for all stages at once.

    `base` and `expert` are the successes of the base and of each stage's expert on each stage.
    """
    of_rows: dict[str, Callable[[], float]] = {
        "aia": lambda: compute_aia(matrix),
        "bwt": lambda: compute_bwt(matrix),
        "fwt": lambda: compute_fwt(matrix, base),
        "forgetting": lambda: compute_forgetting(matrix),
        "intransigence": lambda: compute_intransigence(matrix, expert),
        "min_acc": lambda: compute_min_acc(matrix),
    }
    is_whole = len(matrix) == len(matrix[0]) > 1
    own = {name: compute() if is_whole else None for name, compute in of_rows.items()}
    return {"acc": compute_acc(matrix), **own}
