"""Families about the lines of files: writing, joining and editing them, scripts, and `cd`."""

from agentpeft.envs.os_interaction.generator.families.family import (
    Blanks,
    Value,
    add_family,
    family,
    question,
)
from agentpeft.envs.os_interaction.generator.scene import Scene
from agentpeft.envs.os_interaction.generator.world import new_node
from agentpeft.envs.os_interaction.grading.state import FileState

add_family("echo", "echo {t} > {f}", Scene.make_lines, f=Scene.new, t=Scene.line)


add_family(
    "append", "echo {t} >> {f}", Scene.append, f=lambda s: s.text_file("content"), t=Scene.line
)


@family("echo '{t}' > {f}")
def _echo_exact(scene: Scene) -> Blanks:
    f, special = scene.new(), scene.choice("$5", "50%", "a&b", "<b>", "#1", "C:\\x", "*")
    t = f"{special} {scene.word()}"
    scene.make_lines(f, t)
    return {"f": f, "t": t}


_TWO_LINES = "echo {a} > {f}\necho {b} >> {f}"
add_family("two_lines", _TWO_LINES, Scene.make_lines, f=Scene.new, a=Scene.word, b=Scene.word)


@family("echo 'echo {t}' > {f}\nchmod 755 {f}")
def _echo_executable(scene: Scene) -> Blanks:
    f, t = f"{scene.directory()}/{scene.word()}.sh", scene.word()
    scene.make_script(f, f"echo {t}")
    scene.change(f, "mode", "755")
    return {"f": f, "t": t}


@family("cat {f} {g} > {out}")
def _cat_join(scene: Scene) -> Blanks:
    f, g, out = scene.text_file(), scene.fresh_file(), scene.new()
    scene.make_lines(out, *scene.lines(f, g))
    return {"f": f, "g": g, "out": out}


@family("cat {f} >> {g}")
def _cat_append(scene: Scene) -> Blanks:
    g, f = scene.text_file("content"), scene.fresh_file()
    scene.append(g, *scene.lines(f))
    return {"f": f, "g": g}


@family("cat > {f} <<'END'\n{a}\n{b}\n{c}\nEND")
def _three_lines(scene: Scene) -> Blanks:
    f, a, b, c = scene.new(), scene.word(), scene.word(), scene.word()
    scene.make_lines(f, a, b, c)
    return {"f": f, "a": a, "b": b, "c": c}


@question("cat {f} > {out}", kind="text")
def _the_line(scene: Scene) -> tuple[Blanks, Value]:
    f, t = f"{scene.fresh_directory()}/{scene.word()}.txt", scene.line()
    scene.add_lines(f, t)
    return {"f": f}, t


@family("tee {f} {g} <<< '{t}' > /dev/null", "echo {t} | tee {f} {g} > /dev/null")
def _tee(scene: Scene) -> Blanks:
    f, g, t = scene.new(), scene.new(), scene.line()
    scene.make_lines(f, t)
    scene.make_lines(g, t)
    return {"f": f, "g": g, "t": t}


@family("tee -a {f} {g} <<< '{t}' > /dev/null")
def _tee_append(scene: Scene) -> Blanks:
    f, g, t = scene.text_file("content"), scene.text_file("content"), scene.line()
    scene.append(f, t)
    scene.append(g, t)
    return {"f": f, "g": g, "t": t}


@family("cat {f} | tee {g} {h} > /dev/null")
def _tee_copies(scene: Scene) -> Blanks:
    f, g, h = scene.text_file(), scene.new(), scene.new()
    scene.make_lines(g, *scene.lines(f))
    scene.make_lines(h, *scene.lines(f))
    return {"f": f, "g": g, "h": h}


@family("grep -w {w} {f} | tee {g} {h} > /dev/null")
def _tee_lines_with(scene: Scene) -> Blanks:
    f = scene.text_file()
    w, g, h = scene.word_in(f), scene.new(), scene.new()
    scene.make_lines(g, *scene.lines_with(w, f))
    scene.make_lines(h, *scene.lines_with(w, f))
    return {"f": f, "w": w, "g": g, "h": h}


@family(r"sed -i 's/\<{a}\>/{b}/g' {f}", r"vi -es -c '%s/\<{a}\>/{b}/g' -c wq {f}")
def _replace(scene: Scene) -> Blanks:
    f = scene.text_file("content")
    a, b = scene.word_in(f), scene.word()
    scene.replace(f, a, b)
    return {"f": f, "a": a, "b": b}


@family(r"sed -i '/\<{a}\>/d' {f}", r"vi -es -c 'g/\<{a}\>/d' -c wq {f}")
def _delete_lines(scene: Scene) -> Blanks:
    f = scene.text_file("content")
    a = scene.word_in(f)
    scene.edit(f, [line for line in scene.lines(f) if a not in line.split()])
    return {"f": f, "a": a}


@family("sed -i {n}d {f}", "vi -es -c {n}d -c wq {f}")
def _delete_line(scene: Scene) -> Blanks:
    f, n = scene.text_file("content"), scene.number(1, 4)
    lines = scene.lines(f)
    scene.edit(f, lines[: int(n) - 1] + lines[int(n) :])
    return {"f": f, "n": n}


@family("sed -i 's/^{k}=.*/{k}={v}/' {f}", "vi -es -c '%s/^{k}=.*/{k}={v}/' -c wq {f}")
def _set_value(scene: Scene) -> Blanks:
    f = f"{scene.fresh_directory()}/{scene.word()}.cfg"
    before, k, after = scene.word(), scene.word(), scene.word()
    other, old, v = scene.number(10, 49), scene.number(50, 99), scene.number(100, 999)
    scene.add_lines(f, f"{before}={other}", f"{k}={old}", f"{after}={other}")
    scene.replace(f, f"{k}={old}", f"{k}={v}")
    return {"f": f, "k": k, "v": v}


@family("cd {d}\npwd > {f}")
def _cd_where(scene: Scene) -> Blanks:
    d, f = scene.fresh_directory(), f"{scene.word()}.txt"
    scene.make_lines(f"{d}/{f}", d)
    return {"d": d, "f": f}


@question("cd {l}\npwd -P > {out}", kind="text")
def _the_real_path(scene: Scene) -> tuple[Blanks, Value]:
    target = f"{scene.fresh_directory()}/{scene.word()}"
    link = f"{scene.fresh_directory()}/{scene.word()}"
    scene.add(new_node(target, "directory"))
    scene.add(FileState(link, "symlink", target=target))
    return {"l": link}, target


@family("cd {d}\nprintf '%s\\n' {t} > {f}")
def _cd_write(scene: Scene) -> Blanks:
    d, f, t = scene.fresh_directory(), f"{scene.word()}.txt", scene.word()
    scene.make_lines(f"{d}/{f}", t)
    return {"d": d, "f": f, "t": t}


@family("cd {d}\nmkdir {a} {b}")
def _cd_mkdir(scene: Scene) -> Blanks:
    d, a, b = scene.fresh_directory(), scene.word(), scene.word()
    scene.make_directory(f"{d}/{a}")
    scene.make_directory(f"{d}/{b}")
    return {"d": d, "a": a, "b": b}


@family("cd {d}\ntouch {a} {b}")
def _cd_touch(scene: Scene) -> Blanks:
    d, a, b = scene.fresh_directory(), scene.word(), scene.word()
    scene.make_lines(f"{d}/{a}")
    scene.make_lines(f"{d}/{b}")
    return {"d": d, "a": a, "b": b}


@family("cd {d}\nln -s {t} {f}")
def _cd_ln(scene: Scene) -> Blanks:
    d = scene.tree()
    t, f = scene.file_in(d), scene.word()
    scene.make_link(t, f"{d}/{f}")
    return {"d": d, "t": t, "f": f}


@family("cd {d}\nrm {f}")
def _cd_rm(scene: Scene) -> Blanks:
    d = scene.tree()
    f = scene.file_in(d)
    scene.remove(f"{d}/{f}")
    return {"d": d, "f": f}


@family("cd {d}\ncp {f} {g}")
def _cd_cp(scene: Scene) -> Blanks:
    d = scene.tree()
    f, g = scene.file_in(d), scene.word()
    scene.copy(f"{d}/{f}", f"{d}/{g}")
    return {"d": d, "f": f, "g": g}


@family("printf 'exit {n}\\n' > {f}", "echo 'exit {n}' > {f}", skills=["exit"])
def _script_exit(scene: Scene) -> Blanks:
    f, n = scene.new(".sh"), scene.number(2, 60)
    scene.make_script(f, f"exit {n}")
    return {"f": f, "n": n}


def _the_status(has_file: bool) -> None:
    """Defines the family of a script whose status says whether a file is there."""

    @question(
        "bash {f}; printf '%s\\n' $? > {out}", kind="number", skills=["exit"], say="the_status"
    )
    def _status(scene: Scene) -> tuple[Blanks, Value]:
        d = scene.fresh_directory()
        f, path = f"{d}/{scene.word()}.sh", f"{d}/{scene.word()}"
        n, o = scene.number(2, 60), scene.number(61, 99)
        if has_file:
            scene.add_lines(path)
        scene.add_lines(f, "#!/bin/sh", f"if [ -e {path} ]; then exit {n}; fi", f"exit {o}")
        return {"f": f}, n if has_file else o


_the_status(has_file=True)
_the_status(has_file=False)


@family("(exit {n}); printf '%s\\n' $? > {out}")
def _exit_subshell(scene: Scene) -> Blanks:
    n, out = scene.number(2, 120), scene.new(".txt")
    scene.make_lines(out, n)
    return {"n": n, "out": out}


def _change_script(command: str) -> None:
    """Defines the family of a script whose last command is to get another number."""

    @family(
        f"sed -i 's/{command} {{a}}/{command} {{b}}/' {{f}}",
        skills=[command],
        say=f"change_{command}",
    )
    def _change(scene: Scene) -> Blanks:
        f, t = f"{scene.fresh_directory()}/{scene.word()}.sh", scene.word()
        a, b = scene.number(2, 30), scene.number(31, 60)
        scene.add_lines(f, "#!/bin/sh", f"echo {t}", f"{command} {a}")
        scene.replace(f, f"{command} {a}", f"{command} {b}")
        return {"f": f, "a": a, "b": b}


_change_script("exit")


@family("printf 'sleep {n}\\n' > {f}", "echo 'sleep {n}' > {f}", skills=["sleep"])
def _script_sleep(scene: Scene) -> Blanks:
    f, n = scene.new(".sh"), scene.number(2, 60)
    scene.make_script(f, f"sleep {n}")
    return {"f": f, "n": n}


@family(": > {f}\nsleep {n}\n: > {g}", "touch {f}\nsleep {n}\ntouch {g}")
def _sleep_between(scene: Scene) -> Blanks:
    f, g, n = scene.new(), scene.new(), scene.choice("0.1", "0.15", "0.2")
    scene.make_lines(f)
    scene.make_lines(g)
    scene.wait(f, g, n)
    return {"f": f, "g": g, "n": n}


@family(": > {f}\nsleep {n}\nprintf '%s\\n' {t} >> {g}")
def _sleep_append(scene: Scene) -> Blanks:
    f, g = scene.new(), scene.text_file("content")
    n, t = scene.choice("0.1", "0.15", "0.2"), scene.word()
    scene.make_lines(f)
    scene.append(g, t)
    scene.wait(f, g, n)
    return {"f": f, "g": g, "n": n, "t": t}


_change_script("sleep")
