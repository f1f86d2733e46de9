"""MySQL's functions whose result's type depends on their arguments."""

import re
from collections.abc import Callable

from agentpeft.envs.db_bench.backends.sqlite.mysql.expressions.arithmetic import modulo
from agentpeft.envs.db_bench.backends.sqlite.mysql.expressions.coercion import (
    align,
    convert,
    to_number,
    to_text,
)
from agentpeft.envs.db_bench.backends.sqlite.mysql.expressions.scopes import Fragment, Scope
from agentpeft.envs.db_bench.backends.sqlite.mysql.types import (
    DATE,
    DATETIME,
    DOUBLE,
    INTEGER,
    MAX_SCALE,
    TEXT,
    TIME,
    Kind,
    SqlType,
    merge_types,
    quote_text,
)

Builder = Callable[[list[Fragment], Scope], Fragment]
BUILDERS: dict[str, tuple[int, int, Builder]] = {}
"""By name: (least arguments, most arguments, function)."""


def _builds(name: str, least: int, most: int | None = None) -> Callable[[Builder], Builder]:
    def register(builder: Builder) -> Builder:
        BUILDERS[name] = (least, least if most is None else most, builder)
        return builder

    return register


@_builds("IFNULL", 1, 64)
def _coalesce(values: list[Fragment], scope: Scope) -> Fragment:
    kind = merge_types(value.type for value in values)
    converted = [convert(value, kind).sql for value in values]
    return Fragment(f"coalesce({', '.join([*converted, 'NULL'])})", kind)


@_builds("NULLIF", 2)
def _nullif(values: list[Fragment], scope: Scope) -> Fragment:
    test = " = ".join(align(values))
    return Fragment(f"(CASE WHEN {test} THEN NULL ELSE {values[0].sql} END)", values[0].type)


@_builds("ABS", 1)
def _abs(values: list[Fragment], scope: Scope) -> Fragment:
    value = to_number(values[0])
    kind = DOUBLE if value.type.kind is Kind.FLOAT else value.type
    return Fragment(f"abs({value.sql})", kind)


@_builds("FORMAT", 2)
def _format(values: list[Fragment], scope: Scope) -> Fragment:
    rounded = _rounded("my_round", values).sql
    return Fragment(f"my_format({rounded}, {to_number(values[1]).sql})", TEXT)


def _rounded(function: str, values: list[Fragment]) -> Fragment:
    value = to_number(values[0])
    places = to_number(values[1]) if len(values) > 1 else Fragment("0", INTEGER, literal="0")
    kind = DOUBLE if value.type.kind is Kind.FLOAT else value.type
    if kind.kind in (Kind.DECIMAL, Kind.DOUBLE):
        digits = kind.scale
        if places.literal is not None:
            digits = min(max(int(float(places.literal)), 0), MAX_SCALE)
        kind = SqlType(kind.kind, digits)
    is_decimal = int(kind.kind in (Kind.DECIMAL, Kind.INTEGER))
    return Fragment(f"{function}({value.sql}, {places.sql}, {is_decimal})", kind)


def _whole(function: str, values: list[Fragment]) -> Fragment:
    value = to_number(values[0])
    is_double = value.type.kind in (Kind.FLOAT, Kind.DOUBLE)
    return Fragment(f"{function}({value.sql})", DOUBLE if is_double else INTEGER)


@_builds("FIELD", 2, 64)
def _field(values: list[Fragment], scope: Scope) -> Fragment:
    tests = (" = ".join(align([values[0], other])) for other in values[1:])
    branches = " ".join(f"WHEN {test} THEN {n}" for n, test in enumerate(tests, start=1))
    return Fragment(f"(CASE {branches} ELSE 0 END)", INTEGER)


@_builds("INSTR", 2)
def _instr(values: list[Fragment], scope: Scope) -> Fragment:
    text, part = (to_text(value).sql for value in values)
    return Fragment(f"my_locate({part}, {text})", INTEGER)


@_builds("STR_TO_DATE", 2)
def _str_to_date(values: list[Fragment], scope: Scope) -> Fragment:
    kind = DATETIME
    if values[1].literal is not None:
        codes = set(re.findall(r"%(.)", values[1].literal))
        has_date, has_time = codes & set("YymMcdejDbaW"), codes & set("HhIiSsTrklpf")
        kind = (DATETIME if has_date else TIME) if has_time else DATE
    return Fragment(
        f"my_str_to_date({to_text(values[0]).sql}, {values[1].sql}, '{kind.kind}')", kind
    )


def _moment(value: Fragment, kind: SqlType) -> Fragment:
    return Fragment(f"my_temporal({value.sql}, '{kind.kind}')", kind)


def _extreme(function: str, values: list[Fragment]) -> Fragment:
    return Fragment(f"{function}({', '.join(align(values))})", merge_types(v.type for v in values))


BUILDERS |= {
    "GREATEST": (2, 64, lambda values, _: _extreme("max", values)),
    "LEAST": (2, 64, lambda values, _: _extreme("min", values)),
    "MOD": (2, 2, lambda values, _: modulo(to_number(values[0]), to_number(values[1]))),
    "ROUND": (1, 2, lambda values, _: _rounded("my_round", values)),
    "TRUNCATE": (2, 2, lambda values, _: _rounded("my_truncate", values)),
    "CEIL": (1, 1, lambda values, _: _whole("my_ceil", values)),
    "FLOOR": (1, 1, lambda values, _: _whole("my_floor", values)),
    "DATE": (1, 1, lambda values, _: _moment(values[0], DATE)),
    "TIMESTAMP": (1, 1, lambda values, _: _moment(values[0], DATETIME)),
    "TIME": (1, 1, lambda values, _: _moment(values[0], TIME)),
    "USER": (0, 0, lambda _values, _: Fragment("'agent@%'", TEXT)),
    "VERSION": (0, 0, lambda _values, _: Fragment("'8.0.36'", TEXT)),
    "DATABASE": (0, 0, lambda _, scope: Fragment(quote_text(scope.statement.schema.name), TEXT)),
}
