"""Generated OS tasks have the skills asked for, and are remade from their ids."""

import contextlib
import itertools
import re
import subprocess
import sys
from collections import Counter
from random import Random

import numpy as np
import pytest

from agentpeft.envs import SettingsError, Taskset, UnknownTaskError
from agentpeft.envs.os_interaction.generator.families import FAMILIES
from agentpeft.envs.os_interaction.generator.generator import OSGenerator
from agentpeft.envs.os_interaction.generator.scene import PHRASES, Scene
from agentpeft.envs.os_interaction.skills import SKILLS, check_skills, detect_skills
from agentpeft.envs.tasks.skill_generator import GeneratorOptions, NoTaskHereError

BY_HAND = {"exit", "sleep"}
"""Skills that gold commands may write into a file instead of running them."""


def blanks(text):
    return set(re.findall(r"(?<!{){(\w+)}", text))


@pytest.mark.parametrize("skill", SKILLS)
def test_a_single_skill_task_shows_that_skill_alone(skill):
    for task in Taskset.generate(OSGenerator([skill]), 30, seed=1):
        assert task.skills == (skill,)
        assert set(detect_skills(task.gold.source)) | BY_HAND >= {skill}
        assert set(detect_skills(task.gold.source)) <= {skill}


@pytest.mark.parametrize("skill", SKILLS)
def test_every_skill_has_several_families(skill):
    assert len([family for family in FAMILIES if skill in family.skills]) >= 3


@pytest.mark.parametrize("skill", SKILLS)
def test_a_task_for_two_skills_has_both_and_no_others(skill):
    for other in SKILLS:
        if other != skill:
            pair = check_skills([skill, other])
            task = OSGenerator(pair, skill_mode="all").draw(np.random.default_rng(2))
            assert task.skills == pair


def test_every_family_comes_up():
    texts = "".join(
        task.gold.source
        for source in (OSGenerator(max_phrasings=1), OSGenerator(skill_mode="all", num_skills=2))
        for task in Taskset.generate(source, 3000, seed=3)
    )
    for family in FAMILIES:
        longest = max(re.split(r"(?<!{){\w+}|\n", family.gold), key=len)
        assert longest.replace("{{", "{").replace("}}", "}") in texts, family.say


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: f"{family.say}: {family.gold}")
def test_every_family_has_words_for_all_blanks_and_no_others(family):
    for seed in range(100):
        with contextlib.suppress(NoTaskHereError):
            given, value = family.act(Scene(Random(seed), GeneratorOptions()))
            break
    known = set(given) if value is None else {*given, "out"}
    texts = (family.gold, *PHRASES[family.say])
    assert all(blanks(text) <= known for text in texts)
    assert set(given) <= set().union(*map(blanks, texts))


def test_each_thing_is_said_in_at_least_four_ways_that_use_the_same_words():
    for name, phrases in PHRASES.items():
        assert len(set(phrases)) >= 4, name
        assert len({frozenset(blanks(phrase)) for phrase in phrases}) == 1, name


def test_steps_go_on_with_what_earlier_ones_have_made():
    tasks = Taskset.generate(OSGenerator(["mkdir", "touch"], skill_mode="all"), 200, seed=4)
    reused = 0
    for task in tasks:
        made = set(re.findall(r"mkdir .*?(/\S+)$", task.gold.source, re.MULTILINE))
        reused += any(f"{path}/" in task.gold.source for path in made)
    assert reused >= 10


def test_a_step_is_said_in_its_place():
    task = OSGenerator(["mkdir", "wc"], skill_mode="all").get("mkdir+wc/1/5")
    assert [line.split()[0] for line in task.gold.source.split("\n")] in (
        ["mkdir", "wc"],
        ["wc", "mkdir"],
    )
    first = "Create" if task.gold.source.startswith("mkdir") else ("Answer", "Write")
    assert task.instruction.startswith(first)


def test_questions_and_orders_both_come_and_only_the_last_step_asks():
    tasks = Taskset.generate(OSGenerator(["wc", "touch"], skill_mode="all"), 200, seed=5)
    asking = [task for task in tasks if task.wants_answer]
    assert 20 < len(asking) < 180
    for task in asking:
        last = task.gold.source.split("\n")[-1]
        assert last.startswith("wc")
        assert ">" not in last
        assert task.verdict.answer.value.isdecimal()


def test_a_task_is_remade_from_its_id_in_another_process():
    ids = [task.task_id for task in Taskset.generate(OSGenerator(), 20, seed=6)]
    code = (
        "import sys; from agentpeft.envs.os_interaction.generator.generator import OSGenerator\n"
        "for i in sys.argv[1:]: print(OSGenerator().get(i))"
    )
    command = [sys.executable, "-c", code, *ids]
    texts = [
        subprocess.run(
            command, capture_output=True, text=True, check=True, env={"PYTHONHASHSEED": seed}
        ).stdout
        for seed in ("1", "2")
    ]
    expected = "".join(f"{OSGenerator().get(task_id)}\n" for task_id in ids)
    assert texts == [expected, expected]


def test_words_of_the_splits_have_nothing_in_common():
    used = {}
    for split in ("train", "test"):
        source = OSGenerator(skill_mode="all", num_skills=2, split=split)
        words = Counter()
        for task in Taskset.generate(source, 300, seed=7):
            words.update(re.findall(r"[a-z]+", task.setup.source))
            for state in (*task.verdict.state.files, *task.verdict.state.users):
                words.update(re.findall(r"[a-z]+", str(vars(state).values())))
        used[split] = set(words)
    pools = {word for pool in ("WORD", "NAME", "TEAM") for word in pool_words(pool)}
    assert len(used["train"] & pools) > 200
    assert len(used["test"] & pools) > 50
    assert not used["train"] & used["test"] & pools


def pool_words(pool):
    scene_words = set()
    rng = np.random.default_rng(0)
    for _ in range(60):
        scene = Scene(Random(int(rng.integers(2**31))), GeneratorOptions())
        scene_words.update(scene.word(pool) for _ in range(30))
    return scene_words


def test_invented_words_are_of_their_split_too():
    tasks = [
        OSGenerator(["touch"], split=split, invent=True).draw(np.random.default_rng(seed))
        for split in ("train", "test")
        for seed in range(50)
    ]
    names = [re.findall(r"/(\w+)\.", task.gold.source) for task in tasks]
    train, test = (set(itertools.chain(*part)) for part in (names[:50], names[50:]))
    assert len(train | test) > 90
    assert not train & test


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"skills": ["chmd"]}, "unknown skill 'chmd'; did you mean 'chmod'"),
        ({"skills": []}, "at least one skill"),
        ({"skill_mode": "some"}, "'single' or 'all'"),
        ({"num_skills": 2}, "needs skill_mode 'all'"),
        ({"skill_mode": "all", "num_skills": 30}, "num_skills=30 of 29 skills"),
        ({"max_phrasings": 0}, "max_phrasings must be an integer >= 1"),
        ({"split": "dev"}, "split must be"),
        ({"invent": 1}, "invent must be True or False"),
    ],
)
def test_settings_that_cannot_work_are_refused(settings, problem):
    with pytest.raises(SettingsError, match=problem):
        OSGenerator(**settings)


@pytest.mark.parametrize(
    "task_id", ["", "ls", "ls/all", "ls/all/x", "ls/0/1", "wc+ls/all/1", "lss/all/1", "ls/all;t/1"]
)
def test_ids_that_are_none_are_refused(task_id):
    with pytest.raises(UnknownTaskError, match="no generated task's id"):
        OSGenerator().get(task_id)


def test_all_pairs_of_options_survive_an_id():
    for limit, split, invent in itertools.product(
        (None, 3), (None, "train", "test"), (True, False)
    ):
        options = GeneratorOptions(limit, split, invent)
        assert GeneratorOptions.parse_id(str(options)) == options


def test_a_new_user_may_be_in_a_group_that_adduser_adds():
    for task in Taskset.generate(OSGenerator(["useradd"]), 40, seed=3):
        made = [user for user in task.verdict.state.users if user.groups is None]
        assert made, task.instruction


def test_a_curriculum_rises_in_skills():
    stream = OSGenerator.curriculum(0, tasks_per_stage=3, max_skills=3)
    assert [len(task.task_id.split("/")[0].split("+")) for task in stream] == [1] * 3 + [2] * 3 + [
        3
    ] * 3
