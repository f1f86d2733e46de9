"""DB-bench's task: tables, a question, and what a right answer is."""

from dataclasses import dataclass

from agentpeft.envs.core.errors import DataError
from agentpeft.envs.db_bench.backends.protocol import Row, Table
from agentpeft.envs.tasks.task import Task


@dataclass(frozen=True, kw_only=True)
class DBBenchTask(Task):
    """A question about tables, or an order to change them.

    A *read* task (`is_write` False) is answered with rows: those of `gold_sql`, and `label` where
    the data give one. A *write* task is done when the tables' contents equal what `gold_sql` makes
    of them. `gold_sql` is one MySQL statement; None where the data have only a label. `md5` is
    LifelongAgentBench's hash of the changed table (a cross-check, never the grade).
    """

    tables: tuple[Table, ...]
    is_write: bool
    gold_sql: str | None = None
    label: tuple[Row, ...] | None = None
    md5: str | None = None

    def __post_init__(self) -> None:
        """Raises: DataError where nothing says what is right."""
        if self.gold_sql is None and (self.is_write or self.label is None):
            raise DataError(f"task {self.task_id} needs gold SQL, or a label if it is a question")
