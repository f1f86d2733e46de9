"""Families about files and directories: making, moving, copying, linking, owners and modes."""

from collections.abc import Callable

from agentpeft.envs.os_interaction.generator.families.family import (
    Blanks,
    Draw,
    add_family,
    family,
)
from agentpeft.envs.os_interaction.generator.scene import Scene
from agentpeft.envs.os_interaction.grading.state import FileState

_MODES = ("600", "640", "660", "700", "750", "755")

add_family("mkdir", "mkdir {d}", Scene.make_directory, d=Scene.new_directory)


@family("mkdir -p {d}")
def _mkdir_nested(scene: Scene) -> Blanks:
    path = scene.directory()
    for word in [scene.word() for _ in range(3)]:
        path = f"{path}/{word}"
        scene.make_directory(path)
    return {"d": path}


@family("mkdir {d}/{a} {d}/{b} {d}/{c}")
def _mkdir_several(scene: Scene) -> Blanks:
    d, a, b, c = scene.directory(), scene.word(), scene.word(), scene.word()
    for name in (a, b, c):
        scene.make_directory(f"{d}/{name}")
    return {"d": d, "a": a, "b": b, "c": c}


@family("mkdir -m {m} {d}")
def _mkdir_mode(scene: Scene) -> Blanks:
    d, m = scene.new_directory(), scene.choice("700", "750", "770")
    scene.make_directory(d, m)
    return {"d": d, "m": m}


add_family("touch", "touch {f}", Scene.make_lines, f=Scene.new)


@family("touch {d}/{a}{x} {d}/{b}{x} {d}/{c}{x}")
def _touch_several(scene: Scene) -> Blanks:
    d, x = scene.directory(), scene.extension()
    a, b, c = scene.word(), scene.word(), scene.word()
    for name in (a, b, c):
        scene.make_lines(f"{d}/{name}{x}")
    return {"d": d, "x": x, "a": a, "b": b, "c": c}


@family("touch -d '{t} 12:00 UTC' {f}")
def _touch_date(scene: Scene) -> Blanks:
    f = scene.file("content")
    t = f"{scene.number(2001, 2019)}-{scene.number(10, 12)}-{scene.number(10, 28)}"
    scene.change_date(f, t)
    return {"f": f, "t": t}


@family("touch -r {g} {f}")
def _touch_reference(scene: Scene) -> Blanks:
    f, g = scene.fresh_file(), scene.fresh_file()
    t = f"{scene.number(2001, 2019)}-{scene.number(10, 12)}-15"
    scene.change_date(f, t)
    scene.change_date(g, t)
    scene.initial.files[g] = scene.world.files[g]
    return {"f": f, "g": g}


add_family("rm", "rm {f}", Scene.remove, f=Scene.fresh_file)
add_family("rm_directory", "rm -r {d}", Scene.remove, d=Scene.tree)


@family("rm {d}/*{x}")
def _rm_pattern(scene: Scene) -> Blanks:
    x = ".tmp"
    d = scene.tree(x)
    for path in scene.world.files_below(d, x):
        scene.remove(path)
    return {"d": d, "x": x}


add_family("mv", "mv {f} {g}", Scene.move, f=lambda s: s.file("path"), g=Scene.new)
add_family(
    "mv_into", "mv {f} {d}", Scene.move_into, f=lambda s: s.file("path"), d=Scene.fresh_directory
)
add_family("cp", "cp {f} {g}", Scene.copy, f=Scene.text_file, g=Scene.new)


@family("cp -r {d} {e}")
def _cp_directory(scene: Scene) -> Blanks:
    e, d = scene.new_directory(), scene.deep_tree()
    scene.copy(d, e)
    return {"d": d, "e": e}


def _files_into(
    say: str,
    gold: str,
    put_into: Callable[[Scene, str, str], None],
    make_tree: Callable[[Scene, str], str],
) -> None:
    """Defines the family of bringing a tree's files of one ending into another directory."""

    @family(gold, say=say)
    def _files_into(scene: Scene) -> Blanks:
        e, x = scene.directory(), scene.extension()
        d = make_tree(scene, x)
        for path in scene.world.files_below(d, x):
            put_into(scene, path, e)
        return {"d": d, "x": x, "e": e}


_files_into("mv_pattern", "mv {d}/*{x} {e}", Scene.move_into, Scene.tree)
_files_into("cp_pattern", "cp {d}/*{x} {e}", Scene.copy_into, Scene.tree)
add_family(
    "ln", "ln -s {t} {f}", Scene.make_link, t=lambda s: s.file("path"), f=Scene.new_directory
)
add_family(
    "ln_directory", "ln -s {t} {f}", Scene.make_link, t=Scene.fresh_directory, f=Scene.new_directory
)


@family("ln -sf {t} {f}")
def _ln_replace(scene: Scene) -> Blanks:
    old, t = scene.fresh_file(), scene.fresh_file()
    f = f"{scene.fresh_directory()}/{scene.word()}"
    scene.add(FileState(f, "symlink", target=old))
    scene.change(f, "target", t)
    return {"t": t, "f": f}


@family("chmod {m} {f}")
def _chmod(scene: Scene) -> Blanks:
    f = scene.file("mode")
    m = scene.mode(f)
    scene.change(f, "mode", m)
    return {"f": f, "m": m}


def _chmod_symbolic(change: str, mode: str) -> None:
    """Defines the family of a change such as "u+x", and the mode that a new file (644) gets."""
    add_family(
        f"chmod_{change}",
        f"chmod {change} {{f}}",
        lambda s, f: s.change(f, "mode", mode),
        f=Scene.fresh_file,
    )


_chmod_symbolic("u+x", "744")
_chmod_symbolic("a+x", "755")
_chmod_symbolic("g+w", "664")
_chmod_symbolic("go-r", "600")
_chmod_symbolic("o-r", "640")


def _files_to(
    say: str, gold: str, blank: str, aspect: str, draw: Draw, make_tree: Callable[..., str]
) -> None:
    """Defines the family of changing an aspect of a tree's files of one ending."""

    @family(gold, say=say)
    def _files_to(scene: Scene) -> Blanks:
        x = scene.extension()
        d, value = make_tree(scene, x), draw(scene)
        for path in scene.world.files_below(d, x):
            scene.change(path, aspect, value)
        return {"d": d, "x": x, blank: value}


def _tree_to(say: str, gold: str, blank: str, aspect: str, draw: Draw) -> None:
    """Defines the family of changing an aspect of all that a tree has."""

    @family(gold, say=say)
    def _tree_to(scene: Scene) -> Blanks:
        d, value = scene.deep_tree(), draw(scene)
        for path in (d, *scene.world.below(d)):
            scene.change(path, aspect, value)
        return {"d": d, blank: value}


def _draw_mode(scene: Scene) -> str:
    return scene.choice(*_MODES)


_files_to("chmod_pattern", "chmod {m} {d}/*{x}", "m", "mode", _draw_mode, Scene.tree)


@family("chown {u} {f}")
def _chown(scene: Scene) -> Blanks:
    f, u = scene.file("owner"), scene.person()
    scene.change(f, "owner", u)
    return {"f": f, "u": u}


@family("chown {u}:{g} {f}")
def _chown_both(scene: Scene) -> Blanks:
    f, u, g = scene.fresh_file(), scene.person(), scene.team()
    scene.change(f, "owner", u)
    scene.change(f, "group", g)
    return {"f": f, "u": u, "g": g}


_tree_to("chown_tree", "chown -R {u} {d}", "u", "owner", Scene.person)


@family("chgrp {g} {f}")
def _chgrp(scene: Scene) -> Blanks:
    f, g = scene.file("group"), scene.team()
    scene.change(f, "group", g)
    return {"f": f, "g": g}


_tree_to("chgrp_tree", "chgrp -R {g} {d}", "g", "group", Scene.team)
_files_to("chgrp_pattern", "chgrp {g} {d}/*{x}", "g", "group", Scene.team, Scene.tree)


@family("chgrp {g} {d}\nchmod 2770 {d}")
def _team_directory(scene: Scene) -> Blanks:
    d, g = scene.fresh_directory(), scene.team()
    scene.change(d, "group", g)
    scene.change(d, "mode", "2770")
    return {"d": d, "g": g}


@family("find {d} -type f -name '*{x}' -exec rm {{}} +")
def _find_remove(scene: Scene) -> Blanks:
    x = scene.extension()
    d = scene.deep_tree(x)
    for path in scene.world.files_below(d, x):
        scene.remove(path)
    return {"d": d, "x": x}


@family("find {d} -type f -empty -delete")
def _find_delete_empty(scene: Scene) -> Blanks:
    d = scene.tree_with_empty_files()
    for path in scene.world.empty_files_below(d):
        scene.remove(path)
    return {"d": d}


_FIND = "find {d} -type f -name '*{x}' -exec"
_files_to("find_change_mode", _FIND + " chmod {m} {{}} +", "m", "mode", _draw_mode, Scene.deep_tree)
_files_into("find_cp", _FIND + " cp -t {e} {{}} +", Scene.copy_into, Scene.deep_tree)
_files_into("find_mv", _FIND + " mv -t {e} {{}} +", Scene.move_into, Scene.deep_tree)
