"""`AgentPEFT/DBBench-v0`: SQL tasks played against a real or an embedded MySQL."""

from collections.abc import Sequence
from contextlib import closing, suppress
from dataclasses import replace
from random import Random
from typing import Any, Unpack

from agentpeft.envs.core.actions import InvalidAction
from agentpeft.envs.core.errors import (
    DataError,
    SettingsError,
    check_count,
    check_flag,
    check_share,
)
from agentpeft.envs.core.rewards import Outcome
from agentpeft.envs.core.text_env import EpisodeConfig, Turn
from agentpeft.envs.db_bench.actions import (
    Answer,
    answer_action,
    operation_action,
    parse_action,
)
from agentpeft.envs.db_bench.backends.opening import open_database
from agentpeft.envs.db_bench.backends.protocol import DatabaseLimits, DatabaseSession
from agentpeft.envs.db_bench.generator import DBBenchGenerator
from agentpeft.envs.db_bench.grading.grader import Grader
from agentpeft.envs.db_bench.lapses import write_with_lapses
from agentpeft.envs.db_bench.loaders import load_tasks
from agentpeft.envs.db_bench.prompts import render_prompt
from agentpeft.envs.db_bench.tasks import DBBenchTask
from agentpeft.envs.generated_env import GeneratedTaskEnv, GeneratedTaskOptions
from agentpeft.envs.tasks.task_files import TaskData

_MAX_GOLD_ROWS = 10_000


class DBBenchEnv(GeneratedTaskEnv[DBBenchTask]):
    """Answer questions about tables, or change them, with SQL in a few turns.

    ## Description
    LifelongAgentBench's database game. An episode has its own tables, an instruction, and a
    database that speaks MySQL. Episodes do not see each other.

    ## Action Space
    `Unicode`: a message with "Action: Operation" and a ```` ```sql ```` block (run it), or
    "Action: Answer" and "Final Answer: …" (finish). Several statements in a block run in turn.

    ## Observation Space
    `Unicode`: after `reset` the prompt; after an operation its rows as Python prints them,
    `[('a', 1)]` (`[]` for a write), or MySQL's error message; after an answer nothing.

    ## Rewards
    Preset `db`: success 1.0, failure -0.1 (also for an invalid action and the turn limit),
    timeout -0.3. With `partial_credit`, a failure with an answer earns more.

    ## Episode End
    With the answer (`success` or `failure`), an `invalid_action`, a statement over its time
    (`timeout`), or the `turn_limit`. A question is right if the answered rows are those of the gold
    query (order matters only where it has one); a change if the tables' contents are those that the
    gold statement makes, and an answer was given.

    ## Arguments
    * `data`: a task file (LifelongAgentBench's `entry_dict.json` or hub rows, AgentBench's JSONL),
      or `{"tasks": file, "index": file}` for the tasks that an index lists (without `tasks`
        those of the `entry_dict.json` beside it);
      None generates tasks without end.
    * `max_columns`, `max_rows`, `max_text_chars`: of generated tasks; see `TableOptions`.
    * `task_source`, `skills`, `split` and more: see `GeneratedTaskOptions`.
    * `database`: "sqlite" (embedded), "mysql" or "mysql://user:password@host:port" (any server that
      speaks MySQL), "docker" or "docker://image".
    * `autocommit` (True): False makes a session where a change counts only after a COMMIT; the full
      prompt says so, the compact one does not.
    * `oracle_commits` (0.0): share of the changes that the oracle commits though it need not.
    * `statement_timeout_s`, `max_result_rows`, `max_result_chars` (longer results are cut with a
      note), `max_database_mib`.
    * `max_turns` (4), `invalid_ends`, `timeout_ends`, `reward`, …: see `EpisodeConfig`.

    ## Source
    LifelongAgentBench (Zheng et al., 2025, arXiv:2505.11942), after AgentBench (Liu et al., 2023,
    arXiv:2308.03688).

    ## Version History
    * v0: first version.
    """

    default_config = EpisodeConfig(max_turns=4, reward="db")
    tools_module = "agentpeft.envs.db_bench.tools"

    def __init__(  # noqa: PLR0913 (settings, by keyword only)
        self,
        *,
        data: TaskData | None = None,
        max_columns: int | None = None,
        max_rows: int | None = None,
        max_text_chars: int | None = None,
        database: str = "sqlite",
        autocommit: bool = True,
        oracle_commits: float = 0.0,
        statement_timeout_s: float = 5.0,
        max_result_rows: int = 1000,
        max_result_chars: int = 4000,
        max_database_mib: int = 16,
        **options: Unpack[GeneratedTaskOptions],
    ) -> None:
        """Raises: SettingsError, DataError (task file), EnvFault (server)."""
        sizes = {
            "max_columns": max_columns,
            "max_rows": max_rows,
            "max_text_chars": max_text_chars,
        }
        super().__init__(DBBenchGenerator, data, load_tasks, {}, sizes, **options)
        check_flag("autocommit", autocommit)
        check_share("oracle_commits", oracle_commits)
        check_count("max_result_rows", max_result_rows)
        check_count("max_result_chars", max_result_chars)
        limits = DatabaseLimits(
            statement_timeout_s=statement_timeout_s,
            max_rows=max(max_result_rows, _MAX_GOLD_ROWS),
            max_database_mib=max_database_mib,
        )
        self._check_timeout("statement_timeout_s", statement_timeout_s)
        longest = self.config.max_observation_chars - 100
        if max_result_chars > longest:
            raise SettingsError(
                f"max_result_chars must be between 1 and {longest} (100 below "
                f"max_observation_chars), got {max_result_chars}"
            )
        self.autocommit = autocommit
        self.oracle_commits = oracle_commits
        self.max_result_rows = max_result_rows
        self.max_result_chars = max_result_chars
        self._database = open_database(database, limits)
        self.grader = Grader(self._database)
        self._session: DatabaseSession | None = None
        self._runs: list[tuple[str, str | None]] = []
        self.has_waiting_steps = database != "sqlite"

    def _solve(self, task: DBBenchTask) -> Sequence[str]:
        """Returns the gold SQL (where the task has one), COMMIT, and the answer that it gives."""
        if task.is_write:
            statements = [self.grader.gold_sql(task), *["COMMIT"] * self._oracle_commits(task)]
            if len(statements) >= self.config.max_turns:
                statements = ["; ".join(statements)]
            return [*map(operation_action, statements), answer_action("done")]
        answer = answer_action(str(list(self.grader.gold_label(task))))
        if task.gold_sql is None:
            return [answer]
        return [operation_action(task.gold_sql), answer]

    def _oracle_commits(self, task: DBBenchTask) -> bool:
        is_chosen = Random(f"commit/{task.task_id}").random() < self.oracle_commits
        return is_chosen or not self.autocommit

    def _write_lapses(self, task: DBBenchTask, rng: Random) -> DBBenchTask:
        if task.gold_sql is None:
            return task
        sql = write_with_lapses(task.gold_sql, self.oracle_lapses, rng)
        taken = replace(task, task_id=f"{task.task_id}/taken", gold_sql=sql, label=None)
        with suppress(DataError):  # a statement that the database refuses
            return taken if task.is_write else replace(taken, label=self.grader.gold_label(taken))
        return task

    def __getstate__(self) -> dict[str, Any]:
        """Returns all but the episode; a copy opens the database again."""
        return {**super().__getstate__(), "_session": None, "_runs": []}

    def _release(self) -> None:
        with closing(self._database):
            self._close_session()

    def _begin(self, task: DBBenchTask) -> str:
        self._close_session()
        self._session = self._database.open(task.tables)
        self._runs = []
        if not self.autocommit:
            self._session.execute("SET autocommit = 0")
        return render_prompt(task, self.prompt_style, self.config, self.autocommit)

    def _act(self, action: str) -> Turn:
        parsed = parse_action(action)
        if isinstance(parsed, InvalidAction):
            return self._refuse(parsed)
        if isinstance(parsed, Answer):
            if self._grade(parsed.text):
                return Turn("", Outcome.SUCCESS)
            credit = self.partial_credit and self.partial_credit * self._share(parsed.text)
            return Turn("", Outcome.FAILURE, credit)
        result = self._open_session.execute(parsed.sql)
        self._runs.append((parsed.sql, result.error))
        if len(result.rows) > self.max_result_rows:
            result = replace(result, rows=result.rows[: self.max_result_rows], is_cut=True)
        text = result.to_text(self.max_result_chars)
        return Turn(text, Outcome.TIMEOUT if result.is_timeout else Outcome.ONGOING)

    def _end(self, outcome: Outcome) -> None:  # noqa: ARG002 (the session ends in any case)
        self._close_session()

    @property
    def _open_session(self) -> DatabaseSession:
        assert self._session is not None, "an episode has a session"  # noqa: S101
        return self._session

    def _grade(self, answer: str) -> bool:
        if self.task.is_write:
            if self.autocommit and self._runs == [(self.task.gold_sql, None)]:
                return True  # this session is a run of the gold solution: no second one is needed
            return self.grader.is_right_state(self.task, self._open_session)
        return self.grader.is_right_answer(self.task, answer)

    def _share(self, answer: str) -> float:
        if self.task.is_write:
            return self.grader.state_share(self.task, self._open_session)
        return self.grader.answer_share(self.task, answer)

    def _close_session(self) -> None:
        session, self._session = self._session, None
        if session is not None:
            session.close()
