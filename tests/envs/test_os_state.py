"""Where a file tree differs from what it must be."""

import pytest

from agentpeft.envs.os_interaction.grading.state import (
    AGING,
    FileState,
    GroupState,
    Interval,
    State,
    UserState,
    read_accounts,
)
from agentpeft.envs.os_interaction.sandboxes.sandbox import FileStat

ETC = {
    "/etc/passwd": "root:x:0:0:root:/root:/bin/bash\nanna:x:2001:2001:Anna,,,:/srv/anna:/bin/sh\n"
    "anna:x:0:0::/:/bin/false\nbroken line\n",
    "/etc/group": "root:x:0:\nanna:x:2001:\nbakers:x:2002:anna,bela\n",
    "/etc/shadow": "anna:!$6$x:19000:1:90:7::22000:\n",
    "/etc/gshadow": "bakers:!:bela:anna,bela\n",
}


def read_aging(user):
    return [vars(user)[field] for field in AGING]


def find_difference(state, files):
    """Returns the first thing that is not as it must be, in words; None if all is."""
    return next(filter(None, state.judge(files)), None)


class Tree:
    """Frozen files of a few paths."""

    def __init__(self, **stats):
        self.contents = {**ETC, "/srv/a.txt": "one\ntwo\n"}
        self.stats = {name: FileStat("file", 0o644, 0, 0, 0, "", 100.0) for name in self.contents}
        self.stats["/srv/link"] = FileStat("symlink", 0o777, 0, 0, 0, "a.txt", 100.5)
        self.stats |= stats

    def stat(self, path):
        return self.stats.get(path)

    def read(self, path, max_bytes):
        return self.contents[path].encode()[:max_bytes] if path in self.contents else None

    def walk(self, path):
        return iter(sorted(self.stats.items()))


@pytest.mark.parametrize(
    "number", ["9" * 5000, "\u0661\u0665", "-1", "+1", " 1", "1_0", "1.0", "", "x"]
)
def test_what_is_no_number_of_an_account_is_left_out(number):
    tree = Tree()
    tree.contents["/etc/passwd"] += f"bela:x:{number}:1::/:/bin/sh\ncili:x:1:{number}::/:/bin/sh\n"
    tree.contents["/etc/group"] += f"cooks:x:{number}:bela\n"
    tree.contents["/etc/shadow"] = f"anna:!:{number}:{number}:90:7::{number}:\n"
    accounts = read_accounts(tree)
    assert not {"bela", "cili"} & accounts.users.keys()
    assert "cooks" not in accounts.groups
    assert read_aging(accounts.users["anna"]) == [-1, 90, 7, -1, -1]


def test_of_a_user_that_comes_twice_the_first_line_counts():
    accounts = read_accounts(Tree())
    assert accounts.users["anna"].uid == 2001
    assert read_aging(accounts.users["anna"]) == [1, 90, 7, -1, 22000]
    assert accounts.users["anna"].groups == ("bakers",)


@pytest.mark.parametrize(
    "state",
    [
        State(files=(FileState("/srv/a.txt", content="one\ntwo", mode=0o644, owner="root"),)),
        State(files=(FileState("/srv/a.txt", content="two\none\n", match="lines"),)),
        State(files=(FileState("/srv/link", "symlink", target="a.txt"),)),
        State(files=(FileState("/srv/b.txt", "absent"),)),
        State(files=(FileState("/srv/a.txt", mtime_s=100.9),)),
        State(intervals=(Interval("/srv/a.txt", "/srv/link", 0.5),)),
        State(users=(UserState("anna", 2001, "anna", ("bakers",), comment="Anna"),)),
        State(users=(UserState("anna", is_locked=True, max_days=90, inactive_days=-1),)),
        State(groups=(GroupState("bakers", 2002, ("bela", "anna"), ("bela",)),)),
    ],
)
def test_what_is_as_it_must_be_has_no_difference(state):
    assert find_difference(state, Tree()) is None


@pytest.mark.parametrize(
    ("state", "words"),
    [
        (State(files=(FileState("/srv/a.txt", "directory"),)), "must be 'directory', is 'file'"),
        (State(files=(FileState("/srv/a.txt", "absent"),)), "must be 'absent'"),
        (State(files=(FileState("/srv/b.txt"),)), "is 'absent'"),
        (State(files=(FileState("/srv/a.txt", content="one"),)), "content of /srv/a.txt"),
        (State(files=(FileState("/srv/a.txt", mode=0o600),)), "mode of /srv/a.txt"),
        (State(files=(FileState("/srv/a.txt", owner="anna"),)), "owner of /srv/a.txt"),
        (State(files=(FileState("/srv/a.txt", group="bakers"),)), "group of /srv/a.txt"),
        (State(files=(FileState("/srv/link", "symlink", target="/srv/a.txt"),)), "target of"),
        (State(files=(FileState("/srv/a.txt", mtime_s=102),)), "modification time"),
        (State(intervals=(Interval("/srv/a.txt", "/srv/link", 0.6),)), "0.6 s later"),
        (State(users=(UserState("bela"),)), "user bela is missing"),
        (State(users=(UserState("anna", groups=()),)), "groups"),
        (State(users=(UserState("anna", shell="/bin/false"),)), "shell"),
        (State(users=(UserState("anna", expiry_day=-1),)), "expiry_day"),
        (State(groups=(GroupState("poets"),)), "group poets is missing"),
        (State(groups=(GroupState("bakers", members=("anna",)),)), "members"),
        (State(groups=(GroupState("bakers", administrators=()),)), "administrators"),
    ],
)
def test_a_difference_is_said(state, words):
    assert words in find_difference(state, Tree())


def test_scripts_are_compared_without_comments_and_layout():
    tree = Tree()
    tree.contents["/srv/a.txt"] = "#!/bin/bash\n\n# ends\n  exit   3;\n"
    state = State(files=(FileState("/srv/a.txt", content="exit 3\n", match="script"),))
    assert find_difference(state, tree) is None
    tree.contents["/srv/a.txt"] = "exit 3\nexit 4\n"
    assert find_difference(state, tree) is not None


@pytest.mark.parametrize(
    ("script", "is_right"),
    [
        ("echo 'eagle'\n", True),
        ('#!/bin/sh\n"echo"  "eagle";\n', True),
        ("'echo eagle'\n", False),
        ("echo eagle#x\n", False),
        ("echo eagle # x\n", False),
        ("echo 'eagle\n", False),
        ("echo $'eagle'\n", False),
    ],
)
def test_words_of_a_script_are_its_words_however_quoted(script, is_right):
    tree = Tree()
    tree.contents["/srv/a.txt"] = script
    state = State(files=(FileState("/srv/a.txt", content="echo eagle\n", match="script"),))
    assert (find_difference(state, tree) is None) == is_right


FILLERS = ["\n", " \n", "\t", "# a comment\n", ";\n", "\r\n", "\x0b"]


@pytest.mark.parametrize(
    "content",
    [
        *("exit 13;;", ";\nexit 13", "exit 13\r", "exit 13\xa0", "exit 13\x0b", "\x85exit 13"),
        *("#!/bin/false\nexit 13", "#!/usr/bin/python3\nexit 13", "#!/bin/bash\r\nexit 13"),
        *("#!/bin/bash -n\nexit 13", "#!/bin/sh -e -u\nexit 13", "exit 13\\;"),
    ],
)
def test_what_bash_would_not_run_alike_is_another_script(content):
    tree = Tree()
    tree.contents["/srv/a.txt"] = content + "\n"
    for match in ("script", "lines"):
        state = State(files=(FileState("/srv/a.txt", content="exit 13\n", match=match),))
        assert "content of /srv/a.txt" in find_difference(state, tree)


@pytest.mark.parametrize(
    "content",
    [
        *("#!/usr/bin/env bash\n exit 13 ;", "#! /bin/sh -e\nexit '13'", " #!/bin/x\nexit 13"),
        *(
            "#!/bin/bash --login\nexit 13",
            "#!/usr/bin/env -S sh -e\nexit 13",
            "#!/bin/sh -\nexit 13",
        ),
    ],
)
def test_shells_blanks_and_one_semicolon_are_left_out(content):
    tree = Tree()
    tree.contents["/srv/a.txt"] = content
    state = State(files=(FileState("/srv/a.txt", content="exit 13\n", match="script"),))
    assert find_difference(state, tree) is None


@pytest.mark.parametrize("match", ["text", "lines", "script"])
@pytest.mark.parametrize("filler", FILLERS, ids=repr)
@pytest.mark.parametrize("num_chars", [0, 5_000, 40_000, 3_000_000])
def test_what_is_behind_the_right_content_counts_however_far_behind(match, filler, num_chars):
    wanted = "echo one\necho two\n"
    state = State(files=(FileState("/srv/a.txt", content=wanted, match=match),))
    tree = Tree()
    tree.contents["/srv/a.txt"] = wanted + filler * (num_chars // len(filler)) + "\nanything\n"
    assert "content of /srv/a.txt" in find_difference(state, tree)


@pytest.mark.parametrize(
    ("match", "filler"),
    [
        ("text", "\n"),
        ("lines", " \n"),
        ("script", "\n"),
        ("script", "# a comment\n"),
    ],
)
def test_what_a_comparison_leaves_out_may_be_long(match, filler):
    wanted = "echo one\necho two\n"
    state = State(files=(FileState("/srv/a.txt", content=wanted, match=match),))
    tree = Tree()
    tree.contents["/srv/a.txt"] = wanted + filler * (60_000 // len(filler))
    assert find_difference(state, tree) is None


def test_bytes_that_are_no_text_equal_no_character():
    class Bytes(Tree):
        def read(self, path, max_bytes):
            return b"a\xffb\n" if path == "/srv/a.txt" else super().read(path, max_bytes)

    state = State(files=(FileState("/srv/a.txt", content="a\N{REPLACEMENT CHARACTER}b\n"),))
    assert "content of /srv/a.txt" in find_difference(state, Bytes())


@pytest.mark.parametrize("name", ["passwd", "group"])
def test_accounts_are_read_whole_or_not_at_all(name):
    """A line that the limit of what is read cuts might look right."""
    line = {"passwd": "bela:x:7:7::/srv/bela:/bin/sh", "group": "poets:x:7:bela"}[name]
    state = {
        "passwd": State(users=(UserState("bela", shell="/bin/sh"),)),
        "group": State(groups=(GroupState("poets", members=("bela",)),)),
    }[name]
    tree = Tree()
    tree.contents[f"/etc/{name}"] = "\n" * (2**20 - len(line)) + line + ",cili\n"
    assert find_difference(state, tree) is not None
    tree.contents[f"/etc/{name}"] = "\n" * (2**20 - len(line) - 1) + line + "\n"
    assert find_difference(state, tree) is None


def test_an_owner_is_not_whom_a_renamed_root_says():
    tree = Tree()
    tree.contents["/etc/passwd"] = "anna:x:0:0::/:/bin/sh\n"
    state = State(
        files=(FileState("/srv/a.txt", owner="anna"),), users=(UserState("anna", uid=2001),)
    )
    assert "uid" in find_difference(state, tree)


@pytest.mark.parametrize("match", ["text", "lines", "script"])
@pytest.mark.parametrize("content", [b"caf\xe9\n", b"\xff\n", b"\xed\xa0\x80\n", b"\xc3(\n"])
def test_bytes_that_are_no_text_are_no_replacement_character(match, content):
    class Bytes(Tree):
        def read(self, path, max_bytes):
            return content[:max_bytes] if path == "/srv/a.txt" else super().read(path, max_bytes)

    wanted = content.decode("utf-8", "replace")
    state = State(files=(FileState("/srv/a.txt", content=wanted, match=match),))
    assert find_difference(state, Bytes()) is not None


def test_a_name_of_bytes_that_are_no_text_is_no_replacement_character():
    class Bytes(Tree):
        def read(self, path, max_bytes):
            data = super().read(path, max_bytes)
            return data.replace(b"/srv/anna", b"/srv/\xff") if data else data

    state = State(users=(UserState("anna", home="/srv/\ufffd"),))
    assert find_difference(state, Bytes()) is not None


@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        ("shadow", UserState("anna", is_locked=False)),
        *(("shadow", UserState("anna", **{field: -1})) for field in AGING),
        ("gshadow", GroupState("bakers", administrators=())),
    ],
)
def test_an_account_without_its_shadow_line_is_not_as_wanted(name, wanted):
    tree = Tree()
    del tree.contents[f"/etc/{name}"]
    is_user = isinstance(wanted, UserState)
    state = State(users=(wanted,)) if is_user else State(groups=(wanted,))
    assert find_difference(state, tree).endswith(f"line in /etc/{name} is missing")
