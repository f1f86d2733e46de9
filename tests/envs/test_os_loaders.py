"""OS-interaction's task files: what loads, what it becomes, and what is wrong with the rest."""

import json
import logging
import random
import shlex

import pyarrow.parquet
import pytest

from agentpeft.envs import DataError, SettingsError, Taskset
from agentpeft.envs.os_interaction.actions import command_action
from agentpeft.envs.os_interaction.entries import to_entry
from agentpeft.envs.os_interaction.env import OSInteractionEnv
from agentpeft.envs.os_interaction.generator import OSGenerator
from agentpeft.envs.os_interaction.grading.answers import ExpectedAnswer
from agentpeft.envs.os_interaction.loaders import load_tasks
from agentpeft.envs.os_interaction.tasks import OSTask, Script, Verdict

ENTRY = {
    "instruction": "Create /srv/x.",
    "initialization_command_item": {"command_name": "bash", "script": "mkdir -p /srv"},
    "evaluation_info": {
        "evaluation_command_item": {"command_name": "python", "script": "open('/srv/x')"},
        "ground_truth_command_item": {"command_name": "cpp", "script": "int main(){}"},
    },
    "skill_list": ["touch", "cd"],
}
MATCH = {"description": "Which?", "evaluation": {"match": "log"}, "start": "sleep 1 &"}
COUNT = {
    "description": "How many?",
    "create": {"local": "default", "init": {"code": "touch /srv/a"}},
    "evaluation": {
        "check": [None, {"language": "python", "file": "check/integer-match.py"}],
        "example": "ls /root | wc -l",
    },
}
BY_FILE = {
    "description": "Make it.",
    "create": {"init": {"file": "init/make.sh"}},
    "evaluation": {"check": {"file": "check/0.py"}, "example": {"file": "example/0.sh"}},
}


def write(path, data):
    path.write_text(json.dumps(data), encoding="utf-8")
    return path


def test_an_entry_becomes_a_task(tmp_path):
    (task,) = load_tasks(write(tmp_path / "entry_dict.json", {"7": ENTRY}))
    assert task == OSTask(
        task_id="7",
        instruction="Create /srv/x.",
        skills=("cd", "touch"),
        verdict=Verdict(checks=(Script("open('/srv/x')", "python"),)),
        setup=Script("mkdir -p /srv"),
        gold=Script("int main(){}", "c++"),
    )


def test_an_entry_may_have_neither_a_set_up_nor_a_solution(tmp_path):
    evaluation = {**ENTRY["evaluation_info"], "ground_truth_command_item": None}
    entry = {**ENTRY, "evaluation_info": evaluation, "initialization_command_item": None}
    (task,) = load_tasks(write(tmp_path / "entry_dict.json", {"7": entry}))
    assert (task.setup, task.gold, task.wants_answer) == (None, None, False)


@pytest.mark.parametrize("kind", ["object", "array", "jsonl", "parquet"])
def test_hub_rows_are_the_same_tasks_in_every_container(kind, tmp_path):
    nested = ("initialization_command_item", "evaluation_info", "skill_list")
    row = {**ENTRY, **{name: repr(ENTRY[name]) for name in nested}, "sample_index": 7}
    path = tmp_path / f"rows.{kind if kind in ('jsonl', 'parquet') else 'json'}"
    if kind == "parquet":
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist([row]), path)
    elif kind == "jsonl":
        path.write_text(json.dumps(row), encoding="utf-8")
    else:
        write(path, [row] if kind == "array" else {"0": row})
    assert list(load_tasks(path)) == list(load_tasks(write(tmp_path / "e.json", {"7": ENTRY})))


def test_agentbench_rows_become_tasks(tmp_path):
    match, count = load_tasks(write(tmp_path / "dev.json", [MATCH, COUNT]))
    assert (match.task_id, count.task_id) == ("dev#0", "dev#1")
    assert match.verdict == Verdict(answer=ExpectedAnswer("log"))
    assert (match.start, match.gold, match.wants_answer) == ("sleep 1 &", None, True)
    assert count.verdict == Verdict(checks=(Script("ls /root | wc -l"), "number"))
    assert count.setup == Script("touch /srv/a")
    assert count.skills == ("ls", "wc")
    assert count.wants_answer


def test_scripts_by_file_come_from_the_given_folder(tmp_path):
    for name in ("init/make.sh", "check/0.py", "example/0.sh", "check/integer-match.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(f"# {name}")
    task, count = load_tasks(write(tmp_path / "dev.json", [BY_FILE, COUNT]), tmp_path)
    assert task.setup == Script("# init/make.sh")
    assert task.verdict.checks == (Script("# check/0.py", "python"),)
    assert (task.gold, task.wants_answer) == (Script("# example/0.sh"), False)
    assert count.verdict.checks[1] == Script("# check/integer-match.py", "python")
    assert count.wants_answer


def test_rows_without_their_scripts_are_left_out_with_a_warning(tmp_path, caplog):
    path = write(tmp_path / "dev.json", [MATCH, BY_FILE])
    with caplog.at_level(logging.WARNING):
        assert [task.task_id for task in load_tasks(path)] == ["dev#0"]
    assert "rows 1 (example/0.sh); scripts= names the folder" in caplog.text
    with pytest.raises(DataError, match="no tasks in this file"):
        load_tasks(write(path, [BY_FILE]))


def test_a_script_outside_the_folder_is_refused(tmp_path):
    (tmp_path / "scripts").mkdir()
    (tmp_path / "secret.sh").write_text("x")
    row = {**BY_FILE, "create": {"init": {"file": "../secret.sh"}}}
    row["evaluation"] = {"match": "1"}
    with pytest.raises(DataError, match="must be within the folder of scripts"):
        load_tasks(write(tmp_path / "dev.json", [row]), tmp_path / "scripts")


def test_agentbenchs_files_load_apart_from_rows_without_scripts(shared_data):
    folder = shared_data / "agentbench" / "os_interaction"
    dev = load_tasks(folder / "dev.json")
    assert {f"dev#{i}" for i in range(26)} - {t.task_id for t in dev} == {
        "dev#3",
        "dev#5",
        "dev#25",
    }
    assert dev.get("dev#10").setup is None
    assert [t.task_id for t in dev if t.start] == [f"dev#{i}" for i in (0, 1, 2, 4)]
    train = load_tasks(folder / "train_200.json")
    assert len(train) == 200
    assert {t.verdict.checks[-1] for t in train} == {"number", "text", "size"}
    assert all(task.skills for task in train)


def test_tasks_survive_the_round_trip(shared_data, tmp_path):
    tasks = [
        *Taskset.generate(OSGenerator(), 60, seed=0),
        *Taskset.generate(OSGenerator(skill_mode="all", num_skills=3), 20, seed=0),
        *load_tasks(shared_data / "agentbench" / "os_interaction" / "dev.json"),
    ]
    entries = {task.task_id: to_entry(task) for task in tasks}
    assert list(load_tasks(write(tmp_path / "entry_dict.json", entries))) == tasks


def changed(entry, field, value):
    """Returns an entry with one field replaced; "a.b" is a nested one."""
    outer, _, inner = field.partition(".")
    return {**entry, outer: {**entry[outer], inner: value} if inner else value}


FILE = {"path": "/srv/x"}
MISFITS = [
    {"checks": [{"source": "true", "language": "ruby"}]},
    {"checks": [{"source": 3}]},
    {"checks": [{"source": "true", "shell": "bash"}]},
    {"checks": [None]},
    {"answer": {"value": 5}},
    {"answer": {"value": "5", "kind": "magic"}},
    {"answer": ["5"]},
    *({"state": {"files": [FILE | own]}} for own in ({"match": "fuzzy"}, {"kind": "pipe"})),
    *({"state": {"files": [FILE | own]}} for own in ({"mode": "644"}, {"mode": True})),
    {"state": {"files": [FILE | {"mtime_s": "now"}]}},
    {"state": {"files": ["/srv/x"]}},
    {"state": {"users": [{"name": "bob", "groups": [1]}]}},
    {"state": {"users": [{"name": "bob", "is_locked": "yes"}]}},
    {"state": {"users": {"name": "bob"}}},
    {"state": {"groups": [{"name": "cooks", "members": "bob"}]}},
    {"state": {"intervals": [{"earlier": "/a", "later": "/b"}]}},
    {"state": ["files"]},
]


@pytest.mark.parametrize(
    ("row", "problem"),
    [
        ({"instruction": "?"}, "neither LifelongAgentBench's fields"),
        (changed(ENTRY, "instruction", 3), "row 0: field 'instruction' must be str, got int 3"),
        (changed(ENTRY, "skill_list", ["chmd"]), "unknown skill 'chmd'; did you mean 'chmod'"),
        (changed(ENTRY, "evaluation_info", "{'a"), "is not a Python literal"),
        (
            changed(ENTRY, "evaluation_info.evaluation_command_item", None),
            "'evaluation_command_item' must not be null",
        ),
        (
            changed(ENTRY, "initialization_command_item.command_name", "perl"),
            "'command_name' is unknown: 'perl'",
        ),
        (changed(ENTRY, "evaluation_info.verdict", {"sate": {}}), "nothing that says what"),
        (changed(ENTRY, "evaluation_info.verdict", {"state": {"x": []}}), "no verdict of this"),
        (changed(ENTRY, "evaluation_info.verdict", {"checks": ["x"]}), "unknown comparison 'x'"),
        *(
            (changed(ENTRY, "evaluation_info.verdict", each), "no verdict of this")
            for each in MISFITS
        ),
        (changed(MATCH, "evaluation", {}), "neither a match nor a check"),
        (changed(MATCH, "evaluation.match", 3), "'match' must be text"),
        (changed(MATCH, "evaluation.match", {"regex": "("}), "not a pattern"),
        (changed(COUNT, "evaluation.example", None), "has no example, which its check needs"),
        (changed(COUNT, "create.init", [5]), "has no script"),
        (changed(COUNT, "create.init", [["x"]]), "has no script"),
        (changed(COUNT, "create.init", {"code": "x", "language": "perl"}), "is unknown: 'perl'"),
    ],
)
def test_wrong_rows_are_named(row, problem, tmp_path):
    with pytest.raises(DataError, match=problem):
        load_tasks(write(tmp_path / "dev.json", [row]))


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"num_skills": 2}, "num_skills=2 is for generated tasks"),
        ({"split": "test"}, "split='test' is for generated tasks"),
        ({"invent": True}, "invent=True is for generated tasks"),
        ({"skills": ["awk"]}, "no task in|unknown skill"),
        ({"skill_mode": "both"}, "'single' or 'all'"),
    ],
)
def test_settings_of_the_generator_do_not_go_with_a_file(settings, problem, tmp_path):
    path = write(tmp_path / "dev.json", [MATCH, COUNT])
    with pytest.raises(SettingsError, match=problem):
        OSInteractionEnv(data=path, **settings)


def test_scripts_need_a_file_and_a_folder(tmp_path):
    with pytest.raises(SettingsError, match="give data"):
        OSInteractionEnv(scripts=tmp_path)
    with pytest.raises(DataError, match=r"scripts='.*nowhere': no such folder of scripts"):
        load_tasks(write(tmp_path / "dev.json", [MATCH]), tmp_path / "nowhere")


TEXTS = ("echo a", "touch '/srv/b c'\nls", "cat <<X\n$HOME\nX", 'echo "it\'s" | wc -l')


def draw_item(rng, folder):
    """Returns a script in one of AgentBench's shapes, and the script that it is."""
    source = rng.choice(TEXTS)
    ending, language = rng.choice([("sh", "bash"), ("py", "python"), ("cpp", "c++")])
    shape = rng.choice(["text", "code", "code and language", "file", "file and language"])
    if shape == "text":
        return source, Script(source)
    if shape.startswith("code"):
        named = {"language": language} if "language" in shape else {}
        return {"code": source, **named}, Script(source, language if named else "bash")
    name = f"scripts/{rng.randrange(10**9)}.{ending}"
    (folder / name).write_text(source)
    item = {"file": name}
    if "language" in shape:
        language = rng.choice(["bash", "python"])
        item["language"] = language
    return item, Script(source, language)


def draw_scripts(rng, folder):
    """Returns a script, or a list of them, and the scripts that it is."""
    if rng.random() < 0.5:
        item, script = draw_item(rng, folder)
        return item, [script]
    drawn = [draw_item(rng, folder) for _ in range(rng.randrange(1, 4))]
    return [item for item, _ in drawn], [script for _, script in drawn]


@pytest.mark.parametrize("seed", range(60))
def test_every_shape_that_agentbenchs_format_allows_loads(seed, tmp_path):
    rng = random.Random(seed)
    (tmp_path / "scripts").mkdir()
    setup, setup_scripts = draw_scripts(rng, tmp_path)
    checks, check_scripts = draw_scripts(rng, tmp_path)
    example, example_script = draw_item(rng, tmp_path)
    start, start_script = draw_item(rng, tmp_path)
    row = {"description": "Do it.", "create": {"local": "default", "init": setup}}
    row |= {"start": start, "labels": ["x"]}
    match, answer = rng.choice(
        [
            ("log", ExpectedAnswer("log")),
            ({"answer": "log", "strip": False}, ExpectedAnswer("log")),
            ({"regex": "l.g"}, ExpectedAnswer("l.g", "regex")),
        ]
    )
    has_match = rng.random() < 0.3
    row["evaluation"] = {"match": match} if has_match else {"check": checks, "example": example}
    data = rng.choice([row, [row], {"0": row}])
    path = tmp_path / rng.choice(["dev.json", "dev.jsonl"])
    write(path, row if path.suffix == ".jsonl" else data)
    (task,) = load_tasks(path, tmp_path)
    assert (task.task_id, task.instruction) == ("dev#0", "Do it.")
    assert task.start == start_script.to_command()
    if len(setup_scripts) == 1:
        assert task.setup == setup_scripts[0]
    else:
        words = [line for line in shlex.split(task.setup.source) if line not in ("||", "exit")]
        assert words == [
            word for script in setup_scripts for word in ("bash", "-c", script.to_command())
        ]
    if has_match:
        assert task.verdict == Verdict(answer=answer)
    else:
        assert (task.verdict.checks, task.gold) == (tuple(check_scripts), example_script)


def test_one_row_without_its_scripts_is_told_which_option_names_them(tmp_path):
    path = write(tmp_path / "dev.json", BY_FILE)
    with pytest.raises(
        DataError, match=r"no tasks in this file, since .*scripts= names the folder"
    ):
        OSInteractionEnv(data=path)


def test_set_up_scripts_of_a_list_run_in_turn_until_one_fails(any_sandbox, tmp_path):
    init = [
        {"code": "cd /srv; exit 0"},
        {"code": "open('/srv/a', 'w')", "language": "python"},
        "pwd >/srv/a",
    ]
    env = OSInteractionEnv(data=write(tmp_path / "dev.json", {**MATCH, "create": {"init": init}}))
    env.reset(seed=0)
    assert env.step(command_action("cat /srv/a"))[0] == "/root"
    env.close()
    init.insert(1, "exit 3")
    env = OSInteractionEnv(data=write(tmp_path / "dev.json", {**MATCH, "create": {"init": init}}))
    with pytest.raises(DataError, match="its set-up fails \\(exit status 3"):
        env.reset(seed=0)
    env.close()
