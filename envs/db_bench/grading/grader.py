"""DB-bench's grader: rows against rows for questions, table contents for changes.

It does not judge how an answer was found: a right answer that was guessed is right. Tables that
the task does not have are ignored.
"""

import hashlib
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass

from agentpeft.envs.core.errors import DataError
from agentpeft.envs.db_bench.backends.protocol import (
    Database,
    DatabaseSession,
    Row,
    StatementResult,
    Table,
    TableContents,
    UnreadableTable,
)
from agentpeft.envs.db_bench.grading.answers import parse_answer
from agentpeft.envs.db_bench.grading.gold import GoldRows, compute_choices
from agentpeft.envs.db_bench.grading.matching import (
    ChangedRows,
    is_same_sequence,
    is_sub_bag,
)
from agentpeft.envs.db_bench.grading.partial_credit import share_of_changes, share_of_rows
from agentpeft.envs.db_bench.tasks import DBBenchTask

_MAX_REMEMBERED = 256


@dataclass
class _Remembered:
    """Results computed for a task so far."""

    task: DBBenchTask
    label: tuple[Row, ...] | None = None
    gold_rows: GoldRows | None = None
    contents: tuple[TableContents | None, ...] | None = None


class Grader:
    """Grades episodes on one database; caches the results of gold solutions."""

    def __init__(self, database: Database) -> None:
        """`database` runs gold solutions on fresh tables."""
        self._database = database
        self._memory: OrderedDict[str, _Remembered] = OrderedDict()

    def is_right_answer(self, task: DBBenchTask, text: str) -> bool:
        """Returns whether a read task's final answer is right.

        Row order counts only where the gold query orders it, up to ties; a LIMIT that cuts ties or
        has no order accepts any rows the query could return. Raises: DataError, EnvFault.
        """
        if not text.strip():
            return False
        label = self.gold_label(task)
        is_single = len(label) == 1 and len(label[0]) == 1
        if label and text in (str(list(label)), label[0][0] if is_single else None):
            return True
        answer = parse_answer(text, len(label[0]) if label else 1)
        if is_same_sequence(answer, label):
            return True
        if len(answer) != len(label):
            return False
        remembered = self._remember(task)
        if remembered.gold_rows is None:
            remembered.gold_rows = compute_choices(task, label, self._database)
        return remembered.gold_rows.allows(answer)

    def is_right_state(self, task: DBBenchTask, session: DatabaseSession) -> bool:
        """Returns whether a session's tables are as the gold statement makes them.

        Raises: DataError, EnvFault.
        """
        return all(
            self._is_same_table(
                task, table, session.read_table(table.name, _count_rows(gold) + 1), gold
            )
            for table, gold in zip(task.tables, self._gold_contents(task), strict=True)
        )

    def _is_same_table(
        self,
        task: DBBenchTask,
        table: Table,
        contents: TableContents | UnreadableTable | None,
        gold: TableContents | None,
    ) -> bool:
        if contents is None or gold is None:
            return contents is gold
        if isinstance(contents, UnreadableTable):
            return False
        if [name.lower() for name in contents.columns] != [name.lower() for name in gold.columns]:
            return False
        if len(contents.rows) != len(gold.rows):
            return False

        def read_start() -> TableContents | None:
            [start] = self._read_start(task.tables, [table])
            return start if isinstance(start, TableContents) else None

        return is_sub_bag(contents.rows, gold.rows, ChangedRows(gold, read_start).is_same)

    def _read_start(
        self, tables: Sequence[Table], wanted: Sequence[Table]
    ) -> list[TableContents | UnreadableTable | None]:
        """Returns some of a task's tables as an episode begins with them. Raises: EnvFault."""
        with closing(self._database.open(tables)) as untouched:
            return [untouched.read_table(table.name) for table in wanted]

    def answer_share(self, task: DBBenchTask, text: str) -> float:
        """Returns which share of a wrong answer's rows is right. Raises: DataError, EnvFault."""
        label = self.gold_label(task)
        answer = parse_answer(text, len(label[0]) if label else 1) if text.strip() else []
        return share_of_rows(answer, label)

    def state_share(self, task: DBBenchTask, session: DatabaseSession) -> float:
        """Returns which share of the gold statement's changes a session has made, and no others.

        Raises: DataError, EnvFault.
        """
        gold = self._gold_contents(task)
        before = self._read_start(task.tables, task.tables)
        longest = max(_count_rows(table) for table in (*before, *gold))
        after = [session.read_table(table.name, 2 * longest + 1) for table in task.tables]
        return share_of_changes(before, after, gold)

    def gold_label(self, task: DBBenchTask) -> tuple[Row, ...]:
        """Returns a read task's answer: its label, else what its gold SQL gives.

        Raises: DataError, EnvFault.
        """
        if task.label is not None:
            return task.label
        remembered = self._remember(task)
        if remembered.label is None:
            remembered.label = self._query_gold(task)
        return remembered.label

    def gold_sql(self, task: DBBenchTask) -> str:
        """Returns a task's gold SQL. Raises: DataError if it has none."""
        if task.gold_sql is None:
            raise DataError(f"task {task.task_id} has neither a label nor gold SQL")
        return task.gold_sql

    def gold_md5(self, task: DBBenchTask) -> str:
        """Returns LifelongAgentBench's hash of the first table after the gold statement."""
        contents = self._run_gold(task)[0]
        return "" if contents is None else compute_lab_md5(contents.rows)

    def _remember(self, task: DBBenchTask) -> _Remembered:
        remembered = self._memory.get(task.task_id)
        if remembered is None or remembered.task is not task:
            remembered = self._memory[task.task_id] = _Remembered(task)
        self._memory.move_to_end(task.task_id)
        if len(self._memory) > _MAX_REMEMBERED:
            self._memory.popitem(last=False)
        return remembered

    def _gold_contents(self, task: DBBenchTask) -> tuple[TableContents | None, ...]:
        """Returns what the gold statement leaves of the task's tables."""
        remembered = self._remember(task)
        if remembered.contents is None:
            remembered.contents = self._run_gold(task)
        return remembered.contents

    def _query_gold(self, task: DBBenchTask) -> tuple[Row, ...]:
        with self._gold_run(task) as (_, result):
            if result.is_cut:
                num_rows = len(result.rows)
                raise DataError(f"task {task.task_id}: gold SQL gives more than {num_rows} rows")
            return result.rows

    def _run_gold(self, task: DBBenchTask) -> tuple[TableContents | None, ...]:
        with self._gold_run(task) as (session, _):
            tables = tuple(session.read_table(table.name) for table in task.tables)
        contents = tuple(table for table in tables if not isinstance(table, UnreadableTable))
        for table in tables:
            if isinstance(table, UnreadableTable):
                message = f"task {task.task_id}: gold SQL leaves a table that cannot be read"
                raise DataError(f"{message}: {table.reason}")
        return contents

    @contextmanager
    def _gold_run(self, task: DBBenchTask) -> Iterator[tuple[DatabaseSession, StatementResult]]:
        """Gives a fresh session after the gold SQL, and its result. Raises: DataError, EnvFault."""
        with closing(self._database.open(task.tables)) as session:
            result = session.execute(self.gold_sql(task))
            if result.error is not None:
                raise DataError(f"task {task.task_id}: gold SQL fails with {result.error}")
            yield session, result


def _count_rows(contents: TableContents | UnreadableTable | None) -> int:
    return len(contents.rows) if isinstance(contents, TableContents) else 0


def compute_lab_md5(rows: Sequence[Row]) -> str:
    """Returns LifelongAgentBench's hash of a table's rows.

    It joins each row's non-NULL values by commas, keeps five hex digits of the MD5 (20 bits),
    sorts and joins those, cut at the 1,024 characters of MySQL's GROUP_CONCAT, and takes the MD5
    again; "None" for an empty table.
    """
    if not rows:
        return "None"
    hashes = sorted(
        _md5(",".join(str(value) for value in row if value is not None))[:5] for row in rows
    )
    return _md5(",".join(hashes)[:1024])


def _md5(text: str) -> str:
    return hashlib.md5(text.encode(), usedforsecurity=False).hexdigest()
