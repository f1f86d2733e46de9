"""How much of a wrong answer, or of a wrong change, is right: shares from 0 to 1 for training.

The share rewards what the agent did: rows that it left as they were earn nothing, and rows too many
cost as much as rows that are missing. It is no verdict; `Grader` gives that.
"""

from collections import Counter
from collections.abc import Sequence
from typing import TypeAlias

from agentpeft.envs.db_bench.backends.protocol import Row, TableContents, UnreadableTable
from agentpeft.envs.db_bench.grading.matching import count_pairs, is_same_row, is_same_stored_row

_Contents: TypeAlias = TableContents | UnreadableTable | None
_MAX_ROWS = 500
"""Of more rows on either side nothing is looked at: pairing takes the square of their number."""


def share_of_rows(answer: Sequence[Row], gold: Sequence[Row]) -> float:
    """Returns how many answered rows are gold rows, over the longer side: 2 of 3 rows, 2/3."""
    longer = max(len(answer), len(gold))
    if not 0 < longer <= _MAX_ROWS:
        return 0.0
    return count_pairs(answer, gold, is_same_row) / longer


def share_of_changes(
    before: Sequence[_Contents], after: Sequence[_Contents], gold: Sequence[_Contents]
) -> float:
    """Returns how many of the rows to remove and to add were, over the larger set of changes.

    The three are the same tables at the episode's start, at its end, and as they should be. A table
    that is gone or cannot be read has no rows. Of tables with other columns than before, as after
    an ALTER TABLE, rows agree where their values do.
    """
    num_right = num_wanted = num_done = 0
    for tables in zip(before, after, gold, strict=True):
        old, left, wanted = (
            table.rows if isinstance(table, TableContents) else () for table in tables
        )
        removals = _minus(old, left), _minus(old, wanted)
        additions = _minus(left, old), _minus(wanted, old)
        for done, right in (removals, additions):
            num_done, num_wanted = num_done + len(done), num_wanted + len(right)
            if max(len(done), len(right)) <= _MAX_ROWS:
                num_right += count_pairs(done, right, is_same_stored_row)
    return num_right / max(num_wanted, num_done, 1)


def _minus(rows: Sequence[Row], others: Sequence[Row]) -> list[Row]:
    """Returns the rows without those of `others`, each as often as it is left over."""
    return list((Counter(rows) - Counter(others)).elements())
