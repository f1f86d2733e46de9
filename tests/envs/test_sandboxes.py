"""What every sandbox does: one shell, limits, files for the grader, checks; no attacks."""

import hashlib
from concurrent.futures import ThreadPoolExecutor

import pytest

from agentpeft.envs import EnvFault, SettingsError
from agentpeft.envs.os_interaction.sandboxes.sandbox import (
    Sandbox,
    SandboxKind,
    SandboxLimits,
    TrustedScript,
    make_sandbox,
)


def output(sandbox: Sandbox, command: str, timeout_s: float = 10.0) -> str:
    result = sandbox.run(command, timeout_s)
    assert result.exit_code == 0, result
    return result.output


def test_directory_variables_functions_and_jobs_persist(sandbox):
    sandbox.run("cd /tmp; x=5; export y=6; greet() { echo hello $1; }; sleep 60 & job=$!", 5)
    assert output(sandbox, "pwd; echo $x; printenv y; greet you") == "/tmp\n5\n6\nhello you\n"
    assert output(sandbox, "kill -0 $job && kill $job && wait $job; echo $?") == "143\n"


def test_first_command_is_root_at_home_with_the_image_s_programs(sandbox):
    assert output(sandbox, "id -un; pwd; echo $HOME") == "root\n/root\n/root\n"
    output(sandbox, "gawk 1 </dev/null && bc </dev/null && vi --version && ps && python3 -V")


def test_localhost_is_the_sandbox(sandbox):
    assert output(sandbox, "getent hosts localhost; hostname").split() == [
        *("127.0.0.1", "localhost", "sandbox"),
        "sandbox",
    ]
    serve = "import socket; s = socket.create_server(('localhost', 0)); print(s.getsockname()[0]); "
    serve += "socket.create_connection(s.getsockname())"
    assert sandbox.prepare(TrustedScript(serve, "python3"), 5).output == "127.0.0.1\n"


def test_output_is_stdout_and_stderr_in_order_with_the_exit_code(sandbox):
    result = sandbox.run("echo a; echo b >&2; echo c; (exit 7)", 5)
    assert (result.output, result.exit_code) == ("a\nb\nc\n", 7)
    assert not result.is_timeout
    assert sandbox.run("no_such_program", 5).exit_code == 127


@pytest.mark.parametrize(
    "command",
    [
        "sleep 60",
        "sleep 60; sleep 60; echo never",
        "for i in $(seq 99); do sleep 1; done",
        "while :; do :; done",
        "(trap '' INT; sleep 60)",
        "python3 -c 'import signal,time; signal.signal(2, lambda *_: 0)\nwhile 1: time.sleep(9)'",
        "yes | cat >/dev/null",
        "setsid sleep 60 & wait",
        "read line </dev/zero",
    ],
)
def test_command_over_its_time_is_killed_and_the_shell_comes_back(sandbox, command):
    sandbox.run("cd /tmp; x=kept; sleep 61 & job=$!", 5)
    result = sandbox.run(command, 0.5)
    assert result.is_timeout
    assert result.exit_code is None
    assert not result.is_new_shell
    assert output(sandbox, "pwd; echo $x; kill -0 $job; pgrep -c sleep") == "/tmp\nkept\n1\n"


def test_output_before_the_deadline_is_kept(sandbox):
    assert sandbox.run("echo before; sleep 60", 0.5).output == "before\n"


@pytest.mark.parametrize(
    "command", ["trap '' INT; while :; do :; done", "exec sleep 60", "kill -STOP $$"]
)
def test_shell_that_cannot_be_interrupted_is_replaced(sandbox, command):
    sandbox.run("touch /kept; sleep 60 &", 5)
    result = sandbox.run(command, 0.5)
    assert result.is_timeout
    assert result.is_new_shell
    assert output(sandbox, "ls /kept; pgrep -c sleep || true") == "/kept\n0\n"


def test_shell_that_ends_is_replaced(sandbox):
    result = sandbox.run("echo bye; exit 3", 5)
    assert (result.exit_code, result.is_new_shell) == (3, True)
    assert result.output.startswith("bye\n")
    assert sandbox.run("kill -9 $$", 5).exit_code == 137
    assert output(sandbox, "echo back") == "back\n"


@pytest.mark.parametrize("broken", ["echo 'open", "if true; then", "cat <<EOF", ")", "x=$(("])
def test_broken_syntax_ends_with_its_command(sandbox, broken):
    assert not sandbox.run(broken, 3).is_timeout
    assert output(sandbox, "echo next") == "next\n"


def test_commands_have_no_input_and_may_span_lines(sandbox):
    assert output(sandbox, "cat; read -r x || echo none") == "none\n"
    assert output(sandbox, "cat <<'EOF'\nit's $HOME\nEOF\nfor i in 1 2\ndo echo $i\ndone") == (
        "it's $HOME\n1\n2\n"
    )
    assert output(sandbox, "-x; true") == "bash: -x: command not found\n"


def test_long_output_is_cut_in_the_middle(sandbox):
    text = output(sandbox, "seq 100000")
    assert text.startswith("1\n2\n3\n")
    assert text.endswith("99999\n100000\n")
    assert "bytes left out" in text
    assert len(text) < 2100
    assert output(sandbox, "printf 'x%.0s' $(seq 2000)") == "x" * 2000


def test_undecodable_bytes_are_replaced_and_others_kept(sandbox):
    assert (
        output(sandbox, "printf 'a\\xff\\xc3\\xa4\\0b'")
        == "a\N{REPLACEMENT CHARACTER}ä\N{REPLACEMENT CHARACTER}b"
    )
    assert output(sandbox, "echo 'ü€🙂'") == "ü€🙂\n"


def test_prepare_runs_a_process_of_its_own_and_leaves_jobs(sandbox):
    made = sandbox.prepare("cd /tmp; x=1; (while :; do date >/beat; sleep 0.1; done) & exit 4", 5)
    assert made.exit_code == 4
    assert output(sandbox, "pwd; echo [$x]") == "/root\n[]\n"
    for _ in range(2):  # it beats, and again after that
        assert (
            output(sandbox, "until rm /beat; do sleep 0.1; done 2>/dev/null; echo gone") == "gone\n"
        )


def test_prepare_takes_python_arguments_and_long_scripts(sandbox):
    script = "import sys; print(sys.argv[1:])"
    trusted = TrustedScript(script, "python3", ("a b", "$HOME"))
    assert sandbox.prepare(trusted, 5).output == "['a b', '$HOME']\n"
    long = "\n".join(f"echo {i} >/dev/null" for i in range(12000)) + "\necho 'end'"
    assert sandbox.prepare(long, 20).output == "end\n"


def test_users_and_owners_are_real(sandbox):
    output(sandbox, "useradd -m -s /bin/bash ann && groupadd -g 4000 crew && usermod -aG crew ann")
    assert output(sandbox, "touch /f; chown ann:crew /f; su ann -c 'id -un; id -Gn'") == (
        "ann\nann crew\n"
    )
    files = sandbox.freeze()
    found = files.stat("/f")
    assert found is not None
    assert (found.uid, found.gid) == (1000, 4000)
    assert b"ann:x:1000" in (files.read("/etc/passwd", 10_000) or b"")
    assert b"ann:!" in (files.read("/etc/shadow", 10_000) or b"")


def test_frozen_files_tell_what_is_there(sandbox):
    sandbox.run(
        "mkdir -p /d/e; printf hello >/d/e/f; chmod 6751 /d/e/f; ln -s e/f /d/l; mkfifo /d/p", 5
    )
    files = sandbox.freeze()
    file, link, pipe = files.stat("/d/e/f"), files.stat("/d/l"), files.stat("/d/p")
    assert file is not None
    assert (file.kind, file.mode, file.size, file.target) == ("file", 0o6751, 5, "")
    assert link is not None
    assert (link.kind, link.target) == ("symlink", "e/f")
    assert pipe is not None
    assert pipe.kind == "other"
    assert files.read("/d/e/f", 4) == b"hell"
    assert [files.read(path, 9) for path in ("/d/l", "/d/p", "/d", "/none")] == [None] * 4
    assert files.stat("/none/x") is None
    assert [path for path, _ in files.walk("/d")] == ["/d", "/d/e", "/d/e/f", "/d/l", "/d/p"]
    assert list(files.walk("/none")) == []


def test_frozen_files_follow_links_in_the_middle_and_odd_names(sandbox):
    sandbox.run("mkdir /d; echo x >/d/f; ln -s /d /l; touch $'/d/a\\nb' $'/d/\\xff' '/d/ü'", 5)
    files = sandbox.freeze()
    assert files.read("/l/f", 9) == b"x\n"
    assert files.stat("/l/../d/./f") is not None
    assert {path for path, _ in files.walk("/d")} == {"/d", "/d/f", "/d/a\nb", "/d/\udcff", "/d/ü"}
    assert sandbox.freeze().read("/d/f", 9) == b"x\n"


def test_check_sees_the_frozen_files(sandbox):
    sandbox.run("useradd ann; rm /etc/issue; echo hi >/srv/f; ln /srv/f /srv/g; ln -s f /srv/l", 5)
    sandbox.run("chown ann:ann /srv/f; chmod 640 /srv/f; touch /usr/bin/new", 5)
    sandbox.freeze()
    script = "cat /srv/l; stat -c '%a %U %h' /srv/f; test /srv/f -ef /srv/g && ls /usr/bin/new"
    assert sandbox.check(script, 10).output == "hi\n640 ann 2\n/usr/bin/new\n"
    script = "import os, sys; print(open('/srv/f').read() == sys.argv[1], os.listdir('/home'))"
    assert sandbox.check(TrustedScript(script, "python3", ("hi\n",)), 10).output == "True []\n"
    assert sandbox.check("test -e /etc/issue", 10).exit_code == 1


def test_checks_end_in_time_and_change_nothing(sandbox):
    sandbox.run("mkdir /srv/d; echo hi >/srv/d/f", 5)
    files = sandbox.freeze()
    assert sandbox.check("echo bad >/srv/d/f; rm -r /srv; exit 5", 10).exit_code == 5
    assert sandbox.check("sleep 60", 0.5).is_timeout
    assert sandbox.check("cat /srv/d/f", 10).output == "hi\n"
    assert files.read("/srv/d/f", 9) == b"hi\n"


def test_each_episode_begins_with_the_image(sandbox):
    sandbox.run("rm -rf /usr/bin/python3 /etc/passwd; touch /tmp/mine; sleep 60 &", 5)
    sandbox.freeze()
    sandbox.reset()
    assert output(sandbox, "ls /tmp; id -un; pgrep -c sleep || true; python3 -c 1") == "root\n0\n"


def test_closed_sandbox_can_begin_again(sandbox_kind: SandboxKind):
    sandbox = make_sandbox(sandbox_kind)
    with pytest.raises(EnvFault, match="must be reset before 'run'"):
        sandbox.run("true", 5)
    sandbox.close()
    sandbox.reset()
    assert output(sandbox, "echo 1") == "1\n"
    sandbox.close()
    sandbox.close()


def test_eight_sandboxes_work_at_once(sandbox_kind: SandboxKind):
    sandboxes = [make_sandbox(sandbox_kind) for _ in range(8)]

    def play(number: int) -> bytes | None:
        sandboxes[number].reset()
        output(sandboxes[number], f"echo {number} >/number; sleep 0.2", 20)
        return sandboxes[number].freeze().read("/number", 9)

    with ThreadPoolExecutor(8) as executor:
        assert list(executor.map(play, range(8))) == [b"%d\n" % i for i in range(8)]
    for sandbox in sandboxes:
        sandbox.close()


def test_auto_takes_what_is_there_and_says_what_is_missing(monkeypatch: pytest.MonkeyPatch):
    with pytest.raises(
        SettingsError, match="unknown kind of sandbox 'dokcer'; did you mean 'docker'"
    ):
        make_sandbox("dokcer")  # type: ignore[arg-type]
    with pytest.raises(SettingsError, match="memory_mib must be an integer >= 1, got 0"):
        SandboxLimits(memory_mib=0)
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.setenv("DOCKER_HOST", "unix:///nowhere/docker.sock")
    with pytest.raises(
        EnvFault, match=r"apt-get install bubblewrap uidmap; or no docker daemon"
    ) as error:
        make_sandbox("auto")
    assert "\n" not in str(error.value)


CHARACTERS = [chr(code) for code in range(1, 256)]


def test_every_character_of_a_command_arrives(sandbox):
    text = "".join(CHARACTERS)
    quoted = "".join("'\\''" if character == "'" else character for character in CHARACTERS)
    lines = "\n".join(f"{character}a{character}b" for character in CHARACTERS)
    output(sandbox, f"printf %s '{quoted}' >/quoted; printf %s\\\\n {chr(233)} >/bare")
    output(sandbox, f"cat >/heredoc <<'END'\n{text}\nEND\ncat >/lines <<'END'\n{lines}\nEND")
    output(sandbox, f"cat >/expanded <<END\n{text.replace('$', '').replace('`', '')}\nEND")
    files = sandbox.freeze()
    assert files.read("/quoted", 9999) == text.encode()
    assert files.read("/heredoc", 9999) == f"{text}\n".encode()
    assert files.read("/lines", 9999) == f"{lines}\n".encode()
    # A shell takes `\\]` in a here-document for what it is.
    assert files.read("/expanded", 9999) == f"{text.replace('$', '').replace('`', '')}\n".encode()


def test_tabs_indent_here_documents_and_makefiles(sandbox):
    script = "if true; then\n\tcat >/Makefile <<-END\n\t\tall:\n\tEND\n"
    script += "\tprintf 'x\ty\n' >/x\nfi\ncat >>/Makefile <<'END'\n\techo a\tb\nEND"
    assert output(sandbox, f"{script}\necho\tdone") == "done\n"
    files = sandbox.freeze()
    assert files.read("/Makefile", 99) == b"all:\n\techo a\tb\n"
    assert files.read("/x", 99) == b"x\ty\n"


@pytest.mark.parametrize("editing", ["set -o vi", "set -o emacs", "set -H"])
def test_characters_arrive_however_the_shell_edits_lines(sandbox, editing):
    assert output(sandbox, f"{editing}\necho a\tb") == "a b\n"
    text = "\t\x01\x04\x12\x15\x17\x1b[A\x7fé!1"
    assert output(sandbox, f"printf %s '{text}' | od -An -tx1").split() == [
        f"{byte:02x}" for byte in text.encode()
    ]


def test_bytes_that_are_no_text_pass_through_files(sandbox):
    octal = "".join(f"\\{byte:03o}" for byte in range(1, 256))
    output(
        sandbox, f"printf '{octal}' >/made; cp /made /copy; x=$(cat /made); printf %s \"$x\" >/kept"
    )
    output(sandbox, f"printf %s '{''.join(chr(0xDC00 + byte) for byte in range(128, 256))}' >/raw")
    assert output(sandbox, "echo '\ud800 \udc7f'") == "? ?\n"
    files, data = sandbox.freeze(), bytes(range(1, 256))
    assert [files.read(f"/{name}", 999) for name in ("made", "copy", "kept")] == [data] * 3
    assert files.read("/raw", 999) == data[127:]


@pytest.mark.parametrize("run", ["prepare", "check", "check_live"])
@pytest.mark.parametrize("interpreter", ["bash", "python3"])
def test_every_character_of_a_trusted_script_and_its_arguments_arrives(sandbox, run, interpreter):
    text = "".join(CHARACTERS).replace("'", "")
    digest = hashlib.md5(text.encode(), usedforsecurity=False).hexdigest()
    if interpreter == "bash":
        script = f"printf %s '{text}' | md5sum; printf %s \"$1\" | md5sum"
    else:
        show = "print(hashlib.md5(text.encode()).hexdigest())"
        script = f"import hashlib, sys\nfor text in ({text!r}, sys.argv[1]): {show}"
    result = getattr(sandbox, run)(TrustedScript(script, interpreter, (text,)), 20.0)
    assert [line.split()[0] for line in result.output.splitlines()] == [digest] * 2
