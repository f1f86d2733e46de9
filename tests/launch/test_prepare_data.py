"""The data commands: what they write, and one clear line for what is wrong."""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import gymnasium as gym
import pytest

from agentpeft.envs import DataError, SettingsError
from agentpeft.envs.db_bench.loaders import load_tasks
from agentpeft.envs.db_bench.skills import SKILLS, detect_skills
from agentpeft.launch.data.gold_validation import validate_gold
from agentpeft.launch.prepare_data import main

ROOT = Path(__file__).parents[2]
DB_BENCH = "AgentPEFT/DBBench-v0"
OS = "AgentPEFT/OSInteraction-v0"
URL = "mysql://root:secret@127.0.0.1:9"


def last_json(capsys):
    return json.loads(capsys.readouterr().out.splitlines()[-1])


@pytest.fixture
def generated(tmp_path):
    path = tmp_path / "generated.json"
    assert main(["generate", "--num-tasks", "44", "--seed", "3", "--output", str(path)]) == 0
    return path


def test_generate_writes_tasks_that_all_succeed(generated, capsys):
    assert main(["validate", str(generated), "--env", DB_BENCH]) == 0
    assert last_json(capsys) == {"tasks": 44, "succeeded": 44, "failed": []}


@pytest.mark.parametrize("name", [DB_BENCH, OS])
def test_an_environment_may_be_named_with_its_module(name, tmp_path, capsys):
    path, env_id = str(tmp_path / "generated.json"), f"agentpeft.envs:{name}"
    assert main(["generate", "--num-tasks", "2", "--output", path, "--env", env_id]) == 0
    if name == DB_BENCH:
        assert main(["validate", path, "--env", env_id]) == 0
        assert last_json(capsys)["succeeded"] == 2


def test_generate_writes_entries_that_lifelongagentbench_takes(generated):
    entries = json.loads(generated.read_text(encoding="utf-8"))
    assert list(entries) == [str(index) for index in range(44)]
    for entry in entries.values():
        answer = entry["answer_info"]
        assert (answer["direct"] is None) != (answer["md5"] is None)
        assert (answer["direct"] is None) == (not answer["sql"].startswith("SELECT"))
        names = {column["name"] for column in entry["table_info"]["column_info_list"]}
        assert all(len(row) == len(names) for row in entry["table_info"]["row_list"])
        assert set(entry["skill_list"]) == set(detect_skills(answer["sql"]))


def test_generate_makes_the_same_file_from_the_same_seed(generated, tmp_path):
    again = tmp_path / "again.json"
    main(["generate", "--num-tasks", "44", "--seed", "3", "--output", str(again)])
    assert again.read_bytes() == generated.read_bytes()


def test_generate_keeps_to_the_skills(tmp_path):
    path = tmp_path / "some.json"
    skills = ["where_single_condition", "order_by_single_column"]
    settings = ["--skill-mode", "all", "--output", str(path), "--skills", *skills]
    assert main(["generate", "--num-tasks", "5", *settings]) == 0
    assert all(set(skills) <= set(task.skills) for task in load_tasks(path))


def test_single_skill_counts_filters_and_names_what_is_short(generated, tmp_path, capsys):
    output = tmp_path / "single.json"
    command = ["single-skill", str(generated), "--min-tasks", "4", "--output", str(output)]
    assert main(command) == 0
    counts = load_tasks(generated).skills
    lines = capsys.readouterr().out.splitlines()
    table = dict(line.split() for line in lines if line.split()[0] in SKILLS)
    assert {skill: int(count) for skill, count in table.items() if int(count)} == counts
    short = [skill for skill in SKILLS if counts.get(skill, 0) < 4]
    assert f"left out, fewer than 4 tasks: {', '.join(short)}" in lines
    kept = {task.task_id for task in load_tasks(output)}
    enough = {skill for skill in SKILLS if skill not in short}
    assert kept == {task.task_id for task in load_tasks(generated) if enough & set(task.skills)}


def test_single_skill_can_index(generated, tmp_path):
    output = tmp_path / "single.json"
    command = ["single-skill", str(generated), "--index", "--skills", "insert", "limit_only"]
    assert main([*command, "--output", str(output)]) == 0
    index = json.loads(output.read_text(encoding="utf-8"))
    tasks = load_tasks(generated)
    assert index == {
        skill: [task.task_id for task in tasks if skill in task.skills]
        for skill in ("insert", "limit_only")
    }


def test_single_skill_exactly_leaves_out_tasks_with_further_skills(tmp_path, capsys):
    path, output = tmp_path / "both.json", tmp_path / "exact.json"
    two = ["--skill-mode", "all", "--num-skills", "2", "--num-tasks", "9", "--output", str(path)]
    assert main(["generate", *two]) == 0
    entries = json.loads(path.read_text("utf-8"))
    entries["0"]["skill_list"] = ["insert"]
    path.write_text(json.dumps(entries), "utf-8")
    skills = sorted({skill for entry in entries.values() for skill in entry["skill_list"]})
    command = ["single-skill", str(path), "--output", str(output), "--skills", *skills]
    assert main(command) == 0 and len(load_tasks(output)) == 9
    capsys.readouterr()
    assert main([*command, "--exactly"]) == 0
    assert "left out, without a task: " in capsys.readouterr().out
    assert [task.task_id for task in load_tasks(output)] == ["0"]


@pytest.mark.parametrize("env_id", [DB_BENCH, OS])
@pytest.mark.parametrize("is_alone", [False, True])
def test_an_environment_plays_the_tasks_of_an_index(env_id, is_alone, tmp_path, capsys):
    path, output = tmp_path / "entry_dict.json", tmp_path / "index.json"
    skills = ["insert", "limit_only"] if env_id == DB_BENCH else ["chmod", "wc"]
    words = ["--num-tasks", "8", "--skills", *skills, "--output", str(path)]
    assert main(["generate", "--env", env_id, *words]) == 0
    words = ["--index", "--skills", skills[0], "--output", str(output)]
    assert main(["single-skill", str(path), *words]) == 0
    index = json.loads(output.read_text("utf-8"))
    data = {"index": str(output)} if is_alone else {"tasks": path, "index": str(output)}
    with closing(gym.make(env_id, data=data).unwrapped) as env:
        assert [task.task_id for task in env.task_source] == index[skills[0]]
        assert 0 < len(env.task_source) < 8


@pytest.mark.parametrize(
    ("data", "content", "message"),
    [
        ({"tasks": "t.json"}, "{}", "data needs a path under 'index'"),
        ({"index": "i.json"}, "{}", "no entry_dict.json is beside i.json: name its task file"),
        ({"index": "none.json"}, "{}", "no entry_dict.json is beside none.json"),
        (
            {"tasks": "t.json", "idx": "i.json"},
            "{}",
            "unknown key of data 'idx'",
        ),
        ({"tasks": "t.json", "index": 3}, "{}", "data.index must be a path"),
        ({"tasks": "t.json", "index": "i.json"}, '{"insert": ["99"]}', "no task '99' in t.json"),
        ({"tasks": "t.json", "index": "i.json"}, "{}", "i.json: no index"),
        ({"tasks": "t.json", "index": "i.json"}, "{", "i.json: not JSON"),
        ({"tasks": "t.json", "index": "i.json"}, '{"a": [], "a": []}', "has the key 'a' twice"),
        ({"tasks": "t.json", "index": "i.json"}, '{"insert": [["1"]]}', "i.json: no index"),
        ({"tasks": "t.json", "index": "i.json"}, '{"insert": [null]}', "i.json: no index"),
        ({"tasks": "t.json", "index": "i.json"}, '{"insert": ["1"], "x": 1}', "i.json: no index"),
        ({"tasks": "t.json", "index": "none.json"}, "{}", "none.json: cannot be read"),
    ],
)
def test_an_index_that_is_none_is_said(generated, tmp_path, monkeypatch, data, content, message):
    monkeypatch.chdir(tmp_path)
    shutil.copy(generated, "t.json")
    Path("i.json").write_text(content)
    with pytest.raises((DataError, SettingsError), match=re.escape(message)):
        gym.make(DB_BENCH, data=data)


def test_agentbench_converts_and_validates_but_for_named_tasks(shared_data, tmp_path, capsys):
    source = shared_data / "agentbench" / "dbbench" / "dev.jsonl"
    output = tmp_path / "entry_dict.json"
    assert main(["convert", str(source), "--output", str(output)]) == 0
    for path in (source, output):
        assert main(["validate", str(path), "--env", DB_BENCH]) == 1
        assert last_json(capsys) == {"tasks": 60, "succeeded": 59, "failed": ["dev#5"]}


def test_os_tasks_are_generated_filtered_converted_and_validated(any_sandbox, tmp_path, capsys):
    path, some = tmp_path / "os.json", tmp_path / "some.json"
    command = ["generate", "--env", OS, "--num-tasks", "8", "--skills", "chmod", "wc"]
    assert main([*command, "--output", str(path)]) == 0
    assert main(["single-skill", str(path), "--skills", "wc", "--output", str(some)]) == 0
    assert main(["convert", str(some), "--output", str(path)]) == 0
    num_tasks = len(json.loads(path.read_text(encoding="utf-8")))
    assert 0 < num_tasks < 8
    assert main(["validate", str(path), "--env", OS]) == 0
    assert last_json(capsys) == {"tasks": num_tasks, "succeeded": num_tasks, "failed": []}


def test_an_os_task_whose_gold_fails_is_named_with_the_reason(any_sandbox, tmp_path, capsys):
    check = {"command_name": "bash", "script": "test -f /srv/x"}
    gold, failure = "the gold solution ends in", "failure: a check fails (exit status 1: '')"
    problems = {
        "true": f"{gold} {failure}",
        "echo full; false": f"{gold} {failure}, after 'full\\n[exit status 1]'",
        "echo late; sleep 9": f"{gold} {failure}, after 'late\\n[killed after 1 s]'",
        None: f"has no gold solution; it ends in {failure}",
    }
    entries = []
    for script in problems:
        evaluation = {"evaluation_command_item": check}
        if script is not None:
            evaluation["ground_truth_command_item"] = {"command_name": "bash", "script": script}
        entries.append({"instruction": "?", "evaluation_info": evaluation, "skill_list": []})
    path = tmp_path / "os.json"
    path.write_text(json.dumps(entries))
    assert validate_gold(path, OS, {"command_timeout_s": 1}) == 1
    *lines, summary = capsys.readouterr().out.splitlines()
    assert lines == [f"{number}: {text}" for number, text in enumerate(problems.values())]
    assert json.loads(summary) == {"tasks": 4, "succeeded": 0, "failed": ["0", "1", "2", "3"]}


def test_gsm8k_files_validate_too(shared_data, capsys):
    path = shared_data / "gsm8k" / "train_300.jsonl"
    assert main(["validate", str(path), "--env", "AgentPEFT/GSM8K-v0"]) == 0
    assert last_json(capsys) == {"tasks": 300, "succeeded": 300, "failed": []}


def test_validate_names_wrong_gold_solutions_and_notes_a_wrong_md5(generated, tmp_path, capsys):
    entries = json.loads(generated.read_text(encoding="utf-8"))
    change = next(key for key, entry in entries.items() if entry["answer_info"]["md5"])
    first, second = [key for key, entry in entries.items() if entry["answer_info"]["direct"]][:2]
    entries[change]["answer_info"]["md5"] = "0" * 32
    entries[first]["answer_info"]["sql"] = "SELECT missing FROM nowhere"
    entries[second]["answer_info"]["direct"] = [["something else"]]
    path = tmp_path / "broken.json"
    path.write_text(json.dumps({key: entries[key] for key in (change, first, second)}))
    capsys.readouterr()
    assert main(["validate", str(path), "--env", DB_BENCH]) == 1
    *lines, summary = capsys.readouterr().out.splitlines()
    assert json.loads(summary) == {"tasks": 3, "succeeded": 1, "failed": [first, second]}
    starts = (
        f"{change}: note: its md5 is {'0' * 32}",
        f"{first}: ",
        f"{second}: the gold SQL gives",
    )
    assert all(line.startswith(start) for line, start in zip(lines, starts, strict=True))
    assert "1146" in lines[1]


def test_validate_notes_a_change_that_changes_nothing(tmp_path, capsys):
    table = {"columns": [{"name": "title", "type": "TEXT"}], "rows": [["Emma"]]}
    row = {
        "description": "Delete what is not there.",
        "table": {"table_name": "books", "table_info": table},
        "type": ["DELETE"],
        "label": ["DELETE FROM books WHERE title = 'Dune'"],
    }
    (tmp_path / "idle.jsonl").write_text(json.dumps(row), "utf-8")
    assert main(["validate", str(tmp_path / "idle.jsonl"), "--env", DB_BENCH]) == 0
    assert "idle#0: note: doing nothing succeeds too" in capsys.readouterr().out


def test_validate_names_a_change_whose_gold_fails_when_it_is_graded(generated, tmp_path, capsys):
    entries = json.loads(generated.read_text(encoding="utf-8"))
    key = next(key for key, entry in entries.items() if entry["answer_info"]["md5"])
    entries[key]["answer_info"]["sql"] = "UPDATE nowhere SET a = 1"
    path = tmp_path / "broken.json"
    path.write_text(json.dumps({key: entries[key]}))
    capsys.readouterr()
    assert main(["validate", str(path), "--env", DB_BENCH]) == 1
    line, _ = capsys.readouterr().out.splitlines()
    assert line.startswith(f"{key}: task {key}: gold SQL fails with 1146")


@pytest.mark.parametrize(
    ("command", "problem"),
    [
        (["convert", "missing.json"], "error: missing.json: no such file"),
        (["generate", "--skills", "selct"], "unknown skill 'selct'; did you mean 'select'?"),
        (["generate", "--env", "AgentPEFT/OSInteracton-v0"], "did you mean 'AgentPEFT/OSInt"),
        (["convert", "{tasks}", "--scripts", "x"], "--scripts x is for tasks of OS-interaction"),
        (["generate", "--num-tasks", "0"], "--num-tasks must be >= 1, got 0"),
        (["validate", "hub", "--env", "AgentPEFT/GSM8K-v0"], "error: hub: no such file"),
        (["generate", "--seed", "-1"], "--seed must be >= 0, got -1"),
        (["generate", "--output", "no/such/folder.json"], "no such folder no/such"),
        (["generate", "--output", "."], "--output . is a folder"),
        (
            ["generate", "--skill-mode", "all", "--skills", "insert", "limit_only"],
            "insert and limit_only exclude each other",
        ),
        (["single-skill", "{tasks}", "--min-tasks", "999"], "no skill has 999 tasks"),
        (
            ["validate", "{tasks}", "--env", "AgentPEFT/DBBnch-v0"],
            "did you mean 'AgentPEFT/DBBench-v0'",
        ),
        (["validate", "{tasks}", "--env", "AgentPEFT/Arithmetic-v0"], "no setting 'data'"),
        (["validate", "{tasks}", "--env", "CartPole-v1"], "no setting 'data'"),
        (["validate", "{tasks}", "--env", "missing_module:Some-v0"], "No module named"),
        (["validate", "{tasks}", "--env", "AgentPEFT/GSM8K-v0"], "row 0: field 'question' is"),
        (["validate", "{tasks}", "--env", DB_BENCH, "--database", "sqlit"], "sqlit"),
        (["validate", "{broken}", "--env", DB_BENCH], "broken.json row 0: field 'instruction' is"),
    ],
)
def test_wrong_input_is_one_line_and_status_2(
    command, problem, generated, tmp_path, capsys, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "broken.json").write_text('[{"answer_info": {"sql": "SELECT 1", "direct": []}}]')
    capsys.readouterr()
    names = {"tasks": generated.name, "broken": "broken.json"}
    assert main([part.format(**names) for part in command]) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert problem in error
    assert "secret" not in error


def test_a_database_that_does_not_answer_is_one_line_and_status_1(generated, capsys):
    capsys.readouterr()
    assert main(["validate", str(generated), "--env", DB_BENCH, "--database", URL]) == 1
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert "127.0.0.1:9" in error and "secret" not in error


@pytest.mark.slow
def test_an_interrupted_run_is_one_line_and_leaves_no_file(tmp_path):
    code = (  # a job in the background of a shell begins with SIGINT ignored
        "import signal, sys; signal.signal(signal.SIGINT, signal.default_int_handler);"
        "from agentpeft.launch.prepare_data import main; sys.exit(main())"
    )
    settings = ["--num-tasks", "1000000", "--output", str(tmp_path / "entry_dict.json")]
    command = [sys.executable, "-c", code, "generate", *settings]
    running = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    with pytest.raises(subprocess.TimeoutExpired):
        running.wait(timeout=5)
    running.send_signal(signal.SIGINT)
    assert running.communicate(timeout=30)[1] == "interrupted\n"
    assert running.returncode == 130
    assert list(tmp_path.iterdir()) == []


def test_output_that_nobody_reads_is_no_traceback(generated):
    command = [sys.executable, "-m", "agentpeft.launch.prepare_data", "single-skill"]
    reader, writer = os.pipe()
    os.close(reader)
    output = str(generated.with_name("single.json"))
    done = subprocess.run(
        [*command, str(generated), "--output", output],
        stdout=writer,
        stderr=subprocess.PIPE,
        check=False,
    )
    os.close(writer)
    assert (done.returncode, done.stderr) == (1, b"")


def test_an_unknown_argument_is_one_line_and_status_2(capsys):
    assert main(["generate", "--number", "5"]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_a_full_disk_leaves_no_half_file(tmp_path):
    output = tmp_path / "entry_dict.json"
    code = (
        "import resource, sys; from agentpeft.launch.prepare_data import main;"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (2000, 2000));"
        "import signal; signal.signal(signal.SIGXFSZ, signal.SIG_IGN); sys.exit(main())"
    )
    command = [sys.executable, "-c", code, "generate", "--output", str(output)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1, done.stderr
    assert "File too large" in done.stderr.splitlines()[-1]
    assert list(tmp_path.iterdir()) == []


def test_it_runs_as_a_script_and_as_a_module(tmp_path):
    script = str(ROOT / "launch" / "prepare_data.py")
    for start in ([script], ["-m", "agentpeft.launch.prepare_data"]):
        output = tmp_path / "entry_dict.json"
        command = [sys.executable, *start, "generate", "--num-tasks", "2", "--output", str(output)]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
        assert done.stdout == f"2 tasks written to {output}\n", done.stderr


def test_download_without_the_package_or_a_network_is_one_line(tmp_path):
    command = [
        sys.executable,
        "launch/prepare_data.py",
        "download",
        "--output",
        str(tmp_path / "x"),
    ]
    environment = {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "PATH": ""}
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, check=False, env=environment
    )
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1
    assert done.stderr.startswith("error: ")
