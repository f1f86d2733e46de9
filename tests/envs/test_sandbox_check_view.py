"""What a check sees of an episode: no link to itself, and nothing that its tools read unasked."""

import os
import time
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from agentpeft.envs.os_interaction.sandboxes.inside.served_files import leads_to_reader
from agentpeft.envs.os_interaction.sandboxes.sandbox import TrustedScript

HARMLESS = ("/dev/null", "/proc/mounts", "/proc/self/mounts")
WORDS = ["proc", "dev", "self", "cmdline", "null", "fd", "9", "mounts", "etc", "..", ".", "", "a"]
LINKS = {
    "/proc/self/cmdline": True,
    "/proc/self/environ": True,
    "/proc/self": True,
    "/proc": True,
    "/proc/1/cmdline": True,
    "/proc/thread-self/comm": True,
    "/proc/self/cwd/passwd": True,
    "/proc/self/cwd": True,
    "/proc/cpuinfo": True,
    "/dev/fd/63": True,
    "/dev/stdin": True,
    "/dev/tty": True,
    "/dev/zero": True,
    "/dev/shm/x": True,
    "/dev": True,
    "/": True,
    "//": True,
    "/usr/..": True,
    "//proc//self//cmdline": True,
    "/proc/./self/../self/environ": True,
    "/usr/../proc/self/cmdline": True,
    "../../../../../../../../../../../proc/self/cmdline": True,
    "/proc/self/net/../cmdline": True,
    "/proc/mounts/../self/cmdline": True,
    "/gone/../proc/self/cmdline": True,
    "/dev/null/../stdin": True,
    "/dev/null": False,
    "//dev/./null": False,
    "/proc/mounts": False,
    "/proc/self/mounts": False,
    "/etc/passwd": False,
    "/process/self": False,
    "/devices": False,
    "/srv/proc/self/cmdline": False,
    "proc/self/cmdline": False,
    ".": False,
    "": False,
}


@pytest.mark.parametrize(("target", "leads"), [item for item in LINKS.items() if item[0]])
@pytest.mark.parametrize("way", ["directly", "by another link", "by a folder", "by a hard link"])
def test_links_that_lead_to_the_reader_are_told(tmp_path: Path, target: str, leads: bool, way: str):
    link = tmp_path / "link"
    if way == "directly":
        link.symlink_to(target)
    elif way == "by another link":
        (tmp_path / "hop").symlink_to(target)
        link.symlink_to("hop")
    elif way == "by a folder":
        (tmp_path / "folder").symlink_to(".")
        (tmp_path / "hop").symlink_to(target)
        link.symlink_to("folder/../" + tmp_path.name + "/hop")
    else:
        (tmp_path / "hop").symlink_to(target)
        os.link(tmp_path / "hop", link, follow_symlinks=False)
    assert leads_to_reader(str(link)) == leads


@settings(max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(texts=st.lists(st.lists(st.sampled_from([*WORDS, "b", "c"]), min_size=1, max_size=6)))
@example(texts=[["", "etc"], ["b", "..", "proc", "self", "cmdline"]])
def test_no_link_that_the_system_resolves_into_proc_or_dev_is_missed(
    tmp_path: Path, texts: list[list[str]]
):
    for name, words in zip("abc", texts, strict=False):
        (tmp_path / name).unlink(missing_ok=True)
        text = "/".join(words)
        if text.strip("\0"):
            (tmp_path / name).symlink_to(text)
    for name in "abc":
        path = tmp_path / name
        try:
            real = str(path.resolve(strict=True))
        except (OSError, RuntimeError):
            continue
        if real == "/" or real.startswith(("/proc", "/dev")):
            is_harmless = real == "/dev/null" or real.endswith("/mounts")
            assert leads_to_reader(str(path)) or is_harmless


def test_a_loop_of_links_leads_nowhere(tmp_path: Path):
    (tmp_path / "a").symlink_to("b")
    (tmp_path / "b").symlink_to("a")
    assert not leads_to_reader(str(tmp_path / "a"))


def test_long_ways_are_not_followed_to_their_end(tmp_path: Path):
    """Of 20,000 such links each might take a tenth of a second."""
    (tmp_path / "d").mkdir()
    for number in range(40):
        (tmp_path / str(number)).symlink_to(f"{'d/../' * 700}{number + 1}")
    begin_s = time.process_time()
    assert all(leads_to_reader(str(tmp_path / "0")) for _ in range(100))
    assert time.process_time() - begin_s < 2


PLANT = """
mkdir -p /srv/links /srv/good; cd /srv/links
n=0; for t in /proc/self/cmdline /proc/self/environ /proc/self /proc /proc/1/comm /dev/fd/9 \
  /dev/stdin /dev/zero /dev/full /dev/urandom /dev/tty /dev/fd / \\
  ../../proc/self/cmdline /etc/../dev/stdin; do
  n=$((n + 1)); ln -s $t direct$n; ln -s direct$n hop$n; ln -P direct$n hard$n
  ln -sr direct$n rel$n
done
ln -s /etc e; ln -s e/../proc/self/cmdline through
mkdir sub; ln -s ../direct1 sub/deep; ln -s /proc/self '/srv/links/odd name\\\\'
ln -s /dev/null /srv/good/null; ln -s /etc/passwd /srv/good/file; ln -s /gone /srv/good/gone
ln -s /proc/mounts /srv/good/mtab; ln -s e /srv/links/kept
"""
ASK = """
find /srv/links -type l ! -lname '*/dev/null' | sort; find /srv/good -type l | sort
readlink /srv/good/null /srv/good/gone
grep -rl WORD /srv /tmp; ls /dev/stdin /dev/fd/0 /dev/null
"""
SEEN = """\
/srv/links/e
/srv/links/kept
/srv/good/file
/srv/good/gone
/srv/good/mtab
/srv/good/null
/dev/null
/gone
/dev/fd/0
/dev/null
/dev/stdin
"""


@pytest.mark.slow
@pytest.mark.parametrize("is_live", [False, True])
def test_links_of_an_episode_that_lead_to_the_reader_are_gone_in_a_check(sandbox, is_live):
    sandbox.run(PLANT, 10)
    check = sandbox.check_live if is_live else sandbox.check
    assert check(ASK, 30).output == SEEN


@pytest.mark.slow
@pytest.mark.parametrize(
    ("plant", "script"),
    [
        ("ln -s /proc/self/cmdline /srv/f", "grep -q WORD /srv/f"),
        ("ln -s /proc/self/cmdline /srv/f", "! grep -q WORD /srv/f"),
        ("ln -s /proc/self/cmdline /srv/f", "[ ! -e /srv/f ]"),
        ("ln -s /dev/fd/63 /srv/f", "diff /srv/f <(echo WORD)"),
        ("ln -s /dev/stdin /srv/f", "echo WORD | diff /srv/f -"),
        ("ln -s /proc/self /srv/d", "grep -q WORD /srv/d/cmdline"),
        ("ln -s / /srv/d", "grep -rqs WORD /srv/d --include=cmdline"),
        ("rm -f /etc/passwd; ln -s /proc/self/environ /etc/passwd", "! grep -q ann: /etc/passwd"),
        ("ln -s /proc/self/cmdline ~/f", "cd; grep -q WORD f"),
        ("ln -s /proc/self/cmdline '/srv/odd name'", "grep -q WORD '/srv/odd name'"),
    ],
)
def test_a_check_that_names_such_a_link_fails(sandbox, plant, script):
    sandbox.run(plant, 10)
    result = sandbox.check(script, 20)
    assert result.exit_code is None
    assert "leads into /proc or /dev" in result.output


@pytest.mark.slow
def test_a_link_that_a_check_does_not_name_costs_nothing(sandbox):
    sandbox.run(
        "echo right >/srv/answer; ln -s /proc/self/cmdline /tmp/a; ln -s /dev/tty /srv/an", 9
    )
    assert sandbox.check("grep -q right /srv/answer && [ ! -e /srv/other ]", 20).exit_code == 0


FOOL = "import os; os._exit(0)"
TRAPS = f"""
version=$(python3 -c 'import sys; print("%d.%d" % sys.version_info[:2])')
user=~/.local/lib/python$version/site-packages; mkdir -p $user /srv/app /usr/bin/Modules
echo '{FOOL}' | tee $user/usercustomize.py $user/x.pth ~/json.py /srv/app/json.py >/dev/null
printf 'import json\\nraise SystemExit(1)\\n' >/srv/app/main.py
for folder in /usr/local/share/perl/5* /usr/share/perl5 /usr/share/perl/5*; do
  mkdir -p "$folder"; done
for folder in $(perl -e 'print join " ", @INC'); do
  mkdir -p $folder; echo 'exit 0;' | tee $folder/strict.pm >$folder/Mine.pm; done
printf '0\\tstring\\twrong\\tRIGHT\\n' | tee /etc/magic >~/.magic; echo wrong >/srv/wrong
printf '#env\\nLESSOPEN = |echo RIGHT %%s\\n' | tee ~/.lesskey >/etc/lesskey
mkdir -p ~/.vim/plugin /var/lib/vim/addons/plugin /usr/share/vim/vimfiles/plugin
echo 'qa!' | tee ~/.vimrc /etc/vim/vimrc.local ~/.vim/plugin/x.vim \
  /var/lib/vim/addons/plugin/x.vim /usr/share/vim/vimfiles/plugin/x.vim >/dev/null
machine=$(uname -m)-linux-gnu; mkdir -p /usr/local/include /usr/$machine/bin
printf '#!/bin/sh\\nexit 0\\n' >/usr/$machine/bin/as; chmod 755 /usr/$machine/bin/as
printf '#define main other\\nint main();\\n#include_next <stdio.h>\\n' >/usr/local/include/stdio.h
printf '"P": "exit 0\\\\C-m"\\n' | tee ~/.inputrc >/etc/inputrc
echo 'BEGIN {{ exit 0 }}' | tee /usr/share/awk/assert.awk >/srv/app/ordinal.awk
"""
PROBES = {
    "a start file of Python": "python3 -c 'raise SystemExit(1)'",
    "a start file of Python without variables": "env -i HOME=/root /usr/bin/python3 -c 'exit(1)'",
    "a module in the working folder": "cd; python3 -c 'import json; raise SystemExit(1)'",
    "a module beside a script": "python3 /srv/app/main.py",
    "a module by Python's option": "cd; echo '{' | python3 -m json.tool",
    "a module of Perl": "perl -Mstrict -e 'exit 1'",
    "a new module of Perl": "perl -MMine -e 'exit 1'",
    "a type of file": "file /srv/wrong | grep -q RIGHT",
    "a filter of less": "less /srv/wrong | grep -q RIGHT",
    "a plugin of vim": "vim -es -c cq /srv/wrong </dev/null",
    "a start file of vim": "vim -c cq /srv/wrong </dev/null >/dev/null 2>&1",
    "a library of awk": "cd $(mktemp -d); awk '@include \"assert\"; BEGIN { exit 1 }'",
    "a library of awk beside a file": "cd /srv/app; awk '@include \"ordinal\"; BEGIN { exit 1 }'",
    "an assembler": "cd $(mktemp -d); echo 'int f;' >f.c; gcc -c f.c && [ ! -e f.o ]",
    "a header": "printf '#include <stdio.h>\\n' | gcc -E - | grep -q other",
}
ASK_ALL = "\n".join(
    f'( {probe}\n) >/dev/null 2>&1 && echo "{name}"' for name, probe in PROBES.items()
)


@pytest.mark.slow
@pytest.mark.parametrize("is_live", [False, True])
def test_tools_of_a_check_read_nothing_of_the_episode_unasked(sandbox, is_live):
    sandbox.run(TRAPS, 20)
    fooled = sandbox.run(f"{ASK_ALL}\ntrue", 30).output.split("\n")
    assert [name for name in PROBES if name not in fooled] == []  # so each of them is a trap
    check = sandbox.check_live if is_live else sandbox.check
    assert check(f"{ASK_ALL}\ntrue", 40).output == ""


@pytest.mark.slow
@pytest.mark.parametrize("is_live", [False, True])
@pytest.mark.parametrize("interpreter", ["bash", "python3"])
def test_a_program_of_the_image_is_not_shadowed_in_another_folder(sandbox, interpreter, is_live):
    sandbox.run(
        "printf '#!/bin/sh\nexit 0\n' >/fool; chmod 755 /fool; for folder in /usr/sbin /sbin"
        " /usr/bin /usr/local/bin /usr/local/sbin; do for name in bash grep mkfifo python3 useradd"
        " '['; do [ -e $folder/$name ] || cp /fool $folder/$name; done; done; cp /fool /usr/bin/z",
        10,
    )
    asked = "! grep -q WORD /etc/passwd && ! useradd root 2>/dev/null && z && exit 3"
    script = {"bash": asked, "python3": f"import os; os.execlp('sh', 'sh', '-c', {asked!r})"}
    check = sandbox.check_live if is_live else sandbox.check
    assert check(TrustedScript(script[interpreter], interpreter), 20).exit_code == 3


@pytest.mark.slow
@pytest.mark.parametrize("interpreter", ["bash", "python3"])
@pytest.mark.parametrize(
    "place",
    [
        "printf 'home = /evil/bin' | tee /usr/pyvenv.cfg /usr/bin/pyvenv.cfg >/pyvenv.cfg",
        "mkdir /usr/bin/lib; ln -s /evil/lib/python$version /usr/bin/lib/python$version",
        "ln -s /evil/lib/python$version /usr/Lib; printf x >/usr/bin/pybuilddir.txt",
        "for p in /usr/bin/python3*; do printf '/evil/lib/python%s\\nimport site' $version"
        " >$p._pth; done",
    ],
)
def test_python_takes_its_library_from_nowhere_else(sandbox, place, interpreter):
    library = (
        "version=$(python3 -c 'import sys; print(\"%d.%d\" % sys.version_info[:2])'); "
        "mkdir -p /evil/bin /evil/lib/python$version; cd /usr/lib/python$version; "
        "ln -s $PWD/* /evil/lib/python$version; cd /evil/lib/python$version; "
        "rm -f sitecustomize.py os.py; "
        f"cp /usr/lib/python$version/os.py .; echo '{FOOL}' >sitecustomize.py\n"
    )
    sandbox.run(library + place, 20)
    assert sandbox.run("python3 -I -c 'raise SystemExit(1)'", 10).exit_code == 0
    script = {"bash": "python3 -c 'raise SystemExit(1)'", "python3": "raise SystemExit(1)"}
    assert sandbox.check(TrustedScript(script[interpreter], interpreter), 20).exit_code == 1


@pytest.mark.slow
@pytest.mark.parametrize("path", ["~/.inputrc", "/etc/inputrc"])
def test_key_bindings_do_not_write_a_checks_commands(sandbox, path):
    sandbox.run(f'printf \'"P": "exit 0\\\\C-m"\\n"9": "exit 0\\\\C-m"\\n\' >{path}', 10)
    assert sandbox.check("exit 1", 10).exit_code == 1


@pytest.mark.slow
def test_messages_of_tools_are_the_images(sandbox):
    catalogue = """
import os, struct
head = b"Content-Type: text/plain; charset=UTF-8\\n"
pairs = [(b"", head), (b"regular file", b"directory")]
folder = "/usr/share/locale/C.UTF-8/LC_MESSAGES"
os.makedirs(folder, exist_ok=True)
table, texts, start = {0: b"", 1: b""}, b"", 28 + 16 * len(pairs)
for column in (0, 1):
    for pair in pairs:
        table[column] += struct.pack("II", len(pair[column]), start + len(texts))
        texts += pair[column] + b"\\0"
head = struct.pack("7I", 0x950412DE, 0, len(pairs), 28, 28 + 8 * len(pairs), 0, 0)
open(folder + "/coreutils.mo", "wb").write(head + table[0] + table[1] + texts)
"""
    sandbox.prepare(TrustedScript(catalogue, "python3"), 10)
    assert sandbox.run("stat -c %F /etc/passwd", 10).output == "directory\n"
    assert sandbox.check("stat -c %F /etc/passwd", 10).output == "regular file\n"


@pytest.mark.slow
def test_start_files_that_a_check_names_are_there_as_data(sandbox):
    sandbox.run(
        "echo 'set number' >~/.vimrc; mkdir -p ~/.vim/colors; echo x >~/.vim/colors/a.vim", 10
    )
    sandbox.run(
        "echo 'set hidden' >>/etc/vim/vimrc; echo x >/usr/share/mine; echo y >/usr/bin/z", 10
    )
    check = (
        "grep -q number ~/.vimrc && grep -q x ~/.vim/colors/a.vim && grep -q hidden /etc/vim/vimrc"
        " && grep -q x /usr/share/mine && grep -q y /usr/bin/z"
    )
    assert sandbox.check(check, 10).exit_code == 0


@pytest.mark.slow
def test_what_a_start_file_links_to_is_there_where_a_check_names_the_link(sandbox):
    sandbox.run(
        "mkdir ~/d; echo 'set number' >~/d/vimrc; ln -s d/vimrc ~/.vimrc; echo x >/srv/a", 10
    )
    sandbox.run("ln -s /srv ~/.vim", 10)
    assert sandbox.check("grep -q number ~/.vimrc && grep -q x /srv/a", 10).exit_code == 0
