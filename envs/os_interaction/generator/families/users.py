"""Families about users and groups, their settings, and the ageing of passwords."""

from datetime import date

from agentpeft.envs.os_interaction.generator.families.family import Blanks, Value, family, question
from agentpeft.envs.os_interaction.generator.scene import Scene
from agentpeft.envs.os_interaction.generator.world import Team

_SHELLS = ("/bin/bash", "/bin/dash", "/usr/bin/bash")
_EPOCH = date(1970, 1, 1)
_MIN, _MAX, _WARN, _INACTIVE, _EXPIRY = range(5)
"""The index of each number in `Person.aging`."""


@family("groupadd {g}", say="groupadd")
@family("addgroup {g}", say="addgroup")
def _new_team(scene: Scene) -> Blanks:
    g = scene.word("TEAM")
    scene.world.teams[g] = Team()
    return {"g": g}


@family("groupadd -g {n} {g}", say="groupadd_id")
@family("addgroup --gid {n} {g}", say="addgroup_id")
def _new_team_with_id(scene: Scene) -> Blanks:
    g, n = scene.word("TEAM"), scene.id()
    scene.world.teams[g] = Team(int(n))
    return {"g": g, "n": n}


@family("groupadd {g}\ngroupadd {h}", say="groupadd_two")
@family("addgroup {g}\naddgroup {h}", say="addgroup_two")
def _two_new_teams(scene: Scene) -> Blanks:
    g, h = scene.word("TEAM"), scene.word("TEAM")
    scene.world.teams |= {g: Team(), h: Team()}
    return {"g": g, "h": h}


@family("gpasswd -a {u} {g}")
def _gpasswd_add(scene: Scene) -> Blanks:
    u, g = scene.person(), scene.team()
    scene.join(u, g)
    return {"u": u, "g": g}


@family("gpasswd -d {u} {g}")
def _gpasswd_remove(scene: Scene) -> Blanks:
    u, other = scene.fresh_person(), scene.fresh_person()
    g = scene.fresh_team(u, other)
    scene.world.teams[g].members.remove(u)
    scene.claims.add((u, g))
    return {"u": u, "g": g}


@family("gpasswd -M {a},{b} {g}")
def _gpasswd_members(scene: Scene) -> Blanks:
    old = scene.fresh_person()
    g, a, b = scene.fresh_team(old), scene.fresh_person(), scene.fresh_person()
    scene.world.teams[g].members = {a, b}
    scene.claims |= {(person, g) for person in (old, a, b)}
    return {"g": g, "a": a, "b": b}


@family("gpasswd -A {u} {g}")
def _gpasswd_administrator(scene: Scene) -> Blanks:
    u, g = scene.person(), scene.team("administrators")
    scene.world.teams[g].administrators = {u}
    return {"u": u, "g": g}


@family("useradd {u}")
def _useradd(scene: Scene) -> Blanks:
    u = scene.word("NAME")
    scene.make_user(u)
    return {"u": u, "settings": ""}


@family("useradd -s {s} {u}", say="useradd")
def _useradd_shell(scene: Scene) -> Blanks:
    u, s = scene.word("NAME"), scene.choice(*_SHELLS)
    settings = scene.speaker.say("with_shell", v=s)
    scene.make_user(u, shell=s)
    return {"u": u, "s": s, "settings": settings}


@family("useradd -u {n} {u}", say="useradd")
def _useradd_uid(scene: Scene) -> Blanks:
    u, n = scene.word("NAME"), scene.id()
    settings = scene.speaker.say("with_uid", v=n)
    scene.make_user(u, uid=n)
    return {"u": u, "n": n, "settings": settings}


@family("useradd -d {h} -c {c} {u}", say="useradd")
def _useradd_both(scene: Scene) -> Blanks:
    u, h, c = scene.word("NAME"), f"/home/{scene.word()}", scene.word()
    with_home = scene.speaker.say("with_home", v=h)
    with_comment = scene.speaker.say("with_comment", v=c)
    scene.make_user(u, home=h, comment=c)
    return {"u": u, "h": h, "c": c, "settings": f"{with_home} and{with_comment}"}


@family("useradd -g {g} {u}", say="useradd")
def _useradd_group(scene: Scene) -> Blanks:
    u, g = scene.word("NAME"), scene.team()
    settings = scene.speaker.say("with_group", v=g)
    scene.make_user(u, group=g)
    return {"u": u, "g": g, "settings": settings}


@family("useradd -G {g} -s {s} {u}", say="useradd")
def _useradd_team(scene: Scene) -> Blanks:
    u, g, s = scene.word("NAME"), scene.team(), scene.choice(*_SHELLS)
    with_team = scene.speaker.say("with_team", v=g)
    with_shell = scene.speaker.say("with_shell", v=s)
    scene.make_user(u, shell=s)
    scene.join(u, g)
    return {"u": u, "g": g, "s": s, "settings": f"{with_team} and{with_shell}"}


@family("useradd -m {u}")
def _useradd_home(scene: Scene) -> Blanks:
    u = scene.word("NAME")
    scene.make_user(u, home=f"/home/{u}")
    scene.make_directory(f"/home/{u}")
    scene.change(f"/home/{u}", "owner", u)
    return {"u": u}


@family("usermod -aG {g} {u}")
def _usermod_team(scene: Scene) -> Blanks:
    u, g = scene.person(), scene.team()
    scene.join(u, g)
    return {"u": u, "g": g}


@family("usermod -g {v} {u}")
def _usermod_group(scene: Scene) -> Blanks:
    u, v = scene.person("group"), scene.team()
    scene.change_account(u, "group", v)
    return {"u": u, "v": v}


@family("usermod -d {v} {u}")
def _usermod_home(scene: Scene) -> Blanks:
    u, v = scene.person("home"), f"/home/{scene.word()}"
    scene.change_account(u, "home", v)
    return {"u": u, "v": v}


@family("usermod -s {v} {u}", say="usermod_shell")
@family("chsh -s {v} {u}", say="chsh")
def _new_shell(scene: Scene) -> Blanks:
    u, v = scene.person("shell"), scene.choice(*_SHELLS)
    scene.change_account(u, "shell", v)
    return {"u": u, "v": v}


@family("usermod -c {v} {u}")
def _usermod_comment(scene: Scene) -> Blanks:
    u, v = scene.person("comment"), scene.word()
    scene.change_account(u, "comment", v)
    return {"u": u, "v": v}


@family("usermod -L {u}")
def _usermod_lock(scene: Scene) -> Blanks:
    u = scene.fresh_person()
    scene.world.people[u].is_locked = True
    return {"u": u}


@family("chsh -s {s} {u}")
def _chsh_like(scene: Scene) -> Blanks:
    v, u, s = scene.fresh_person(), scene.fresh_person(), scene.choice(*_SHELLS)
    for world in scene.worlds:
        world.people[v].shell = s
    scene.change_account(u, "shell", s)
    return {"u": u, "v": v, "s": s}


@family("chsh -s {v} {u}\nchsh -s {v} {w}")
def _chsh_two(scene: Scene) -> Blanks:
    u, w, v = scene.fresh_person(), scene.fresh_person(), scene.choice(*_SHELLS)
    scene.change_account(u, "shell", v)
    scene.change_account(w, "shell", v)
    return {"u": u, "w": w, "v": v}


def _chage_one(option: str, phrase: str, index: int, bounds: tuple[int, int]) -> None:
    """Defines the family of one number of days."""

    @family(f"chage {option} {{n}} {{u}}", say="chage")
    def _chage(scene: Scene) -> Blanks:
        u, n = scene.person("aging"), scene.number(*bounds)
        settings = scene.speaker.say(phrase, n=n)
        scene.world.people[u].aging[index] = int(n)
        return {"u": u, "n": n, "settings": settings}


_chage_one("-M", "age_max", _MAX, (20, 180))


@family("chage -m {m} -M {n} {u}", say="chage")
def _chage_both(scene: Scene) -> Blanks:
    u, m, n = scene.person("aging"), scene.number(1, 9), scene.number(20, 180)
    least, most = scene.speaker.say("age_min", n=m), scene.speaker.say("age_max", n=n)
    aging = scene.world.people[u].aging
    aging[_MIN], aging[_MAX] = int(m), int(n)
    return {"u": u, "m": m, "n": n, "settings": f"{least} and {most}"}


_chage_one("-W", "age_warn", _WARN, (8, 19))
_chage_one("-I", "age_inactive", _INACTIVE, (5, 40))


@family("chage -E {t} {u}")
def _chage_expiry(scene: Scene) -> Blanks:
    u, t = scene.person("expiry"), f"2030-01-{scene.number(10, 28)}"
    scene.world.people[u].aging[_EXPIRY] = (date.fromisoformat(t) - _EPOCH).days
    return {"u": u, "t": t}


@question("chage -l {u}", kind="number")
def _max_days_of(scene: Scene) -> tuple[Blanks, Value]:
    u, n = scene.fresh_person(), scene.number(20, 180)
    for world in scene.worlds:
        world.people[u].aging[_MAX] = int(n)
    return {"u": u}, n
