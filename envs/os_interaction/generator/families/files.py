"""Families about files and directories: making, moving, copying, linking, owners and modes."""

from agentpeft.envs.os_interaction.generator.families.family import Blanks, family
from agentpeft.envs.os_interaction.generator.scene import Scene, compute_noon
from agentpeft.envs.os_interaction.generator.world import new_node

_MODES = ("600", "640", "660", "700", "750", "755")


@family("mkdir {d}")
def _mkdir(scene: Scene) -> Blanks:
    d = scene.new_directory()
    scene.make_directory(d)
    return {"d": d}


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


@family("touch {f}")
def _touch(scene: Scene) -> Blanks:
    f = scene.new()
    scene.make_lines(f)
    return {"f": f}


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
    scene.initial.files[g].mtime_s = compute_noon(t)
    scene.change_date(f, t)
    scene.change_date(g, t)
    return {"f": f, "g": g}


@family("rm {f}")
def _rm(scene: Scene) -> Blanks:
    f = scene.fresh_file()
    scene.remove(f)
    return {"f": f}


@family("rm -r {d}")
def _rm_directory(scene: Scene) -> Blanks:
    d = scene.tree(scene.extension())
    scene.remove(d)
    return {"d": d}


@family("rm {d}/*{x}")
def _rm_pattern(scene: Scene) -> Blanks:
    x = ".tmp"
    d = scene.tree(x)
    for path in scene.world.files_in(d, x):
        scene.remove(path)
    return {"d": d, "x": x}


@family("mv {f} {g}")
def _mv(scene: Scene) -> Blanks:
    f, g = scene.file("path"), scene.new()
    scene.move(f, g)
    return {"f": f, "g": g}


@family("mv {f} {d}")
def _mv_into(scene: Scene) -> Blanks:
    f, d = scene.file("path"), scene.fresh_directory()
    scene.move_into(f, d)
    return {"f": f, "d": d}


@family("mv {d}/*{x} {e}")
def _mv_pattern(scene: Scene) -> Blanks:
    e, x = scene.directory(), scene.extension()
    d = scene.tree(x)
    for path in scene.world.files_in(d, x):
        scene.move_into(path, e)
    return {"d": d, "x": x, "e": e}


@family("cp {f} {g}")
def _cp(scene: Scene) -> Blanks:
    f, g = scene.text_file(), scene.new()
    scene.copy(f, g)
    return {"f": f, "g": g}


@family("cp -r {d} {e}")
def _cp_directory(scene: Scene) -> Blanks:
    e, d = scene.new_directory(), scene.deep_tree(scene.extension())
    scene.copy(d, e)
    return {"d": d, "e": e}


@family("cp {d}/*{x} {e}")
def _cp_pattern(scene: Scene) -> Blanks:
    e, x = scene.directory(), scene.extension()
    d = scene.tree(x)
    for path in scene.world.files_in(d, x):
        scene.copy_into(path, e)
    return {"d": d, "x": x, "e": e}


@family("ln -s {t} {f}")
def _ln(scene: Scene) -> Blanks:
    t, f = scene.file("path"), scene.new_directory()
    scene.make_link(f, t)
    return {"t": t, "f": f}


@family("ln -s {t} {f}")
def _ln_directory(scene: Scene) -> Blanks:
    t, f = scene.fresh_directory(), scene.new_directory()
    scene.make_link(f, t)
    return {"t": t, "f": f}


@family("ln -sf {t} {f}")
def _ln_replace(scene: Scene) -> Blanks:
    old, t = scene.fresh_file(), scene.fresh_file()
    f = f"{scene.fresh_directory()}/{scene.word()}"
    scene.add(f, new_node("symlink", target=old))
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

    @family(f"chmod {change} {{f}}", say=f"chmod_{change}")
    def _chmod(scene: Scene) -> Blanks:
        f = scene.fresh_file()
        scene.change(f, "mode", mode)
        return {"f": f}


_chmod_symbolic("u+x", "744")
_chmod_symbolic("a+x", "755")
_chmod_symbolic("g+w", "664")
_chmod_symbolic("go-r", "600")
_chmod_symbolic("o-r", "640")


@family("chmod {m} {d}/*{x}")
def _chmod_pattern(scene: Scene) -> Blanks:
    x = scene.extension()
    d, m = scene.tree(x), scene.choice(*_MODES)
    for path in scene.world.files_in(d, x):
        scene.change(path, "mode", m)
    return {"d": d, "x": x, "m": m}


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


@family("chown -R {u} {d}")
def _chown_tree(scene: Scene) -> Blanks:
    d, u = scene.deep_tree(scene.extension()), scene.person()
    for path in (d, *scene.world.below(d)):
        scene.change(path, "owner", u)
    return {"d": d, "u": u}


@family("chgrp {g} {f}")
def _chgrp(scene: Scene) -> Blanks:
    f, g = scene.file("group"), scene.team()
    scene.change(f, "group", g)
    return {"f": f, "g": g}


@family("chgrp -R {g} {d}")
def _chgrp_tree(scene: Scene) -> Blanks:
    d, g = scene.deep_tree(scene.extension()), scene.team()
    for path in (d, *scene.world.below(d)):
        scene.change(path, "group", g)
    return {"d": d, "g": g}


@family("chgrp {g} {d}/*{x}")
def _chgrp_pattern(scene: Scene) -> Blanks:
    x = scene.extension()
    d, g = scene.tree(x), scene.team()
    for path in scene.world.files_in(d, x):
        scene.change(path, "group", g)
    return {"d": d, "x": x, "g": g}


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


@family("find {d} -type f -name '*{x}' -exec chmod {m} {{}} +")
def _find_change_mode(scene: Scene) -> Blanks:
    x = scene.extension()
    d, m = scene.deep_tree(x), scene.choice(*_MODES)
    for path in scene.world.files_below(d, x):
        scene.change(path, "mode", m)
    return {"d": d, "x": x, "m": m}


@family("find {d} -type f -name '*{x}' -exec cp -t {e} {{}} +")
def _find_cp(scene: Scene) -> Blanks:
    e, x = scene.directory(), scene.extension()
    d = scene.deep_tree(x)
    for path in scene.world.files_below(d, x):
        scene.copy_into(path, e)
    return {"d": d, "x": x, "e": e}


@family("find {d} -type f -name '*{x}' -exec mv -t {e} {{}} +")
def _find_mv(scene: Scene) -> Blanks:
    e, x = scene.directory(), scene.extension()
    d = scene.deep_tree(x)
    for path in scene.world.files_below(d, x):
        scene.move_into(path, e)
    return {"d": d, "x": x, "e": e}
