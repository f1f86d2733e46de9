"""A check that opens a pipe which the episode has left does not wait for who is gone."""

import time

import pytest

pytestmark = pytest.mark.slow

LEAVE = """
mkdir /srv/p; mkfifo -m 640 /srv/p/answer /srv/p/{1..120}; ln -s /srv/p/answer /srv/p/link
python3 -c "import socket; socket.socket(1).bind('/srv/p/socket')"
(echo right >/srv/p/answer) &
"""


@pytest.mark.timeout(180)
@pytest.mark.parametrize("is_live", [False, True], ids=["frozen", "live"])
@pytest.mark.parametrize(
    ("script", "output"),
    [
        ("cat /srv/p/answer; echo end", "end\n"),
        ("cat /srv/p/link; cat /srv/p/120; echo end", "end\n"),
        ("(echo x >/srv/p/1) 2>/dev/null; cat /srv/p/2; echo end", "end\n"),
        ("(cat /srv/p/3 & cat /srv/p/4 & wait); cat /srv/p/{1..120}; echo end", "end\n"),
        ("cat /srv/p/socket; [ -S /srv/p/socket ] && echo socket", "socket\n"),
        ("stat -c '%F %a' /srv/p/answer; [ -p /srv/p/1 ]; echo $?", "fifo 640\n0\n"),
        (
            "for i in {1..9}; do (echo $i >/srv/p/5) & cat /srv/p/5; done",
            "1\n2\n3\n4\n5\n6\n7\n8\n9\n",
        ),
        (
            # A writer that is still there would let the next reader in, and leave it nothing
            "for i in {1..50}; do (echo $i >/srv/p/6) & read -r n </srv/p/6; wait; "
            "[ $n = $i ] || echo $n; done",
            "",
        ),
        ("mkfifo /own; (sleep 1; echo late >/own) & cat /own", "late\n"),
    ],
)
def test_check_that_opens_a_left_pipe_comes_back(sandbox, script: str, output: str, is_live: bool):
    sandbox.run(LEAVE, 10)
    start_s = time.monotonic()
    result = (sandbox.check_live if is_live else sandbox.check)(f"exec 2>/dev/null; {script}", 60)
    assert (result.output, result.exit_code) == (output, 0)
    assert time.monotonic() - start_s < 45
