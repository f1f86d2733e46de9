"""Columns, literals, CASE and casts as SQLite text with types."""

import math

from sqlglot import exp

from agentpeft.envs.db_bench.backends.sqlite.mysql.compile.coercion import (
    align,
    choose,
    to_number,
    to_temporal,
    to_text,
)
from agentpeft.envs.db_bench.backends.sqlite.mysql.compile.expressions import (
    check_size,
    compile_condition,
    compile_expression,
    handles,
)
from agentpeft.envs.db_bench.backends.sqlite.mysql.compile.scopes import (
    Fragment,
    Scope,
    name_of,
)
from agentpeft.envs.db_bench.backends.sqlite.mysql.mistakes import Misplaced, Mistake
from agentpeft.envs.db_bench.backends.sqlite.mysql.types import (
    BLOB,
    DOUBLE,
    INTEGER,
    MAX_SCALE,
    NULL,
    TEXT,
    UNKNOWN,
    Kind,
    SqlType,
    parse_type,
    quote_text,
)

_SETTINGS = {
    "version": "8.0.36",
    "version_comment": "MySQL Community Server - GPL",
    "autocommit": "1",
    "sql_mode": "ONLY_FULL_GROUP_BY,STRICT_TRANS_TABLES,NO_ZERO_IN_DATE,NO_ZERO_DATE,"
    "ERROR_FOR_DIVISION_BY_ZERO,NO_ENGINE_SUBSTITUTION",
    "character_set_database": "utf8mb4",
    "collation_database": "utf8mb4_0900_ai_ci",
    "lower_case_table_names": "0",
}


@handles(exp.Column)
def _column(node: exp.Expr, scope: Scope) -> Fragment:
    if isinstance(node.this, exp.Star):
        raise Misplaced("*")
    table = name_of(node.args.get("table"))
    return scope.find_column(name_of(node.this, is_qualified=bool(table)), table)


@handles(exp.Literal)
def _literal(node: exp.Expr, scope: Scope) -> Fragment:
    text = node.name
    if node.is_string:
        return Fragment(quote_text(text), TEXT, literal=text)
    if "e" in text.lower():
        if math.isinf(float(text)):
            raise Mistake.BAD_DOUBLE(text)
        return Fragment(text, DOUBLE, literal=text)
    if "." in text:
        scale = len(text.split(".")[1])
        return Fragment(text, SqlType(Kind.DECIMAL, min(scale, MAX_SCALE)), literal=text)
    if len(text) > 18 and int(text) >= 1 << 63:
        return Fragment(f"{text}.0", SqlType(Kind.DECIMAL), literal=text)
    return Fragment(text, INTEGER, literal=text)


@handles(exp.Null)
def _null(node: exp.Expr, scope: Scope) -> Fragment:
    return Fragment("NULL", NULL)


@handles(exp.Boolean)
def _boolean(node: exp.Expr, scope: Scope) -> Fragment:
    return Fragment("1" if node.this else "0", INTEGER)


@handles(exp.Paren)
def _paren(node: exp.Expr, scope: Scope) -> Fragment:
    inner = compile_expression(node.this, scope)
    return inner if inner.literal is not None else inner._replace(sql=f"({inner.sql})")


@handles(exp.Case)
def _case(node: exp.Expr, scope: Scope) -> Fragment:
    operand = node.this and compile_expression(node.this, scope)
    branches = node.args["ifs"]
    check_size(len(operand.sql) * len(branches) if operand else 0)
    default = node.args.get("default")
    values = [compile_expression(branch.args["true"], scope) for branch in branches]
    values.append(compile_expression(default, scope) if default else Fragment("NULL", NULL))
    tests = []
    for branch in branches:
        if operand:
            tests.append(" = ".join(align([operand, compile_expression(branch.this, scope)])))
        else:
            tests.append(compile_condition(branch.this, scope))
    return choose(tests, values)


@handles(exp.If)
def _if(node: exp.Expr, scope: Scope) -> Fragment:
    otherwise = node.args.get("false")
    if otherwise is None:
        raise Mistake.ARGUMENTS("IF")
    values = [compile_expression(node.args["true"], scope), compile_expression(otherwise, scope)]
    return choose([compile_condition(node.this, scope)], values)


@handles(exp.Cast)
def _cast(node: exp.Expr, scope: Scope) -> Fragment:
    value = compile_expression(node.this, scope)
    target = node.args["to"]
    name = target.this.value if isinstance(target.this, exp.DType) else str(target.this)
    sizes = [int(size.name) for size in target.expressions]
    if name in ("INT", "VARCHAR", "TEXT", "BOOLEAN"):
        raise Misplaced(name)
    if name in ("BIGINT", "UBIGINT"):
        if value.type.kind is Kind.TEXT:
            return Fragment(f"CAST({value.sql} AS INTEGER)", INTEGER)
        number = to_number(value)
        is_decimal = int(number.type.kind is Kind.DECIMAL)
        return Fragment(f"my_cast_integer({number.sql}, {is_decimal})", INTEGER)
    if name == "DECIMAL":
        digits, scale = (*sizes, 10, 0)[:2] if len(sizes) != 1 else (sizes[0], 0)
        most = f"{'9' * (digits - scale) or '0'}.{'9' * scale or '0'}"
        rounded = f"my_round({to_number(value).sql}, {scale}, 1)"
        return Fragment(f"max(min({rounded}, {most}), -{most})", SqlType(Kind.DECIMAL, scale))
    if name in ("FLOAT", "DOUBLE"):
        return Fragment(f"CAST({to_number(value).sql} AS REAL)", parse_type(name))
    if name in ("DATE", "DATETIME", "TIME", "TIMESTAMP"):
        kind = parse_type(name)
        return Fragment(to_temporal(value._replace(literal=None), kind.kind).sql, kind)
    if name == "BINARY":
        return Fragment(f"({to_text(value).sql} COLLATE BINARY)", BLOB)
    text = to_text(value)
    return Fragment(f"substr({text.sql}, 1, {sizes[0]})", TEXT) if sizes else text


@handles(exp.Collate)
def _collate(node: exp.Expr, scope: Scope) -> Fragment:
    value = compile_expression(node.this, scope)
    name = "BINARY" if node.expression.name.lower().endswith("bin") else "NOCASE"
    return Fragment(f"({value.sql} COLLATE {name})", value.type, is_collated=True)


@handles(exp.Concat)
def _concat(node: exp.Expr, scope: Scope) -> Fragment:
    """Strings side by side, and what GROUP_CONCAT joins."""
    if not all(isinstance(part, exp.Literal) for part in node.expressions):
        texts = (to_text(compile_expression(part, scope)).sql for part in node.expressions)
        return Fragment(f"my_concat({', '.join(texts)})", TEXT)
    text = "".join(part.name for part in node.expressions)
    return Fragment(quote_text(text), TEXT, literal=text)


@handles(exp.National, exp.Introducer)
def _prefixed_string(node: exp.Expr, scope: Scope) -> Fragment:
    text = node.name if isinstance(node, exp.National) else node.expression.name
    return Fragment(quote_text(text), TEXT, literal=text)


@handles(exp.HexString)
def _hex(node: exp.Expr, scope: Scope) -> Fragment:
    digits = node.name if len(node.name) % 2 == 0 else "0" + node.name
    return Fragment(f"CAST(x'{digits}' AS TEXT)", TEXT)


@handles(exp.BitString)
def _bits(node: exp.Expr, scope: Scope) -> Fragment:
    return Fragment(str(int(node.name, 2)), INTEGER)


@handles(exp.SessionParameter)
def _setting(node: exp.Expr, scope: Scope) -> Fragment:
    name = node.name.lower()
    if name not in _SETTINGS:
        raise Mistake.UNKNOWN_VARIABLE(name)
    return Fragment(quote_text(_SETTINGS[name]), TEXT)


@handles(exp.Parameter)
def _variable(node: exp.Expr, scope: Scope) -> Fragment:
    return Fragment(f"my_get({quote_text(node.name.lower())})", UNKNOWN)


@handles(exp.PropertyEQ)
def _assignment(node: exp.Expr, scope: Scope) -> Fragment:
    if not isinstance(node.this, exp.Parameter):
        raise Misplaced(":=")
    value = compile_expression(node.expression, scope)
    return Fragment(f"my_set({quote_text(node.this.name.lower())}, {value.sql})", value.type)
