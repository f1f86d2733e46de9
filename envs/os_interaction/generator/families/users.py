"""Families about users and groups, their settings, and the ageing of passwords."""

from dataclasses import replace
from datetime import date

from agentpeft.envs.os_interaction.generator.families.family import (
    Blanks,
    Draw,
    Value,
    add_family,
    family,
    question,
)
from agentpeft.envs.os_interaction.generator.scene import Scene

_SHELLS = ("/bin/bash", "/bin/dash", "/usr/bin/bash")
_EPOCH = date(1970, 1, 1)


def _new_team(program: str, id_option: str) -> None:
    """Defines the families of making groups with `groupadd` or `addgroup`."""

    @family(f"{program} {{g}}", say=program)
    def _one(scene: Scene) -> Blanks:
        g = scene.word("TEAM")
        scene.make_team(g)
        return {"g": g}

    @family(f"{program} {id_option} {{n}} {{g}}", say=f"{program}_id")
    def _with_id(scene: Scene) -> Blanks:
        g, n = scene.word("TEAM"), scene.id()
        scene.make_team(g, n)
        return {"g": g, "n": n}

    @family(f"{program} {{g}}\n{program} {{h}}", say=f"{program}_two")
    def _two(scene: Scene) -> Blanks:
        g, h = scene.word("TEAM"), scene.word("TEAM")
        scene.make_team(g)
        scene.make_team(h)
        return {"g": g, "h": h}


_new_team("addgroup", "--gid")
_new_team("groupadd", "-g")


add_family("gpasswd_add", "gpasswd -a {u} {g}", Scene.join, u=Scene.person, g=Scene.team)


@family("gpasswd -d {u} {g}")
def _gpasswd_remove(scene: Scene) -> Blanks:
    u, other = scene.fresh_person(), scene.fresh_person()
    g = scene.fresh_team(u, other)
    scene.set_team(g, members=(other,))
    scene.claims.add((u, g))
    return {"u": u, "g": g}


@family("gpasswd -M {a},{b} {g}")
def _gpasswd_members(scene: Scene) -> Blanks:
    old = scene.fresh_person()
    g, a, b = scene.fresh_team(old), scene.fresh_person(), scene.fresh_person()
    scene.set_team(g, members=tuple(sorted((a, b))))
    scene.claims |= {(person, g) for person in (old, a, b)}
    return {"g": g, "a": a, "b": b}


@family("gpasswd -A {u} {g}")
def _gpasswd_administrator(scene: Scene) -> Blanks:
    u, g = scene.person(), scene.team("administrators")
    scene.set_team(g, administrators=(u,))
    return {"u": u, "g": g}


def _draw_shell(scene: Scene) -> str:
    return scene.choice(*_SHELLS)


def _draw_home(scene: Scene) -> str:
    return f"/home/{scene.word()}"


def _useradd(gold: str, **settings: tuple[str, Draw]) -> None:
    """Defines the family of a new user, by the aspect and the word of each blank's setting."""

    @family(gold, say="useradd")
    def _useradd(scene: Scene) -> Blanks:
        u = scene.word("NAME")
        words = {blank: draw(scene) for blank, (_, draw) in settings.items()}
        aspects = {aspect: words[blank] for blank, (aspect, _) in settings.items()}
        said = [scene.speaker.say(f"with_{name}", v=word) for name, word in aspects.items()]
        scene.make_user(u, **aspects)
        return {"u": u, **words, "settings": " and".join(said)}


_useradd("useradd {u}")
_useradd("useradd -s {s} {u}", s=("shell", _draw_shell))
_useradd("useradd -u {n} {u}", n=("uid", Scene.id))
_useradd("useradd -d {h} -c {c} {u}", h=("home", _draw_home), c=("comment", Scene.word))
_useradd("useradd -g {g} {u}", g=("group", Scene.team))


@family("useradd -G {g} -s {s} {u}", say="useradd")
def _useradd_team(scene: Scene) -> Blanks:
    u, g, s = scene.word("NAME"), scene.team(), scene.choice(*_SHELLS)
    said = [scene.speaker.say("with_team", v=g), scene.speaker.say("with_shell", v=s)]
    scene.make_user(u, shell=s)
    scene.join(u, g)
    return {"u": u, "g": g, "s": s, "settings": " and".join(said)}


@family("useradd -m {u}")
def _useradd_home(scene: Scene) -> Blanks:
    u = scene.word("NAME")
    scene.make_user(u, home=f"/home/{u}")
    scene.make_directory(f"/home/{u}")
    scene.change(f"/home/{u}", "owner", u)
    return {"u": u}


add_family("usermod_team", "usermod -aG {g} {u}", Scene.join, u=Scene.person, g=Scene.team)


def _change_account(say: str, gold: str, aspect: str, draw: Draw) -> None:
    """Defines the family of changing an aspect of a user."""

    @family(gold, say=say)
    def _change(scene: Scene) -> Blanks:
        u, v = scene.person(aspect), draw(scene)
        scene.change_account(u, aspect, v)
        return {"u": u, "v": v}


_change_account("usermod_group", "usermod -g {v} {u}", "group", Scene.team)
_change_account("usermod_home", "usermod -d {v} {u}", "home", _draw_home)
_change_account("usermod_shell", "usermod -s {v} {u}", "shell", _draw_shell)
_change_account("chsh", "chsh -s {v} {u}", "shell", _draw_shell)
_change_account("usermod_comment", "usermod -c {v} {u}", "comment", Scene.word)


@family("usermod -L {u}")
def _usermod_lock(scene: Scene) -> Blanks:
    u = scene.fresh_person()
    scene.set_account(u, is_locked=True)
    return {"u": u}


@family("chsh -s {s} {u}")
def _chsh_like(scene: Scene) -> Blanks:
    v, u, s = scene.fresh_person(), scene.fresh_person(), scene.choice(*_SHELLS)
    for world in scene.worlds:
        world.people[v] = replace(world.people[v], shell=s)
    scene.change_account(u, "shell", s)
    return {"u": u, "v": v, "s": s}


@family("chsh -s {v} {u}\nchsh -s {v} {w}")
def _chsh_two(scene: Scene) -> Blanks:
    u, w, v = scene.fresh_person(), scene.fresh_person(), scene.choice(*_SHELLS)
    scene.change_account(u, "shell", v)
    scene.change_account(w, "shell", v)
    return {"u": u, "w": w, "v": v}


def _chage_one(option: str, phrase: str, aspect: str, bounds: tuple[int, int]) -> None:
    """Defines the family of one number of days."""

    @family(f"chage {option} {{n}} {{u}}", say="chage")
    def _chage(scene: Scene) -> Blanks:
        u, n = scene.person("aging"), scene.number(*bounds)
        settings = scene.speaker.say(phrase, n=n)
        scene.set_account(u, **{aspect: int(n)})
        return {"u": u, "n": n, "settings": settings}


_chage_one("-M", "age_max", "max_days", (20, 180))


@family("chage -m {m} -M {n} {u}", say="chage")
def _chage_both(scene: Scene) -> Blanks:
    u, m, n = scene.person("aging"), scene.number(1, 9), scene.number(20, 180)
    least, most = scene.speaker.say("age_min", n=m), scene.speaker.say("age_max", n=n)
    scene.set_account(u, min_days=int(m), max_days=int(n))
    return {"u": u, "m": m, "n": n, "settings": f"{least} and {most}"}


_chage_one("-W", "age_warn", "warn_days", (8, 19))
_chage_one("-I", "age_inactive", "inactive_days", (5, 40))


@family("chage -E {t} {u}")
def _chage_expiry(scene: Scene) -> Blanks:
    u, t = scene.person("expiry"), f"2030-01-{scene.number(10, 28)}"
    scene.set_account(u, expiry_day=(date.fromisoformat(t) - _EPOCH).days)
    return {"u": u, "t": t}


@question("chage -l {u}", kind="number")
def _max_days_of(scene: Scene) -> tuple[Blanks, Value]:
    u, n = scene.fresh_person(), scene.number(20, 180)
    for world in scene.worlds:
        world.people[u] = replace(world.people[u], max_days=int(n))
    return {"u": u}, n
