import inspect
import json
import pickle
import re
import tomllib

import pytest
from word_problem_files import write_word_problems

from agentpeft.envs.core.errors import SettingsError
from agentpeft.policies.checkpointing import checkpoints
from agentpeft.policies.checkpointing.checkpoints import write_config
from agentpeft.policies.checkpointing.reading import read_config
from agentpeft.policies.settings.algorithm_config import (
    AlgorithmConfig,
    ModelKeywords,
    RunKeywords,
)
from agentpeft.policies.settings.config import SECTIONS, Settings, setting_names
from agentpeft.policies.settings.retired import RETIRED
from agentpeft.policies.settings.toml import read_toml, with_overrides
from agentpeft.policies.settings.wrong_settings import OTHER_NAMES


def settings(*overrides):
    return Settings(**with_overrides({}, overrides))


def test_values_are_read_as_toml_and_bare_words_as_strings():
    got = settings(
        "training.lr=1e-3",
        "training.algorithm=rloo",
        "lora.target_modules=['q_proj', 'v_proj']",
        "environment.kwargs.reward.success=2",
        "seed=7",
    )
    assert (got.training.lr, got.training.algorithm, got.seed) == (0.001, "rloo", 7)
    assert got.lora.target_modules == ("q_proj", "v_proj")
    assert got.environment.kwargs == {"reward": {"success": 2}}


def test_an_integer_is_a_number_too():
    assert settings("training.lr=1", "lora.alpha=8").training.lr == 1.0


def test_an_empty_override_goes_back_to_the_default():
    values = {"training": {"clip_range": 0.1}}
    assert Settings(**with_overrides(values, ["training.clip_range="])).training.clip_range is None
    assert values == {"training": {"clip_range": 0.1}}


def test_a_file_is_read_and_overridden(tmp_path):
    path = tmp_path / "run.toml"
    path.write_text('seed = 3\n[training]\nlr = 1e-2\n[environment]\nid = "AgentPEFT/GSM8K-v0"\n')
    got = Settings.from_toml(path, ["training.lr=1e-3"])
    assert (got.seed, got.training.lr, got.environment.id) == (3, 0.001, "AgentPEFT/GSM8K-v0")


def test_a_file_builds_on_another(tmp_path):
    base = """seed = 3
    [environment]
    id = "AgentPEFT/Arithmetic-v0"
    kwargs = {num_digits = 3, format = "reversed"}
    [training]
    lr = 1e-2
    group_size = 4"""
    (tmp_path / "base.toml").write_text(base)
    (tmp_path / "digits.toml").write_text(
        'base = "base.toml"\ntraining = {lr = 1e-3}\nenvironment = {kwargs = {num_digits = 5}}\n'
    )
    (tmp_path / "other.toml").write_text(
        'base = "digits.toml"\n'
        'environment = {id = "AgentPEFT/GSM8K-v0", kwargs = {max_turns = 2}}\n'
    )
    got = Settings.from_toml(tmp_path / "digits.toml", ["seed=4"])
    assert (got.seed, got.training.lr, got.training.group_size) == (4, 1e-3, 4)
    assert got.environment.kwargs == {"num_digits": 5, "format": "reversed"}
    other = Settings.from_toml(tmp_path / "other.toml")
    assert other.environment.kwargs == {"max_turns": 2}  # those of another one are no use to it
    assert other.training.lr == 1e-3


BUILT_IN = """
base = "sizes.toml"
tiny = {num_layers = 2}
warm_start = {num_steps = 90, promote_at = 0.5, env_kwargs = [{}, {num_digits = 2}]}
environment = {kwargs = {num_digits = 3, prompt = "compact"}}
training = {lr = 1e-2}
pretrained = {base = "any.toml", environment.kwargs.prompt = "full"}
"""


def test_another_model_takes_the_settings_for_pretrained_ones_of_a_base(tmp_path):
    (tmp_path / "sizes.toml").write_text("training = {group_size = 4}")
    (tmp_path / "any.toml").write_text(
        'model = {name = "of/any"}\nexperiment = "any"\ntraining = {lr = 1e-4, num_groups = 2}'
    )
    (tmp_path / "built_in.toml").write_text(BUILT_IN)
    (tmp_path / "mine.toml").write_text('base = "built_in.toml"\ntraining = {num_groups = 3}')
    mine = tmp_path / "mine.toml"
    built_in = Settings.from_toml(mine)
    assert (built_in.tiny.num_layers, built_in.warm_start.num_steps) == (2, 90)
    assert (built_in.training.lr, built_in.training.num_groups) == (1e-2, 3)
    assert built_in.environment.kwargs == {"num_digits": 3, "prompt": "compact"}
    assert Settings.from_toml(mine, ["model.name=tiny"]) == built_in
    words = ["model.name=a/b", "environment.kwargs.max_turns=2"]
    other = Settings.from_toml(mine, words)
    mine.write_text(mine.read_text() + '\n[model]\nname = "a/b"')
    assert Settings.from_toml(mine, words[1:]) == other
    assert Settings(**tomllib.loads(other.to_toml())) == other
    assert (other.model.name, other.experiment) == ("a/b", "any")
    assert not (other.tiny.changed() or other.warm_start.changed())
    training = other.training
    assert (training.lr, training.num_groups, training.group_size) == (1e-4, 3, 4)
    assert other.environment.kwargs == {"num_digits": 3, "prompt": "full", "max_turns": 2}
    with pytest.raises(SettingsError, match=r"leave tiny.num_layers out, as in agentpeft train"):
        Settings.from_toml(mine, ["tiny.num_layers=3"])


def test_a_preset_s_settings_for_pretrained_models_are_a_table(tmp_path):
    path = tmp_path / "own.toml"
    path.write_text("pretrained = 3")
    with pytest.raises(SettingsError, match="pretrained must be a table, got 3"):
        Settings.from_toml(path)


SOURCES = """
[[environment]]
name = "sums"
id = "AgentPEFT/Arithmetic-v0"
weight = 3
kwargs = {num_digits = 2, reward = {success = 2.0}}
[[environment]]
name = "stories"
id = "AgentPEFT/GSM8K-v0"
"""


def test_environment_tables_are_the_sources_of_a_mixture(tmp_path):
    path = tmp_path / "own.toml"
    path.write_text("seed = 3\n" + SOURCES)
    got = Settings.from_toml(path, ["environment.kwargs.split=train"]).environment
    sums = {"num_digits": 2, "reward": {"success": 2.0}}
    assert got.id == "AgentPEFT/Mixture-v0"
    assert got.kwargs == {
        "sources": [
            {"name": "sums", "id": "AgentPEFT/Arithmetic-v0", "kwargs": sums},
            {"name": "stories", "id": "AgentPEFT/GSM8K-v0"},
        ],
        "weights": [3, 1],
        "split": "train",
    }
    path.write_text(SOURCES.replace("weight = 3\n", ""))
    assert "weights" not in Settings.from_toml(path).environment.kwargs
    (tmp_path / "below.toml").write_text("environment = {kwargs = {num_digits = 9}}")
    path.write_text('base = "below.toml"\n' + SOURCES)
    assert Settings.from_toml(path).environment == got.model_copy(
        update={"kwargs": {name: got.kwargs[name] for name in ("sources", "weights")}}
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (SOURCES.replace("weight", "wait"), "table 0 has an unknown key 'wait'; did you mean"),
        ("environment = [3]", "environment 0 must be a table, got 3"),
    ],
)
def test_an_environment_table_that_cannot_be_is_named(text, message, tmp_path):
    path = tmp_path / "own.toml"
    path.write_text(text)
    with pytest.raises(SettingsError) as error:
        Settings.from_toml(path)
    assert message in str(error.value)


@pytest.mark.parametrize(
    ("base", "message"),
    [
        ("own.toml", "leads back to own.toml"),
        ("second.toml", "leads back to own.toml"),
        ("missing.toml", "missing.toml"),
        ("no_preset", "no config has the name base = 'no_preset'; did you mean 'a_preset'?"),
        (3, "base must be a config's name or file, got 3"),
        ("", "own.toml: base"),
    ],
)
def test_a_base_that_cannot_be_is_named(base, message, tmp_path):
    (tmp_path / "own.toml").write_text(f"base = {json.dumps(base)}\n")
    (tmp_path / "second.toml").write_text('base = "own.toml"\n')
    (tmp_path / "presets").mkdir()
    (tmp_path / "presets" / "a_preset.toml").write_text("seed = 3\n")
    with pytest.raises(SettingsError) as error:
        read_toml(tmp_path / "own.toml", presets=tmp_path / "presets")
    assert message in str(error.value)


@pytest.mark.parametrize(
    ("below", "above", "expected"),
    [
        ("{a = 1, b = 1}", "{b = 2}", {"a": 1, "b": 2}),
        ("{a = 1}", "[{b = 2}, {c = 3}]", ({"a": 1, "b": 2}, {"c": 3})),
        ("[{a = 1}, {c = 3}]", "{b = 2}", ({"a": 1, "b": 2}, {"c": 3})),
        ("[{a = 1}, {c = 3}]", "[{b = 2}, {d = 4}]", ({"b": 2}, {"d": 4})),
        ("{a = 1}", "[1]", None),
        ("[1]", "{b = 2}", {"b": 2}),
    ],
)
def test_keywords_of_a_base_are_those_of_a_warm_start_s_first_stage(
    below, above, expected, tmp_path
):
    (tmp_path / "below.toml").write_text(f"warm_start = {{num_steps = 9, env_kwargs = {below}}}")
    path = tmp_path / "own.toml"
    path.write_text(f'base = "below.toml"\nwarm_start = {{env_kwargs = {above}}}')
    if expected is None:
        with pytest.raises(SettingsError, match=r"warm_start.env_kwargs: .*valid dictionary"):
            Settings.from_toml(path)
    else:
        assert Settings.from_toml(path).warm_start.env_kwargs == expected


def test_a_keyword_is_overridden_in_the_first_stage_of_a_warm_start():
    got = settings(
        "warm_start.num_steps=9", "warm_start.env_kwargs=[{a=1},{b=2}]", "warm_start.env_kwargs.c=3"
    )
    assert got.warm_start.env_kwargs == ({"a": 1, "c": 3}, {"b": 2})


def test_settings_survive_toml_and_pickle():
    got = settings(
        'experiment="a.b-c"',
        "lora.target_modules=['q_proj']",
        "environment.kwargs.x={'a b' = [1, 2.5], c = \"ü\\n\\u0001\"}",
        "training.kl_coeff=0.1",
    )
    assert Settings(**tomllib.loads(got.to_toml())) == got
    assert pickle.loads(pickle.dumps(got)) == got


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("training.lrr=1", "unknown setting 'training.lrr'; did you mean 'training.lr'?"),
        ("training.group_sise=2", "did you mean 'training.group_size'?"),
        ("sampling.temperature=1", "did you mean 'env_runners.temperature'?"),
        ("sead=1", "unknown setting 'sead'; did you mean 'seed'?"),
        ("training=5", "unknown setting 'training': it is a section"),
        ("trainning=5", "unknown setting 'trainning'; did you mean 'training'?"),
        ("model.name=tinny", "model.name 'tinny' is no folder; did you mean 'tiny'?"),
        ("seed.x=5", "unknown setting 'seed.x'"),
        (
            "training.weight_decay=0.1",
            "training.weight_decay is no longer a setting: AdamW's is 0",
        ),
        ("training.x=", "unknown setting 'training.x'"),
        ("training.lr", "written section.name=value, got 'training.lr'"),
        ("training.lr=fast", "training.lr: input should be a valid number, got 'fast'"),
        ("training.lr=true", "training.lr: input should be a valid number, got True"),
        ("training.lr=inf", "training.lr: input should be a finite number, got inf"),
        ("training.num_groups=2.5", "training.num_groups: input should be a valid integer"),
        ("training.algorithm=gpro", "'ppo', 'a2c', 'distill' or 'sft', got 'gpro'"),
        ("lora.target_modules=3", "lora.target_modules: input should be"),
        ("experiment=../x", "experiment: string should match pattern"),
        ("training.dynamic_sampling=0", "should be greater than or equal to 1, got 0"),
        ("training.clip_range=[0.2, 0]", "training.clip_range: input should be greater than 0"),
        ("warm_start.env_kwargs=[1]", "warm_start.env_kwargs: input should be a valid dictionary"),
    ],
)
def test_bad_settings_are_one_clear_line(override, message):
    with pytest.raises(SettingsError) as error:
        settings(override)
    assert message in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("name", RETIRED)
def test_a_name_that_was_a_setting_is_answered_with_what_to_do_instead(name):
    with pytest.raises(SettingsError) as error:
        settings(f"{name}=1")
    assert str(error.value) == f"{name} is no longer a setting: {RETIRED[name]}"
    section, _, key = name.partition(".")
    with pytest.raises(SettingsError, match="is no longer a setting"):
        Settings(**{section: {key: 1}})


@pytest.mark.parametrize("name", OTHER_NAMES)
def test_a_name_of_another_library_is_answered_with_ours(name):
    with pytest.raises(SettingsError) as error:
        settings(f"trainer.{name}=1")
    assert str(error.value) == f"unknown setting 'trainer.{name}': here it is {OTHER_NAMES[name]}"
    ours = OTHER_NAMES[name].split(".")
    assert ".".join(ours[:2]) in setting_names()
    taken = {known.rpartition(".")[2] for known in setting_names()} - {"batch_size"}
    assert name not in taken  # which is suggested by itself, whatever the section


def test_the_settings_that_replaced_others_are_there():
    sections = "|".join({name.partition(".")[0] for name in setting_names() if "." in name})
    named = re.findall(rf"\b(?:{sections})\.\w+", " ".join(RETIRED.values()))
    assert set(named) <= {*setting_names()}
    assert not RETIRED.keys() & {*setting_names()}


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ("training.group_size=1", "training.group_size must be >= 2"),
        ("training.group_size=1 training.algorithm=rloo", "training.group_size must be >= 2"),
        (
            "training.group_size=1 training.algorithm=ppo training.dynamic_sampling=true",
            "must be >= 2",
        ),
        ("max_adapter_lag=1 env_runners.num_env_runners=0", "serial mode"),
        ("max_adapter_lag=1 deterministic=true", "deterministic runs"),
        ("max_adapter_lag=1 training.algorithm=sft", "algorithm 'sft' cannot"),
        ("training.algorithm=reinforce training.num_epochs=2", "has no ratio"),
        ("training.algorithm=rloo training.num_epochs=2", "has no ratio"),
        ("training.algorithm=a2c training.num_epochs=3", "has no ratio"),
        ("deterministic=true learners.num_gpus_per_learner=1", "on CPUs"),
        ("env_runners.serving=native env_runners.engine=scripted", "effect with engine 'scripted'"),
        ("env_runners.kv_cache_gib=2", "no effect with engine 'transformers'"),
        ("env_runners.engine=vllm deterministic=true", "need env_runners.engine = 'transformers'"),
        ("env_runners.num_gpus_per_env_runner=2", "engine 'transformers' computes on one GPU"),
        ("env_runners.engine=vllm env_runners.num_gpus_per_env_runner=1.5", "must be whole above"),
        (
            "env_runners.engine=vllm env_runners.serving=native lora.rank=0 training.algorithm=sft",
            "needs lora.rank >= 1",
        ),
        ("env_runners.engine=vllm env_runners.temperature=0.005", "taken for 0.01 by vLLM"),
        ("model.dtype=nf4", "than 'tiny'"),
        ("training.clip_range=[0.3,0.2]", "training.clip_range [0.3, 0.2]: the upper must be >="),
        ("training.clip_range=0.3 training.algorithm=rloo", "for grpo, dr_grpo, gspo, cispo, ppo"),
        (
            "lora.orthogonal_to=['a'] lora.rank=0 training.algorithm=sft",
            "no effect with lora.rank = 0",
        ),
        ("evaluation.env_kwargs.partial_credit=0.5", "are for training alone"),
        ("evaluation.env_kwargs.reward.turn_reward_fn=m:f", "are for training alone"),
        ("training.algorithm=distill", "set training.teacher"),
        ("training.shuffle_rewards=true training.teacher=a", "out of the control"),
        ("training.dynamic_sampling=true training.teacher=a", "would drop the groups"),
        ("training.algorithm=raft training.num_epochs=2 training.teacher=a", "has no ratio"),
        ("training.critic=shared", "algorithm 'grpo' (it is for ppo, a2c)"),
        ("training.algorithm=ppo training.gamma=0.9", "have no effect without a critic"),
        ("training.algorithm=ppo training.lambda_=0.9", "have no effect without a critic"),
        ("training.algorithm=sft training.group_size=4", "group_size has no effect"),
        ("training.num_iterations=5 training.num_warmup_iterations=5", "must be below"),
        ("env_runners.max_new_tokens=1024", "leaves no room for a prompt"),
        ("model.name=a/b env_runners.max_context_tokens=256", "leaves no room for a prompt"),
        (
            "evaluation.samples_per_task=4 env_runners.temperature=0 training.algorithm=sft",
            "equal samples",
        ),
        ("evaluation.interval=5 evaluation.num_tasks=0", "has no effect with"),
        (
            "environment.kwargs.sources=[{name='a',id='AgentPEFT/GSM8K-v0',kwargs={data='b.jsonl'}}]",
            "would play the training file 'b.jsonl'",
        ),
        ("environment.kwargs.data=a.jsonl", "would play the training file 'a.jsonl'"),
        ("warm_start.num_steps=4 warm_start.env_kwargs=[]", "is an empty list"),
        ("warm_start.num_steps=1 warm_start.env_kwargs=[{},{}]", "is 1, fewer than the 2 stages"),
        ("warm_start.num_steps=4 warm_start.env_kwargs=[{},{split='test'}]", "'split' may not"),
        ("warm_start.num_steps=4 warm_start.promote_at=0.5", "for the stages of the tiny"),
        (
            "warm_start.num_steps=16 warm_start.promote_at=0.5 warm_start.env_kwargs=[{},{}]",
            "no effect on stages of at most eight",
        ),
        (
            "warm_start.num_steps=4 training.chats=c warm_start.env_kwargs=[{},{}]",
            "not of",
        ),
        ("env_runners.temperature=0", "RL needs > 0"),
        ("environment.kwargs.adaptive=true", "curriculum.stages"),
        ("evaluation.env_kwargs.adaptive=true", "curriculum.stages"),
        (
            "lora.rank=0 training.algorithm=ppo training.critic=separate",
            "lora.rank = 0 trains all weights: set it to 'shared'",
        ),
        ("model.adapter=a lora.rank=0 training.algorithm=sft", "must be >= 1"),
        ("model.name=a/b tiny.num_layers=2", "describes the built-in model"),
        ("tiny.hidden_size=30", "tiny.hidden_size: input should be a multiple of 8, got 30"),
        ("environment.id=AgentPEFT/DBBnch-v0", "did you mean 'AgentPEFT/DBBench-v0'?"),
        ("environment.id=AgentPEFT/Nope-v0", "; known: AgentPEFT/Arithmetic-v0, "),
        ("environment.id=Nope-v0", "; known: AgentPEFT/Arithmetic-v0, "),
        ("environment.id=CartPole-v9", "did you mean 'CartPole-v1'?"),
        ("environment.id=no_such_module:Env-v0", "No module named 'no_such_module'"),
    ],
)
def test_contradictions_are_refused_with_one_message(overrides, message):
    with pytest.raises(SettingsError) as error:
        settings(*overrides.split())
    assert message in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("trained", "evaluated"),
    [
        ("'a.jsonl'", "'./a.jsonl'"),
        ("'link.jsonl'", "'~/a.jsonl'"),
        ("{index='index.json'}", "{tasks='./entry_dict.json', index='~/index.json'}"),
        ("{tasks='entry_dict.json', index='./index.json'}", "{index='index.json'}"),
    ],
)
def test_evaluation_on_the_training_file_is_refused_however_it_is_spelt(
    trained, evaluated, tmp_path, monkeypatch
):
    for name in ("a.jsonl", "entry_dict.json", "index.json"):
        (tmp_path / name).touch()
    (tmp_path / "link.jsonl").symlink_to("a.jsonl")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    both = [f"environment.kwargs.data={trained}", f"evaluation.env_kwargs.data={evaluated}"]
    with pytest.raises(SettingsError, match="would play the training file"):
        settings(*both)
    settings(*both, "evaluation.env_kwargs.split=test")
    settings(both[0], "evaluation.env_kwargs.data={index='other.json'}")
    settings(both[0], "evaluation.env_kwargs.data=hub")


def test_files_that_cannot_be_read_are_named(tmp_path):
    with pytest.raises(SettingsError, match=r"missing\.toml"):
        Settings.from_toml(tmp_path / "missing.toml")
    (tmp_path / "bad.toml").write_text("a = = b")
    with pytest.raises(SettingsError, match=r"bad\.toml"):
        Settings.from_toml(tmp_path / "bad.toml")


def test_the_fluent_config_gives_the_same_settings():
    config = (
        AlgorithmConfig()
        .run(experiment="try", seed=2)
        .environment("AgentPEFT/Arithmetic-v0", max_turns=2)
        .training(lr=1)
        .training(algorithm="rloo")
        .env_runners(num_env_runners=0)
    )
    overrides = (
        "experiment=try seed=2 environment.kwargs.max_turns=2 training.lr=1 "
        "training.algorithm=rloo env_runners.num_env_runners=0"
    )
    assert config.to_settings() == settings(*overrides.split())


def test_every_section_has_its_method():
    sections = {name.partition(".")[0] for name in setting_names() if "." in name}
    assert sections <= set(vars(AlgorithmConfig))
    for name in sections - {"environment", "model"}:
        keywords = set(inspect.signature(vars(AlgorithmConfig)[name]).parameters) - {"self"}
        assert keywords == set(SECTIONS[name].model_fields)
    assert set(ModelKeywords.__annotations__) | {"name"} == set(SECTIONS["model"].model_fields)
    assert set(RunKeywords.__annotations__) == set(Settings.model_fields) - set(SECTIONS)


@pytest.mark.parametrize(("section", "name"), [("training", "lrr"), ("run", "sead")])
def test_an_unknown_keyword_is_an_error_at_once(section, name):
    with pytest.raises(SettingsError, match="did you mean"):
        vars(AlgorithmConfig)[section](AlgorithmConfig(), **{name: 1})


@pytest.mark.parametrize(
    ("section", "values", "message"),
    [
        ("training", {"lr": -1}, "training.lr: input should be greater than 0, got -1"),
        ("run", {"seed": "one"}, "seed: input should be a valid integer, got 'one'"),
        ("model", {"name": "tiny", "dtype": "half"}, "model.dtype: input should be 'auto'"),
        ("environment", {"env_id": "Nothing-v0"}, "unknown environment 'Nothing-v0'"),
    ],
)
def test_a_wrong_value_is_an_error_at_once_and_changes_nothing(section, values, message):
    config = AlgorithmConfig()
    with pytest.raises(SettingsError, match=message):
        vars(AlgorithmConfig)[section](config, **values)
    assert config.to_settings() == Settings()


def test_a_run_from_python_leaves_its_settings_for_the_commands(tmp_path):
    config = AlgorithmConfig().env_runners(num_env_runners=0).tiny(hidden_size=32, num_layers=1)
    with config.build_algo(tmp_path / "run"):
        pass
    assert Settings.from_toml(tmp_path / "run" / "config.toml") == config.to_settings()


def test_a_run_evaluates_each_task_of_a_file_that_has_fewer_once(tmp_path, caplog):
    caplog.set_level("INFO")
    for name in ("train", "test"):
        write_word_problems(tmp_path / f"{name}.jsonl", 5)
    with (tmp_path / "train.jsonl").open("a", encoding="utf-8") as file:
        file.write("\n")  # another file
    config = AlgorithmConfig().env_runners(num_env_runners=0, max_new_tokens=4, engine="scripted")
    config.tiny(hidden_size=32, num_layers=1).warm_start(num_steps=0)
    config.environment("AgentPEFT/GSM8K-v0", data=str(tmp_path / "train.jsonl"))
    config.evaluation(num_tasks=40, env_kwargs={"data": str(tmp_path / "test.jsonl")})
    with config.build_algo(tmp_path / "run") as algorithm:
        metrics = algorithm.evaluate()
    assert metrics["num_episodes"] == 5
    assert "evaluation: 5 of num_tasks = 40, as there are no more tasks" in caplog.text
    assert read_config(tmp_path / "run").evaluation.num_tasks == 40


def test_runs_that_begin_in_one_second_have_folders_of_their_own(tmp_path, monkeypatch):
    monkeypatch.setattr(checkpoints.time, "strftime", lambda _: "20260101-000000")
    config = AlgorithmConfig().env_runners(num_env_runners=0).tiny(hidden_size=32, num_layers=1)
    config.output(dir=str(tmp_path))
    with config.build_algo() as one, config.build_algo() as other:
        names = [algorithm.run_dir.name for algorithm in (one, other)]
    assert names == ["20260101-000000", "20260101-000000-2"]
    (tmp_path / "file").write_text("", "utf-8")
    with pytest.raises(SettingsError, match="cannot write"):
        config.output(dir=str(tmp_path / "file")).build_algo()


def test_modules_lie_beside_the_file_and_a_run_says_where(tmp_path):
    code = "from gymnasium import register\nregister('Beside-v0', 'agentpeft.envs:TextEnv')\n"
    (tmp_path / "lies_beside.py").write_text(code, "utf-8")
    (tmp_path / "mine.toml").write_text("environment = {id = 'lies_beside:Beside-v0'}", "utf-8")
    with pytest.raises(SettingsError, match=r"put lies_beside\.py into the current folder or"):
        settings("environment.id=lies_beside:Beside-v0")
    write_config(tmp_path, Settings.from_toml(tmp_path / "mine.toml"))
    note = (tmp_path / "config.toml").read_text("utf-8").splitlines()[2]
    assert note.startswith("# modules: [") and str(tmp_path) in note
    assert read_config(tmp_path).environment.id == "lies_beside:Beside-v0"
