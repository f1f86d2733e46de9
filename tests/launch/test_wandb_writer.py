"""Which episodes a table shows: the newest since the last look."""

from agentpeft.envs import Outcome
from agentpeft.launch.run.wandb_writer import COLUMNS, SampleEpisodes
from agentpeft.policies.checkpointing.run_logs import append_episodes
from agentpeft.policies.messages import EpisodeRecord


def play(number):
    talk = (("user", "2+2="), ("assistant", "4"))
    return EpisodeRecord(
        number, 0, f"task{number}", ("a", "b"), 0, Outcome.SUCCESS, 1.0, 1, 2, talk
    )


def test_each_look_returns_the_newest_episodes_that_the_last_one_had_not(tmp_path):
    path = tmp_path / "sessions" / "train.jsonl"
    append_episodes(path, 0, [play(0)])
    episodes = SampleEpisodes(tmp_path)
    assert episodes.take() == []
    append_episodes(path, 1, map(play, range(1, 13)))
    append_episodes(path.with_name("eval.jsonl"), 1, [play(50)])
    rows = [dict(zip(COLUMNS, row, strict=True)) for row in episodes.take()]
    assert [row["task_id"] for row in rows] == [*(f"task{n}" for n in range(5, 13)), "task50"]
    assert rows[-1] == {
        "set": "eval",
        "iteration": 1,
        "task_id": "task50",
        "skills": "a, b",
        "outcome": "success",
        "episode_return": 1.0,
        "conversation": "user: 2+2=\n\nassistant: 4",
    }
    assert episodes.take() == []


def test_a_file_that_was_cut_and_has_grown_otherwise_is_read_from_a_whole_line(tmp_path):
    path = tmp_path / "sessions" / "train.jsonl"
    append_episodes(path, 0, map(play, range(3)))
    episodes = SampleEpisodes(tmp_path)
    path.write_bytes(path.read_bytes().splitlines(keepends=True)[0])
    assert episodes.take() == []
    append_episodes(path, 10, [play(1000), play(2000)])
    assert [row[COLUMNS.index("task_id")] for row in episodes.take()] == ["task1000", "task2000"]
    path.write_bytes(b"x" * 10 + path.read_bytes())  # what was read ends within a line now
    append_episodes(path, 11, [play(3)])
    assert episodes.take()[-1][COLUMNS.index("task_id")] == "task3"
