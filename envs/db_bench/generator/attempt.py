"""`Attempt`: what drafts a generated DB-bench task, and makes the task of a finished statement."""

from collections.abc import Iterable
from dataclasses import dataclass, field

from agentpeft.envs.db_bench.backends.protocol import Row, Value
from agentpeft.envs.db_bench.generator.tables import Field, SampleTable, make_value
from agentpeft.envs.db_bench.skills import check_skills
from agentpeft.envs.db_bench.tasks import DBBenchTask
from agentpeft.envs.tasks.phrases import Speaker
from agentpeft.envs.tasks.skill_generator import NoTaskHereError
from agentpeft.envs.tasks.task_random import TaskRandom

_MAX_TRIES = 40


@dataclass
class Attempt:
    """The state of one attempt at a task; `prefix` is the table alias with its dot."""

    rng: TaskRandom
    speaker: Speaker
    sample: SampleTable
    skills: frozenset[str]
    task_id: str = ""
    prefix: str = ""
    used: set[str] = field(default_factory=set)

    @property
    def table(self) -> str:
        """The table's name."""
        return self.sample.table.name

    @property
    def from_sql(self) -> str:
        """The table with its alias, for a FROM clause."""
        return f"{self.table} AS {self.prefix[:-1]}" if self.prefix else self.table

    def asks_for(self, skills: Iterable[str]) -> bool:
        """Returns whether the task is to show at least one of these skills."""
        return not self.skills.isdisjoint(skills)

    def ref(self, column: Field) -> str:
        """Returns a column as the outermost query writes it."""
        return self.prefix + column.name

    def pick(self, columns: Iterable[Field]) -> Field:
        """Returns one of the columns, an unused one if possible. Raises: NoTaskHereError."""
        options = list(columns)
        used = self.used
        fresh = [column for column in options if column.name not in used] or options
        if not fresh:
            raise NoTaskHereError
        chosen = self.rng.choice(fresh)
        self.used.add(chosen.name)
        return chosen

    def new_value(self, column: Field) -> Value:
        """Returns a new value for a column that gold SQL may have. Raises: NoTaskHereError."""
        values = (make_value(self.rng, column) for _ in range(_MAX_TRIES))
        for value in filter(self.sample.options.allows, values):
            return value
        raise NoTaskHereError

    def say(self, what: str, **words: str) -> str:
        """Returns a phrase."""
        return self.speaker.say(what, **words)

    def make_task(
        self,
        sql: str,
        instruction: str,
        skills: Iterable[str],
        label: tuple[Row, ...] | None = None,
    ) -> DBBenchTask:
        """Returns the task of a finished statement; `label` has the rows of a SELECT."""
        return DBBenchTask(
            task_id=self.task_id,
            instruction=instruction,
            skills=check_skills(skills),
            tables=(self.sample.table,),
            is_write=label is None,
            gold_sql=sql,
            label=label,
        )
