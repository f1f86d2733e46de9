"""What the documentation shows of terminal views is what a terminal of 100 x 30 shows.

A recording is a block whose first line is `$ agentpeft watch …`, `replay` or `play`; RUN is the run
of `finished_run`. With AGENTPEFT_RECORD=1 the blocks are written anew.
"""

import os
import re
import shlex

import pytest
from docs_blocks import BLOCKS
from terminal import ESCAPES

RECORDED = re.compile(r"\$ agentpeft (watch|replay|play) ")
RECORDINGS = [block for block in BLOCKS if RECORDED.match(block.text)]
LIMIT_S = 300.0
TYPED = {"play": ["3", "4"]}
VARIABLE = [
    (re.compile(r"\d{8}-\d{6}"), "STAMP"),
    (re.compile(r"\d+:\d\d spent"), "TIME spent"),
    (re.compile(r"^[\d.]+ s and", re.M), "TIME and"),
    (re.compile(r"^seconds .*$", re.M), "seconds TIME"),
    (re.compile(r"^(loss|entropy) .*$", re.M), r"\1 ROUNDED"),
    (re.compile(r"^(sample|learn|broadcast|orchestration) [ █]+[\d.e-]+ s +", re.M), r"\1 TIME "),
]


def without_variable(text):
    """Returns a recording without what no two runs share, or no two kinds of processor."""
    for pattern, word in VARIABLE:
        text = pattern.sub(word, text)
    return text


def read_screen(raw):
    """Returns what stands at the end: what was erased is gone, a view that is drawn anew too."""
    last = raw.rpartition("\x1b[2K")[2]
    lines = ESCAPES.sub("", last).replace("\r\n", "\n").split("\n")
    return "\n".join(line.rstrip() for line in lines).strip("\n") + "\n"


def test_there_are_recordings_of_the_three_views():
    commands = {shlex.split(block.text.splitlines()[0])[2] for block in RECORDINGS}
    assert commands == {"watch", "replay", "play"}


@pytest.mark.slow
@pytest.mark.parametrize(
    "block",
    [
        pytest.param(block, marks=[pytest.mark.long] * (number > 0))
        for number, block in enumerate(RECORDINGS)
    ],
    ids=str,
)
def test_a_recording_is_what_a_terminal_shows(block, finished, open_terminal):
    command, _, recorded = block.text.partition("\n")
    words = [str(finished) if w == "RUN" else w for w in shlex.split(command)[2:]]
    terminal = open_terminal(*words, num_lines=30, num_columns=100)
    for number, line in enumerate(TYPED.get(words[0], ()), 1):
        terminal.read_until(f"turn {number} of 3 » ", LIMIT_S)
        terminal.type(f"{line}\n")
    terminal.read_until(None, LIMIT_S)
    assert terminal.process.wait(10) == 0, terminal.shown
    shown = read_screen(terminal.raw)
    if os.environ.get("AGENTPEFT_RECORD"):
        page = block.page.read_text("utf-8")
        block.page.write_text(page.replace(block.text, f"{command}\n{shown}"), "utf-8")
    else:
        assert without_variable(shown) == without_variable(recorded)
