"""The page about a run: its numbers, and what a real browser shows of it."""

import json
import re

import numpy as np
import pytest
from newcomer import RUN
from playwright.sync_api import sync_playwright

from agentpeft.launch.report import main
from agentpeft.launch.reporting.plots import smooth
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
    for name in ("success", "loss", "seconds", "skills", "skill_curves", "timing"):
        box = page.locator(f"#plot-{name} svg").bounding_box()
        assert box["width"] > 200 and box["height"] > 50


def test_running_means_do_not_start_at_zero():
    assert smooth([1.0, 2.0], 0.5) == [1.0, pytest.approx(2.5 / 1.5)]
    assert smooth([3.0, 1.0, 2.0], 0.0) == [3.0, 1.0, 2.0]
    values = np.random.default_rng(0).normal(size=50).tolist()
    weights = 0.9 ** np.arange(50)[::-1]
    assert smooth(values, 0.9)[-1] == pytest.approx(np.average(values, weights=weights))


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
    assert episodes[0]["messages"] == [["user", "No."]] and episodes[0]["ratios"] == [2.0, 0.5]


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


def test_a_run_is_shown_whole_in_a_browser_without_a_network(finished, open_page, capsys):
    assert main([str(finished)]) == 0
    written = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert written["report"] == str(finished / "report.html")
    assert written["bytes"] < 5_000_000
    page = open_page(finished / "report.html")
    assert f"finished/{finished.name}" in page.title()
    assert_plots_are_seen(page)
    assert page.locator("#episode .tokens span").first.is_visible()
    assert page.locator("#list button").count() == 12
    assert page.locator("#settings", has_text="training.group_size").is_visible()


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
    page.select_option("#set", "after")
    assert f"after 2 {INJECTED}" in page.locator("#episode .assistant").inner_text()
    page.fill("#search", "nothing like it")
    assert page.locator("#list button").count() == 0
    assert page.locator("#count").inner_text() == "0 episodes"


def test_a_run_without_episodes_has_a_page_too(tmp_path, open_page):
    write_rows(tmp_path / "metrics.jsonl", [make_metrics(1)])
    main([str(tmp_path)])
    page = open_page(tmp_path / "report.html")
    assert page.locator("#plot-success svg").is_visible()
    assert page.locator("#count").inner_text() == "0 episodes"


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
    assert page.locator("#summary tr").count() == 3
    assert page.locator("#settings tr").nth(1).get_attribute("class") == "different"
    page.select_option("#run", "1")
    assert page.locator("#list button").count() == 1


def test_a_long_run_stays_below_five_megabytes(tmp_path, capsys):
    steps = range(3000)
    rng = np.random.default_rng(0)
    names = ("train/accuracy", "train/avg_reward", "train/grad_norm", "train/lr", "time/total_s")
    write_rows(
        tmp_path / "metrics.jsonl",
        [{"train/step": s, **{n: rng.normal() for n in names}} for s in steps],
    )
    text = "word " * 400
    sessions = tmp_path / "sessions"
    write_rows(sessions / "train.jsonl", [make_episode(s, 0, text) for s in steps])
    write_rows(sessions / "tokens.jsonl", [make_tokens(s, 0) | {"prompt": text} for s in steps])
    assert main([str(tmp_path)]) == 0
    assert 1_000_000 < json.loads(capsys.readouterr().out)["bytes"] < 5_000_000
