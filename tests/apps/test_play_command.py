"""`agentpeft play`: a person, the oracle and a policy at the same task."""

import json
import re
import subprocess
from contextlib import ExitStack

import pytest
from env_server import TOKEN, ask, env_server, session
from playwright.sync_api import sync_playwright
from terminal import CLI, interrupt, start_interruptible

from agentpeft.apps.lab.playing.episode_view import ShownTurn
from agentpeft.apps.lab.playing.play import read_game
from agentpeft.apps.lab.playing.typed_agent import is_unfinished, write_out
from agentpeft.envs.os_interaction.grading.state import State
from agentpeft.envs.os_interaction.tasks import OSTask, Verdict
from agentpeft.launch.cli import main

POLICY = "adapter (iteration 3)"
SUM = ["AgentPEFT/Arithmetic-v0", "num_digits=1", "max_turns=2", "invalid_ends=false"]


@pytest.fixture
def play(monkeypatch, tmp_path, capsys):
    """Returns the status and the output of the command after some lines were piped in."""

    def run(typed, *words):
        (tmp_path / "typed").write_text(typed, "utf-8")
        with (tmp_path / "typed").open() as lines:
            monkeypatch.setattr("sys.stdin", lines)
            status = main(["play", *map(str, words)])
        return status, capsys.readouterr().out

    return run


def test_a_person_and_the_oracle_play_the_same_task(play):
    status, shown = play("nothing\n77\n", *SUM, "--seed", "3")
    you, oracle = shown.split("the oracle:\n")
    assert status == 0 and "  task addition:0+4:plain  seed 3 " in you
    assert you.count("» nothing\n« Invalid: reply with the number alone.") == 2
    assert oracle.startswith("» 4\n« Correct.") and "success in 1 turn, return 1" in oracle
    by_id = play("nothing\n77\n", *SUM, "--task", "addition:0+4:plain")[1]
    assert by_id.split("\n")[1:] == shown.split("\n")[1:]


def test_statements_end_at_enter_and_go_on_after_a_backslash(play):
    typed = "SELECT 1 + \\\n1\nanswer [(3,)]\n"
    shown = play(typed, "AgentPEFT/DBBench-v0", "prompt=compact", "--seed", "3")[1]
    assert "» SELECT 1 + \\\n… 1\n« [(2,)]" in shown
    assert "```sql\nSELECT 1 + \n1\n```" in shown and "Final Answer: [(3,)]" in shown
    assert shown.rstrip().endswith("success in 2 turns, return 1")


def test_commands_are_dressed_and_what_is_dressed_stays():
    task = OSTask(task_id="t", instruction="i", verdict=Verdict(state=State()))
    assert write_out("ls -l", task) == "Act: bash\n```bash\nls -l\n```"
    assert write_out("answer 3 4", task) == "Act: answer(3 4)"
    assert write_out("finish", task) == "Act: finish"
    assert write_out("Act: finish", task) == "Act: finish"


def test_help_costs_no_turn(play):
    plain = play("nothing\n77\n", *SUM, "--seed", "3")[1]
    shown = play("?\nnothing\nhelp\n77\n", *SUM, "--seed", "3")[1]
    help_text = "(an action ends at Enter; "
    assert (plain.count(help_text), shown.count(help_text)) == (1, 3)
    assert plain.partition("the same task")[2] == shown.partition("the same task")[2]


@pytest.mark.parametrize(
    ("said", "shown"),
    [
        ("Action: Operation\n```sql\nSELECT 1\n```", "SELECT 1"),
        ("Act: bash\n```bash\nls |\n wc\n```", "ls |\n wc"),
        ("I think.\nAct: bash\n```bash\nls\n```", "I think.\nAct: bash\n```bash\nls\n```"),
        ("Action: Answer\nFinal Answer: 3", "Action: Answer\nFinal Answer: 3"),
    ],
)
def test_a_column_shows_the_statement_alone(said, shown):
    assert ShownTurn(said, "o", 0.5).unwrap() == ShownTurn(shown, "o", 0.5)


def test_a_block_ends_with_its_fence():
    assert is_unfinished(["Act: bash", "```bash"]) and is_unfinished(["```sql", "SELECT 1"])
    assert not is_unfinished(["```sql", "SELECT 1", "```"])


def test_the_end_of_the_input_leaves_and_shows_no_solution(play):
    status, shown = play("nothing\n", *SUM, "--seed", "3")
    assert status == 0 and shown.endswith("left; turns played: 1\n") and "oracle" not in shown


def test_a_policy_plays_beside_them(play, finished):
    status, shown = play("3\n4\n", finished, "--model", finished, "--seed", "3")
    assert status == 0 and "\nadapter (iteration 3):\n» " in shown
    assert shown.index("you:") < shown.index("the oracle:") < shown.index("adapter (iteration 3):")
    checkpoint = finished / "checkpoints/checkpoint-000001"
    words = [*SUM, "--model", checkpoint / "adapter", "--seed", "3"]
    assert "\nadapter (iteration 1):\n» " in play("3\n4\n", *words)[1]


def test_a_preset_is_played_as_it_is_evaluated():
    environment, _ = read_game(["arithmetic_add", "environment.kwargs.num_digits=2"])
    assert environment.kwargs["split"] == "test" and environment.kwargs["num_digits"] == 2


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["quickstrat"], "unknown config 'quickstrat'; did you mean 'quickstart'?"),
        (["AgentPEFT/Arithmatic-v0"], "unknown environment 'AgentPEFT/Arithmatic-v0'"),
        ([*SUM, "max_turns"], "after AgentPEFT/Arithmetic-v0 expected KEY=VALUE, got"),
        ([*SUM, "num_digit=2"], "unknown setting 'num_digit'"),
        ([*SUM, "--seed", "-1"], "--seed must be >= 0, got -1"),
        ([*SUM, "--task", "nothing"], "nothing"),
        ([*SUM, "--model", "nowhere"], "nowhere is no adapter, whole model, checkpoint or run"),
    ],
)
def test_wrong_input_is_one_line(words, message, capsys):
    assert main(["play", *words]) == 2
    error = capsys.readouterr().err
    assert error.startswith("error: ") and message in error and error.count("\n") == 1


@pytest.mark.slow
@pytest.mark.parametrize(
    ("key", "status", "said"), [("D", 0, "left; turns played: 1"), ("C", 130, "interrupted")]
)
def test_ctrl_c_and_ctrl_d_leave_a_terminal(key, status, said, open_terminal):
    terminal = open_terminal("play", *SUM, "--seed", "3")
    terminal.read_until("leaves)", 120)
    terminal.type("nothing\n")
    terminal.read_until("number alone.\r\nturn 2 of 2 » ")
    if key == "D":
        terminal.type("\x04")
    else:
        terminal.interrupt()
    assert said in terminal.read_until(None)
    assert terminal.process.wait(10) == status


@pytest.mark.slow
def test_an_interrupted_player_leaves_no_sandbox(any_sandbox, nothing_left, cache_folder):
    command = [*CLI, "play", "AgentPEFT/OSInteraction-v0", "--seed", "3"]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    player = start_interruptible(command, **pipes)
    player.stdin.write("echo he''re\n")
    player.stdin.flush()
    while "here" not in player.stdout.readline():
        pass
    interrupt(player)
    assert player.wait() == 130
    player.communicate()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "names"),
    [
        (["--allow-oracle"], ["the oracle", "adapter (iteration 3)"]),
        ([], ["adapter (iteration 3)"]),
    ],
)
def test_a_policy_plays_on_a_server_too(words, names, finished, play):
    _, shown = play("3\n4\n", *SUM, "--model", finished, "--seed", "3")
    shown_turns = re.findall(r"^» (.*)$", shown.partition("adapter (iteration 3):\n")[2], re.M)
    expected = ["" if turn == "(nothing)" else turn for turn in shown_turns]
    ask_others = {"text": "", "metadata": {"ask": "others", "task_id": "addition:0+4:plain"}}
    with ExitStack() as stack:
        server = stack.enter_context(env_server(*SUM, "--model", str(finished), *words))
        players = [stack.enter_context(session(server)) for _ in range(3)]
        for player in players:
            ask(player, "reset", task_id="addition:0+4:plain")
            assert "just played" in ask(player, "step", **ask_others)["data"]["message"]
            for is_over in (False, True):
                assert ask(player, "step", text="nothing")["data"]["done"] is is_over
            player.send(json.dumps({"type": "step", "data": ask_others}))
        for player in players:  # all at once
            episodes = json.loads(player.recv(60))["data"]["metadata"]["episodes"]
            assert [episode["player"] for episode in episodes] == names
            assert [turn["said"] for turn in episodes[-1]["turns"]] == expected
        ask_others["metadata"]["task_id"] = "addition:0+5:plain"
        assert "just played" in ask(players[0], "step", **ask_others)["data"]["message"]
        assert ask(players[0], "reset", seed=1)["type"] == "observation"


@pytest.mark.slow
@pytest.mark.long
def test_a_server_with_a_policy_ends_without_a_word(finished, tmp_path):
    with (
        (tmp_path / "errors").open("w") as errors,
        env_server(*SUM, "--model", str(finished), errors=errors),
    ):
        pass
    assert (tmp_path / "errors").read_text() == ""


@pytest.mark.slow
def test_the_servers_page_shows_three_players_side_by_side(finished, chromium):
    words = [*SUM, "--allow-oracle", "--model", str(finished)]
    with env_server(*words) as server, sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        page = browser.new_page()
        page.goto(server.url)
        page.fill("#token", TOKEN)
        page.press("#token", "Tab")
        page.fill("#seed", "3")
        page.click("#begin button")
        for word in ("", "77"):
            page.wait_for_selector("#text:enabled")
            page.fill("#text", word)
            page.click("#send")
        assert page.locator("#transcript p.action").all_inner_texts() == ["(nothing)", "77"]
        page.wait_for_selector("h2:text-is('adapter (iteration 3)')")
        columns = page.locator("#players section")
        names = [text.splitlines()[0] for text in columns.all_inner_texts()]
        assert names == ["You", "the oracle", "adapter (iteration 3)"]
        boxes = [columns.nth(place).bounding_box() for place in range(3)]
        lefts = [box["x"] for box in boxes]
        assert lefts == sorted(set(lefts)) and len({box["y"] for box in boxes}) == 1
        browser.close()
