"""The page about a run: its numbers, and what a real browser shows of it."""

import itertools
import json
import re

import numpy as np
import pytest
from newcomer import RUN
from playwright.sync_api import sync_playwright

from agentpeft.launch.report import main
from agentpeft.launch.reporting.plots import find_constants, make_plots, smooth
from agentpeft.launch.reporting.report_episodes import read_episodes, thin
from agentpeft.launch.reporting.run_data import read_rows, read_run

INJECTED = "</script><script>document.title = 'injected'</script><b>"


def write_rows(path, rows):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def make_metrics(step):
    return {"train/step": step, "train/accuracy": step / 10, "train/policy_loss": None}


def make_episode(iteration, sample, text="hm", group_id=0):
    return {
        "iteration": iteration, "group_id": group_id, "sample": sample, "task_id": "t",
        "skills": ["s"], "adapter_version": iteration, "outcome": "failure",
        "episode_return": 0.5, "messages": [["user", "Go."], ["assistant", text], ["user", "No."]],
    }  # fmt: skip


def make_tokens(iteration, sample, group_id=0):
    return {
        "iteration": iteration, "group_id": group_id, "sample": sample, "adapter_version": 7,
        "prompt": INJECTED, "tokens": ["a", "b\n", "c"], "loss_mask": [1, 0, 1],
        "advantages": [2.0, -1.0], "ratios": [2.0, 0.5],
    }  # fmt: skip


@pytest.fixture
def run_dir(tmp_path):
    """A run by hand, of one iteration, with two episodes, one of them token by token."""
    folder = tmp_path / "by_hand"
    write_rows(folder / "metrics.jsonl", [make_metrics(0), make_metrics(1)])
    write_rows(folder / "sessions" / "train.jsonl", [make_episode(0, 0), make_episode(0, 1)])
    write_rows(folder / "sessions" / "tokens.jsonl", [make_tokens(0, 1)])
    evaluated = [make_episode(i, 0, text=f"after {i} {INJECTED}") for i in range(3)]
    write_rows(folder / "sessions" / "eval.jsonl", evaluated)
    return folder


@pytest.fixture
def open_page(chromium):
    """Opens files in a headless browser without a network; a complaint of the console fails."""
    complaints = []
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        page = browser.new_context(offline=True).new_page()
        page.on("console", lambda message: complaints.append(message.text))
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.on("request", lambda request: complaints.append(request.url))

        def visit(path):
            page.goto(path.as_uri())
            assert complaints == [path.as_uri()]
            return page

        yield visit
        browser.close()
    assert len(complaints) == 1


def colour_of(page, text):
    span = page.locator(".tokens span", has_text=re.compile(f"^{text}"))
    return span.first.evaluate("node => getComputedStyle(node).backgroundColor")


def assert_plots_are_seen(page):
    for name in ("success", "gradient", "seconds", "skills"):
        box = page.locator(f"#plot-{name} svg").bounding_box()
        assert box["width"] > 200 and box["height"] > 50


def test_running_means_do_not_start_at_zero():
    assert smooth([1.0, 2.0], 0.5) == [1.0, pytest.approx(2.5 / 1.5)]
    assert smooth([3.0, 1.0, 2.0], 0.0) == [3.0, 1.0, 2.0]
    values = np.random.default_rng(0).normal(size=50).tolist()
    weights = 0.9 ** np.arange(50)[::-1]
    assert smooth(values, 0.9)[-1] == pytest.approx(np.average(values, weights=weights))


def write_curves(folder, **metrics):
    """Writes a run of which each metric has a value for each iteration; returns what is read."""
    rows = zip(*metrics.values(), strict=True)
    names = [name.replace("__", "/") for name in metrics]
    write_rows(
        folder / "metrics.jsonl",
        [{"train/step": i, **dict(zip(names, row, strict=True))} for i, row in enumerate(rows, 1)],
    )
    return read_run(folder)


def drawn(figure, line=-1):
    return figure.axes[0].lines[line].get_ydata().tolist()


def test_curves_are_what_they_say(tmp_path):
    run = write_curves(
        tmp_path,
        train__accuracy=[0.0, 0.5, 1.0],
        train__lr=[3.0, 2.0, 1.0],
        time__total_s=[1, 2, 3],
    )
    figures = make_plots([run], smoothing=0.5)
    assert drawn(figures["learning_rate"]) == [3.0, 2.0, 1.0]  # a schedule is never smoothed
    assert drawn(figures["seconds"]) == smooth([1.0, 2.0, 3.0], 0.5)
    for figure in figures.values():
        assert all(tick == int(tick) for tick in figure.axes[0].xaxis.get_major_locator()())


def test_equal_curves_are_drawn_once_and_constant_ones_are_told(tmp_path):
    success = [0.0, 0.5, 1.0]
    run = write_curves(
        tmp_path, train__accuracy=success, train__avg_reward=success, train__kl=[0.0, 0.0, 0.0]
    )
    figures = make_plots([run], smoothing=0.5)
    assert list(figures) == ["success"]
    assert (
        figures["success"].axes[0].get_title("left") == "success rate = mean return of an episode"
    )
    assert find_constants([run]) == {"KL to the reference, nats a token": 0.0}


def test_skills_are_bars_before_and_after_of_each_run(tmp_path):
    runs = [
        write_curves(
            tmp_path / name,
            eval__success_rate=[0.2, 0.5, 0.9],
            eval__skill__insert=[0.1, 0.4, last],
        )
        for name, last in (("run", 0.8), ("control", 0.2))
    ]
    figures = make_plots(runs, smoothing=0.5)
    bars = [bar.get_width() for bar in figures["skills"].axes[0].patches]
    assert bars == pytest.approx([10, 80, 10, 20])
    assert drawn(figures["skill_0"]) == [0.1, 0.4, 0.2]


def test_many_episodes_are_thinned_evenly_to_the_size():
    rows = [{"iteration": i, "x": "y" * 80} for i in range(100, 200) for _ in range(2)]
    size = len(json.dumps(rows[0]))
    kept = [row["iteration"] for row in thin(rows, 50 * size, lambda row: row["iteration"])]
    assert kept == [i for i in range(100, 200, 4) for _ in range(2)]
    assert thin(rows, 10**6, lambda row: row["iteration"]) == rows
    assert thin(rows[:1], 10, lambda row: row["iteration"]) == []


def test_episodes_are_the_recorded_ones_and_both_ends_of_the_evaluations(run_dir):
    episodes = read_episodes(run_dir, 10**6)
    assert [(e["set"], e["iteration"]) for e in episodes] == [
        ("train", 0), ("before", 0), ("after", 2)
    ]  # fmt: skip
    assert episodes[0]["messages"][1:] == [["assistant", "hm"], ["user", "No."]]
    assert episodes[0]["ratios"] == [2.0, 0.5]


def test_a_line_that_is_being_written_is_left_out(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text('{"a": 1}\n{"a": ', encoding="utf-8")
    assert list(read_rows(path)) == [{"a": 1}]


def test_a_metric_that_is_null_is_no_point_of_a_curve(run_dir):
    run = read_run(run_dir)
    assert run.series("train/accuracy") == ([0, 1], [0.0, 0.1])
    assert run.series("train/policy_loss") == ([], [])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nowhere"], "no run in 'nowhere'"),
        ([".", "--smoothing", "1"], "--smoothing must be in [0, 1), got 1.0"),
    ],
)
def test_wrong_input_is_one_line_and_status_2(arguments, message, capsys):
    assert main(arguments) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert message in line


def assert_nothing_hangs_over(page):
    """Looks at each width that the page is made for, in light and dark."""
    for width, scheme in itertools.product((400, 800, 1280), ("light", "dark")):
        page.set_viewport_size({"width": width, "height": 900})
        page.emulate_media(color_scheme=scheme)
        assert page.evaluate("document.documentElement.scrollWidth") == width
        texts = page.evaluate(
            """[...document.querySelectorAll('figure svg text')].filter((text) => {
              const inner = text.getBoundingClientRect();
              const outer = text.closest('svg').getBoundingClientRect();
              return inner.width && (inner.left < outer.left - 1 || inner.right > outer.right + 1);
            }).map((text) => text.textContent)"""
        )
        assert texts == []
        list_box, transcript = (
            page.locator(f"#{name}").bounding_box() for name in ("list", "episode")
        )
        is_above = list_box["y"] + list_box["height"] <= transcript["y"]
        assert is_above == (width < 700)
        assert min(list_box["width"], transcript["width"]) > 300
    assert page.locator("body").evaluate("n => getComputedStyle(n).color") == "rgb(221, 221, 221)"


def test_a_run_is_shown_whole_in_a_browser_without_a_network(finished, open_page, capsys):
    assert main([str(finished)]) == 0
    written = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert written["report"] == str(finished / "report.html")
    assert written["bytes"] < 5_000_000
    page = open_page(finished / "report.html")
    assert f"finished/{finished.name}" in page.title()
    verdict = page.locator(".verdict").inner_text()
    assert re.search(
        r"\d+ → \d+ % success on 6 evaluation tasks\n", verdict
    )  # of the same generator
    assert "GRPO on the built-in model, AgentPEFT/Arithmetic-v0. 3 iterations in " in verdict
    assert_plots_are_seen(page)
    assert page.locator("#episode .tokens span").first.is_visible()
    assert page.locator("#list button").count() == 12
    card = page.locator("#examples .card").first
    question = card.locator("span").inner_text()
    assert re.fullmatch(r"[✓✗] Compute \d\+\d=", question)
    card.click()
    assert page.locator("#episode strong").inner_text() == question
    assert page.locator("#settings th", has_text="training.group_size").is_visible()
    assert not page.locator("#settings th", has_text="training.gamma").is_visible()
    assert_nothing_hangs_over(page)


@pytest.mark.slow
@pytest.mark.long
def test_the_quickstarts_report_shows_curves_and_episodes(newcomer, open_page, tmp_path, capsys):
    path = tmp_path / "report.html"
    assert main([str(newcomer.tree / RUN), "--output", str(path)]) == 0
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["bytes"] < 5_000_000
    page = open_page(path)
    assert_plots_are_seen(page)
    assert page.locator("#episode .tokens span").first.is_visible()
    assert page.locator("#list button").count() == 2 * 4
    for when in ("before", "after"):
        page.select_option("#set", when)
        assert page.locator("#list button").count() == 4
        assert page.locator("#episode .assistant").first.is_visible()
    assert page.locator("#settings", has_text="environment.kwargs").is_visible()


def test_tokens_are_coloured_by_what_is_chosen(run_dir, open_page):
    main([str(run_dir)])
    page = open_page(run_dir / "report.html")
    sampled, other, unmasked = (colour_of(page, token) for token in "acb")
    assert sampled == other != unmasked
    shown = {}
    for name in ("advantage", "ratio", "version"):
        page.select_option("#colour", name)
        shown[name] = [colour_of(page, token) for token in "acb"]
    assert shown["advantage"][:2] == ["rgb(39, 154, 96)", "rgba(214, 69, 65, 0.5)"]
    assert shown["ratio"][:2] == ["rgb(39, 154, 96)", "rgb(214, 69, 65)"]
    assert shown["version"][0] == shown["version"][1]
    assert {colours[2] for colours in shown.values()} == {"rgba(0, 0, 0, 0)"}
    assert "adapter version 7" in page.locator(".legend").inner_text()


def test_episodes_are_filtered_and_their_text_is_never_code(run_dir, open_page):
    main([str(run_dir)])
    page = open_page(run_dir / "report.html")
    assert page.title() == "run/by_hand"
    assert INJECTED in page.locator(".tokens .prompt").inner_text()
    assert f"after 2 {INJECTED}" in page.locator("#examples").inner_text()
    assert page.locator("#list button").first.inner_text().startswith("✗ Go.")
    page.select_option("#set", "after")
    assert f"after 2 {INJECTED}" in page.locator("#episode .assistant").inner_text()
    page.fill("#search", "nothing like it")
    assert page.locator("#list button").count() == 0
    assert page.locator("#count").inner_text() == "0 episodes"


QUESTIONS = {
    "pets(age INT)\nHow many pets are there? \n2 turns.": "How many pets are there? ",
    "You work in a shell.\n\nTask: Delete the file.\nYou may think.": "Delete the file.",
    "Compute 1+2=\nReply with the number alone.": "Compute 1+2=",
    "\nno mark\nat all": "no mark",
    "": "t",
}


def test_an_episode_is_called_by_its_question(run_dir, open_page):
    main([str(run_dir)])
    page = open_page(run_dir / "report.html")
    for prompt, question in QUESTIONS.items():
        episode = {"task_id": "t", "messages": [["system", "Be good."], ["user", prompt]]}
        assert page.evaluate("questionOf", episode) == question


@pytest.mark.parametrize(
    ("rows", "verdict", "told"),
    [
        ([make_metrics(1), make_metrics(2)], "10 → 20 % success in the first and", "no evaluation"),
        ([{"train/step": 0, "eval/success_rate": 0.25}], "25 % success on", "0 iterations. Eval"),
    ],
)
def test_a_run_without_episodes_has_a_page_too(rows, verdict, told, tmp_path, open_page):
    write_rows(tmp_path / "metrics.jsonl", rows)
    main([str(tmp_path)])
    page = open_page(tmp_path / "report.html")
    assert verdict in page.locator("h1").inner_text()
    assert told in page.locator(".verdict").inner_text()
    assert not page.locator("#examples").is_visible()
    assert page.locator("#count").inner_text() == "0 episodes"


def test_alarms_are_told_with_what_to_do(tmp_path, open_page):
    rows = [{**make_metrics(9), "train/step": s, "alarm/cut_turns": 1} for s in range(1, 8)]
    counts = {"sample/num_episodes": 4.0, "sample/num_cut_turns": 8.0}
    write_rows(tmp_path / "metrics.jsonl", [row | counts | {"train/accuracy": 0.1} for row in rows])
    main([str(tmp_path)])
    alarm = open_page(tmp_path / "report.html").locator(".alarm").inner_text()
    assert alarm.startswith("cut turns, iterations 6 to 7: ")
    assert "To do: raise env_runners.max_new_tokens." in alarm


@pytest.mark.slow
def test_several_runs_are_compared_and_their_differences_come_first(
    finished, run_dir, open_page, tmp_path, capsys
):
    page_path, plots = tmp_path / "both.html", tmp_path / "plots"
    main([str(finished), str(run_dir), "--output", str(page_path), "--png", str(plots)])
    written = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert [str(path) for path in sorted(plots.iterdir())] == sorted(written["plots"])
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in plots.iterdir())
    page = open_page(page_path)
    assert page.locator("#summary tr.head th").count() == 3
    assert page.locator("h1").count() == 2
    assert_nothing_hangs_over(page)
    assert page.locator("#settings tr").nth(1).get_attribute("class") == "different"
    page.select_option("#run", "1")
    assert page.locator("#list button").count() == 1


def test_a_long_run_stays_below_five_megabytes(tmp_path, capsys):
    steps = range(3000)
    rng = np.random.default_rng(0)
    names = ("train/accuracy", "train/avg_reward", "train/grad_norm", "train/lr", "time/total_s")
    write_rows(
        tmp_path / "metrics.jsonl",
        [{"train/step": s, **{n: rng.random() for n in names}} for s in steps],
    )
    text = "word " * 400
    sessions = tmp_path / "sessions"
    write_rows(sessions / "train.jsonl", [make_episode(s, 0, text) for s in steps])
    write_rows(sessions / "tokens.jsonl", [make_tokens(s, 0) | {"prompt": text} for s in steps])
    assert main([str(tmp_path)]) == 0
    assert 1_000_000 < json.loads(capsys.readouterr().out)["bytes"] < 5_000_000
