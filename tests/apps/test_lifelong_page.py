"""The page of a lifelong study in a browser, from results made by hand."""

import pytest
from playwright.sync_api import sync_playwright

from agentpeft.apps.lifelong.course import CourseResult, MethodResult
from agentpeft.apps.lifelong.lifelong_study import summarize
from agentpeft.apps.lifelong.page import write_page
from agentpeft.apps.lifelong.scores import compute_scores
from agentpeft.envs import Outcome
from agentpeft.policies.checkpointing.run_logs import append_episodes
from agentpeft.policies.messages import EpisodeRecord

STAGES = ("sums", "products")
MATRIX = [[1.0, 0.0], [0.5, 1.0]]


def make_record(task, answer, outcome):
    messages = (("user", f"<b>task {task}</b>"), ("assistant", answer))
    return EpisodeRecord(task, 0, f"sums/{task}", ("sums",), 0, outcome, 0.0, 1, 2, messages)


def make_course(folder, seed, matrix):
    for player, answers in (("first", "right right"), ("second", "right wrong")):
        records = [
            make_record(task, answer, Outcome.SUCCESS if answer == "right" else Outcome.FAILURE)
            for task, answer in enumerate(answers.split())
        ]
        path = folder / f"seed-{seed}/evaluations/{player}/sums/sessions/{player}.jsonl"
        path.parent.mkdir(parents=True)
        append_episodes(path, 0, records)
    scores = compute_scores(matrix, [0.0, 0.0], [1.0, 1.0])
    players = [["first"] * 2, ["second"] * 2]
    sequential = MethodResult(matrix, players, scores, (), divergences=[[0.25, 2.0]])
    joint = MethodResult([[0.5, 0.7]], [["joint"] * 2], compute_scores([[0.5, 0.7]], [], []), ())
    methods = {"sequential": sequential, "joint": joint}
    bounds = dict.fromkeys(STAGES, 0.0), dict.fromkeys(STAGES, 1.0)
    return CourseResult(seed, 0, STAGES, ("modulo",), *bounds, methods)


def test_a_cell_opens_the_episodes_that_were_lost(tmp_path, chromium):
    courses = [make_course(tmp_path, seed, MATRIX) for seed in (0, 1)]
    page_path = write_page(courses, summarize(courses), tmp_path)
    complaints = []
    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        page = browser.new_context(offline=True).new_page()
        page.on("console", lambda message: complaints.append(message.text))
        page.on("pageerror", lambda error: complaints.append(str(error)))
        page.goto(page_path.as_uri())
        cells = page.locator("button[data-key]")
        assert cells.all_inner_texts() == ["50.0"]
        cells.first.click()
        shown = page.locator("#lost .tokens").all_inner_texts()
        captions = page.locator(".matrix caption").all_inner_texts()
        row = page.locator("#summary tr", has_text="sequential").first.inner_text()
        browser.close()
    assert not complaints
    assert len(shown) == 1
    assert "<b>task 1</b>" in shown[0]
    assert "then: right" in shown[0]
    assert "now: wrong (failure)" in shown[0]
    assert captions == ["sequential", "joint"]
    assert "75.0 [75.0, 75.0]" in row
    assert "0.250 [0.250, 0.250]" in row
    assert "2.000 [2.000, 2.000]" in row
    text = page_path.read_text(encoding="utf-8")
    assert "modulo (seed 0); modulo (seed 1)" in text


def test_an_episode_that_an_evaluation_lost_is_compared_with_none(tmp_path):
    course = make_course(tmp_path, 0, MATRIX)
    path = tmp_path / "seed-0/evaluations/second/sums/sessions/second.jsonl"
    path.write_text(path.read_text("utf-8").splitlines(keepends=True)[1], encoding="utf-8")
    text = write_page([course], summarize([course]), tmp_path).read_text("utf-8")
    assert "task 1" in text and "task 0" not in text


def test_the_files_beside_the_page_have_all_courses(tmp_path):
    courses = [make_course(tmp_path, seed, MATRIX) for seed in (0, 1)]
    write_page(courses, summarize(courses), tmp_path)
    lines = (tmp_path / "matrix.csv").read_text(encoding="utf-8").splitlines()
    assert lines[0] == "seed,order,method,after,stage,success"
    assert len(lines) == 1 + 2 * (4 + 2)
    assert "1,0,joint,all,products,0.7000" in lines
    assert (tmp_path / "matrices.png").read_bytes().startswith(b"\x89PNG")


def test_courses_are_summed_up_as_means_with_intervals_and_paired_tests(tmp_path):
    courses = [make_course(tmp_path, 0, MATRIX), make_course(tmp_path, 1, [[1.0, 0.0], [0.7, 1.0]])]
    summary = summarize(courses)
    own = summary["methods"]["sequential"]
    assert own["acc"] == pytest.approx(0.8)
    assert (own["acc_low"], own["acc_high"]) == pytest.approx((0.75, 0.85))
    assert own["bwt"] == pytest.approx(-0.4)
    assert own["matrix"] == MATRIX
    assert (own["kl_old"], own["kl_new"], own["kl_new_high"]) == (0.25, 2.0, 2.0)
    assert summary["methods"]["joint"]["kl_old"] is None
    assert summary["methods"]["joint"]["bwt"] is None
    compared = summary["comparisons"]["joint"]
    assert compared["acc_difference"] == pytest.approx(0.6 - 0.8)
    assert (compared["p_value"], compared["num_pairs"]) == (0.5, 2)
