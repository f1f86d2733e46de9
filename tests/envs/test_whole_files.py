"""Files and folders that appear in one stroke, and what is there if their writer fails."""

import os
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from agentpeft.envs.system.whole_files import (
    making,
    naming_file,
    recover,
    temporary_folder,
    write_file,
)

MAKER = """
import sys, time
from pathlib import Path
from agentpeft.envs.system.whole_files import temporary_folder

with temporary_folder(Path(sys.argv[1]), ".making-") as folder:
    (folder / "file").touch()
    print(folder, flush=True)
    time.sleep(600)
"""


def make_folder(path, content="new"):
    path.mkdir()
    (path / "part").mkdir()
    (path / "part" / "file").write_text(content)


def test_a_file_is_written_and_an_older_one_replaced(tmp_path):
    path = tmp_path / "file [1]"
    for content in (b"first", b"second"):
        write_file(path, content)
        assert path.read_bytes() == content
    assert list(tmp_path.iterdir()) == [path]


def test_a_link_and_a_pipe_stay_what_they_are(tmp_path):
    target, link, pipe = (tmp_path / name for name in ("target", "link", "pipe"))
    link.symlink_to("target")
    for content in (b"first", b"second"):
        write_file(link, content)
        assert link.is_symlink() and target.read_bytes() == content
    os.mkfifo(pipe)
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    write_file(pipe, b"through")
    assert pipe.is_fifo() and os.read(reader, 100) == b"through"
    os.close(reader)
    write_file(Path(os.devnull), b"nowhere")
    with target.open("wb") as file:  # as a shell's `> target` opens it
        write_file(Path(f"/dev/fd/{file.fileno()}"), b"through a descriptor, ")
        file.write(b"then itself")
    assert target.read_bytes() == b"through a descriptor, then itself"
    assert Path(os.devnull).is_char_device()
    with pytest.raises(IsADirectoryError):
        write_file(tmp_path, b"a folder")


def test_shared_memory_is_a_place_like_any_other():
    with TemporaryDirectory(dir="/dev/shm") as folder:
        for content in (b"first", b"second"):
            write_file(Path(folder, "file"), content)
            assert Path(folder, "file").read_bytes() == content


def test_a_folder_is_there_only_when_it_is_whole(tmp_path):
    path = tmp_path / "folder"
    with making(path) as new:
        make_folder(new)
        assert not path.exists()
    assert (path / "part" / "file").read_text() == "new"
    assert list(tmp_path.iterdir()) == [path]


def test_nothing_changes_where_the_block_raises_or_makes_nothing(tmp_path):
    path = tmp_path / "file"
    path.write_text("old")
    with pytest.raises(ZeroDivisionError), making(path) as new:
        new.write_text("half")
        raise ZeroDivisionError
    with making(path):
        pass
    assert path.read_text() == "old" and list(tmp_path.iterdir()) == [path]


def test_a_folder_is_replaced_only_where_that_is_asked_for(tmp_path):
    path = tmp_path / "folder"
    make_folder(path, "old")
    with pytest.raises(OSError, match="not empty"), making(path) as new:
        make_folder(new)
    assert (path / "part" / "file").read_text() == "old"
    with making(path, replaces_folder=True) as new:
        make_folder(new)
    assert (path / "part" / "file").read_text() == "new"
    assert list(tmp_path.iterdir()) == [path]


def test_an_error_names_the_file_and_not_a_temporary_one(tmp_path):
    with pytest.raises(FileNotFoundError) as caught:
        write_file(tmp_path / "missing" / "file", b"")
    assert caught.value.filename == str(tmp_path / "missing" / "file")
    with pytest.raises(PermissionError) as caught, naming_file(tmp_path):
        raise PermissionError(13, "Permission denied", "another")
    assert caught.value.filename == str(tmp_path)


def test_a_killed_writer_leaves_the_older_file(tmp_path):
    (tmp_path / "file").write_text("old")
    script = (
        "import os, signal, sys\nfrom pathlib import Path\n"
        "from agentpeft.envs.system.whole_files import making\n"
        "with making(Path(sys.argv[1])) as new:\n"
        "    new.write_text('half')\n    os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    subprocess.run([sys.executable, "-c", script, str(tmp_path / "file")], check=False)
    assert (tmp_path / "file").read_text() == "old"
    assert [path.name[:10] for path in tmp_path.iterdir() if path.name != "file"] == [".new-file-"]


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


def die_at_call(number, function):
    """Runs `function` in a process that is killed before its call `number` that changes a disk.

    Returns whether it was.
    """
    pid = os.fork()
    if pid == 0:
        left = iter(range(number))

        def audit(event, _):
            if event in CHANGES and next(left, None) is None:
                os.kill(os.getpid(), signal.SIGKILL)

        sys.addaudithook(audit)
        function()
        os._exit(0)
    return os.waitpid(pid, 0)[1] != 0


CHANGES = ("os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.symlink", "tempfile.mkdtemp")


def replace_folder(path):
    with making(path, replaces_folder=True) as new:
        new.mkdir()
        (new / "content").write_text("new")


@pytest.mark.parametrize("is_there", [False, True])
def test_wherever_a_maker_was_killed_what_is_there_after_recovery_is_whole(tmp_path, is_there):
    number = 0
    for number in range(100):
        folder = tmp_path / str(number)
        (folder / "made").mkdir(parents=True) if is_there else folder.mkdir()
        if is_there:
            (folder / "made" / "content").write_text("old")
        if not die_at_call(number, partial(replace_folder, folder / "made")):
            break
        recover(folder)
        left = {str(path.relative_to(folder)) for path in folder.rglob("*")}
        assert left == {"made", "made/content"} or not (left or is_there)
    assert number > (8 if is_there else 4)


def test_a_link_that_was_not_renamed_goes(tmp_path):
    (tmp_path / "checkpoint").mkdir()
    (tmp_path / ".new-best").symlink_to("checkpoint")
    recover(tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["checkpoint"]
