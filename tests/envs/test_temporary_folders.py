"""Temporary folders: gone at the end, after a kill with the next one; a living maker's stay."""

import os
import subprocess
import sys
import time

from agentpeft.envs.system.temporary_folders import temporary_folder

MAKER = """
import sys, time
from pathlib import Path
from agentpeft.envs.system.temporary_folders import temporary_folder

with temporary_folder(Path(sys.argv[1]), ".making-") as folder:
    (folder / "file").touch()
    print(folder, flush=True)
    time.sleep(600)
"""


def make_old(folder):
    hour_ago = time.time() - 3600
    os.utime(folder, (hour_ago, hour_ago))


def test_the_folders_of_killed_makers_are_deleted_by_the_next(tmp_path):
    makers = [
        subprocess.Popen(
            [sys.executable, "-c", MAKER, str(tmp_path)], stdout=subprocess.PIPE, text=True
        )
        for _ in range(2)
    ]
    try:
        living, dead = (tmp_path / maker.stdout.readline().strip() for maker in makers)
        other = tmp_path / "other-making"
        other.mkdir()
        makers[1].kill()
        makers[1].wait()
        with temporary_folder(tmp_path, ".making-") as own:
            assert {living, dead, own, other} == set(tmp_path.iterdir())  # it may be a new maker's
        for folder in (living, dead, other):
            make_old(folder)
        with temporary_folder(tmp_path, ".making-") as own:
            assert {living, own, other} == set(tmp_path.iterdir())
            assert (living / "file").exists()
        assert {living, other} == set(tmp_path.iterdir())
    finally:
        for maker in makers:
            maker.kill()
            maker.communicate()
