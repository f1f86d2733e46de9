"""Families that ask about files: `grep`, `wc`, `find`, `ls` and `awk`."""

from collections.abc import Callable
from posixpath import basename

from agentpeft.envs.os_interaction.generator.families.family import Blanks, Value, question
from agentpeft.envs.os_interaction.generator.scene import Scene
from agentpeft.envs.tasks.skill_generator import NoTaskHereError


@question("grep -w {w} {f} > {out}")
def _lines_with(scene: Scene) -> tuple[Blanks, Value]:
    f = scene.text_file()
    w = scene.word_in(f)
    return {"f": f, "w": w}, scene.lines_with(w, f)


@question("grep -vw {w} {f} > {out}")
def _lines_without(scene: Scene) -> tuple[Blanks, Value]:
    f = scene.text_file()
    w = scene.word_in(f)
    return {"f": f, "w": w}, [line for line in scene.lines(f) if w not in line.split()]


@question("grep -cw {w} {f} > {out}", "grep -w {w} {f} | wc -l > {out}", kind="number")
def _number_with(scene: Scene) -> tuple[Blanks, Value]:
    f = scene.text_file()
    w = scene.word_in(f)
    return {"f": f, "w": w}, len(scene.lines_with(w, f))


def _with_word(scene: Scene, d: str) -> tuple[Blanks, Value]:
    world, paths = scene.world, scene.world.files_below(d)
    w = scene.rng.choice(world.text(scene.file_below(d)).split())
    return {"d": d, "w": w}, [path for path in paths if w in world.text(path).split()]


@question("grep -lw {w} {d}/* > {out}", kind="names")
def _files_with(scene: Scene) -> tuple[Blanks, Value]:
    return _with_word(scene, scene.tree())


@question("cat {f} {g} | grep -w {w} > {out}")
def _lines_of_two(scene: Scene) -> tuple[Blanks, Value]:
    f, g = scene.text_file(), scene.fresh_file()
    w = scene.word_in(f)
    return {"f": f, "g": g, "w": w}, scene.lines_with(w, f, g)


def _count(say: str, gold: str, count: Callable[[Scene, str], int]) -> None:
    """Defines the family of a question for the size of a file."""

    @question(gold, kind="number", say=say)
    def _count(scene: Scene) -> tuple[Blanks, Value]:
        f = scene.text_file()
        return {"f": f}, count(scene, f)


_count("number_of_lines", "wc -l < {f} > {out}", lambda s, f: len(s.lines(f)))
_count("number_of_words", "wc -w < {f} > {out}", lambda s, f: sum(map(len, s.rows(f))))
_count("number_of_bytes", "wc -c < {f} > {out}", lambda s, f: len(s.world.text(f)))


@question("find {d} -type f -name '*{x}' > {out}", kind="names")
def _paths_below(scene: Scene) -> tuple[Blanks, Value]:
    x = scene.extension()
    d = scene.deep_tree(x)
    return {"d": d, "x": x}, scene.world.files_below(d, x)


@question("find {d} -name {f} > {out}", kind="text")
def _path_of(scene: Scene) -> tuple[Blanks, Value]:
    d = scene.deep_tree()
    path = scene.file_below(d)
    return {"d": d, "f": basename(path)}, path


@question("find {d} -type f -empty > {out}", kind="names")
def _empty_below(scene: Scene) -> tuple[Blanks, Value]:
    d = scene.tree_with_empty_files()
    return {"d": d}, scene.world.empty_files_below(d)


@question("find {d} -type f -name '*{x}' | wc -l > {out}", kind="number")
def _number_below(scene: Scene) -> tuple[Blanks, Value]:
    x = scene.extension()
    d = scene.deep_tree(x)
    return {"d": d, "x": x}, len(scene.world.files_below(d, x))


@question("find {d} -type f -exec grep -lw {w} {{}} + > {out}", kind="names")
def _paths_with(scene: Scene) -> tuple[Blanks, Value]:
    return _with_word(scene, scene.deep_tree())


@question("ls {d} > {out}", kind="names")
def _names_in(scene: Scene) -> tuple[Blanks, Value]:
    d = scene.tree()
    return {"d": d}, [*map(basename, scene.world.in_directory(d))]


@question("ls -A {d} > {out}", kind="names")
def _names_and_hidden(scene: Scene) -> tuple[Blanks, Value]:
    d = scene.tree()
    scene.add_lines(f"{d}/.{scene.word()}")
    return {"d": d}, [*map(basename, scene.world.in_directory(d))]


@question("ls {d} | wc -l > {out}", kind="number")
def _number_in(scene: Scene) -> tuple[Blanks, Value]:
    d = scene.tree()
    return {"d": d}, len(scene.world.in_directory(d))


@question("ls -t {d} > {out}")
def _names_by_time(scene: Scene) -> tuple[Blanks, Value]:
    d = scene.dated_tree()
    files = scene.world.files
    paths = sorted(scene.world.files_below(d), key=lambda path: -(files[path].mtime_s or 0))
    return {"d": d}, [*map(basename, paths)]


@question("awk '{{print ${n}}}' {f} > {out}")
def _column_of(scene: Scene) -> tuple[Blanks, Value]:
    f, n = scene.text_file(), scene.number(1, 3)
    rows = scene.rows(f)
    if min(map(len, rows)) < int(n):
        raise NoTaskHereError
    return {"f": f, "n": n}, [row[int(n) - 1] for row in rows]


@question("awk '{{s += $2}} END {{print s}}' {f} > {out}", kind="number")
def _sum_of(scene: Scene) -> tuple[Blanks, Value]:
    f = scene.table()
    return {"f": f}, sum(int(number) for _, number in scene.rows(f))


@question("awk '$2 >= {n} {{print $1}}' {f} > {out}", kind="names")
def _names_from(scene: Scene) -> tuple[Blanks, Value]:
    f = scene.table()
    rows = scene.rows(f)
    n = rows[2][1]
    return {"f": f, "n": n}, [name for name, number in rows if int(number) >= int(n)]


@question("""awk '$1 == "{w}" {{print $2}}' {f} > {out}""", kind="number")
def _number_of(scene: Scene) -> tuple[Blanks, Value]:
    f = scene.table()
    w, number = scene.rows(f)[1]
    return {"f": f, "w": w}, number
