"""How generated DB-bench tasks say each clause in English, plainest first."""

from collections.abc import Sequence
from random import Random

_PHRASES: dict[str, tuple[str, ...]] = {
    "rows": (
        "Return {cols} of the rows in {table}{where}.",
        "What are {cols} of the entries in the {table} table{where}?",
        "From the {table} table, list {cols} of each row{where}.",
        "I need {cols} for the records of {table}{where}.",
        "Please look into {table} and report {cols} of the rows{where}.",
    ),
    "totals": (
        "Return {cols} in {table}{where}.",
        "What comes out as {cols} in the {table} table{where}?",
        "From the {table} table, compute {cols}{where}.",
        "I need {cols} of {table}{where}.",
    ),
    "groups": (
        "For each {groups} in {table}{where}, return {cols}.",
        "What are {cols} for every {groups} in the {table} table{where}?",
        "Put the rows of {table} into one group per {groups}{where}; list {cols} of each group.",
        "I need {cols} per {groups} of {table}{where}.",
        "Summarize {table} by {groups}{where}, reporting {cols}.",
    ),
    "where": (" where {c}", " for which {c}", " but only where {c}", " that satisfy this: {c}"),
    "totals_where": (
        " where {c}",
        " for which {c}",
        " counting only rows where {c}",
        " restricted to rows where {c}",
    ),
    "groups_where": (
        " (only rows where {c})",
        " (using only the rows for which {c})",
        " (leaving out all rows except those where {c})",
        " (looking only at rows such that {c})",
    ),
    "having": (
        "Keep only the groups where {c}.",
        "Show only those groups for which {c}.",
        "Include a group only if {c}.",
        "Leave a group out unless {c}.",
    ),
    "order": (
        "Sort the result by {keys}.",
        "Order the rows by {keys}.",
        "The rows should be arranged by {keys}.",
        "Give them sorted by {keys}.",
    ),
    "asc": ("{c} in ascending order", "{c} ascending", "increasing {c}", "{c} (smallest first)"),
    "desc": ("{c} in descending order", "{c} descending", "decreasing {c}", "{c} (largest first)"),
    "then": (
        ", then by ",
        ", with ties ordered by ",
        ", and where that is equal by ",
        " and then ",
    ),
    "limit": (
        "Return only the first {n}.",
        "Show just the first {n} of them.",
        "Stop after the first {n}.",
        "I want only the top {n} of that list.",
    ),
    "offset": (
        "Skip the first {m} and return the next {n}.",
        "Leave out the first {m} and show the {n} after that.",
        "Return the {n} that come right after the first {m}.",
        "Pass over the first {m}, then give me the following {n}.",
    ),
    "column_alias": (
        "Name the column for {c} {alias} in the result.",
        "Call the column with {c} {alias}.",
        "Use {alias} as the alias of {c}.",
        "The result column holding {c} should be labelled {alias}.",
    ),
    "table_alias": (
        "Use {alias} as an alias for the table.",
        "In the query, give the table the alias {alias}.",
        "Refer to the table as {alias} in your query.",
        "The query should alias the table as {alias}.",
    ),
    "=": ("the {c} is {v}", "the {c} equals {v}", "{c} is equal to {v}", "the {c} is exactly {v}"),
    "<>": (
        "the {c} is not {v}",
        "the {c} is different from {v}",
        "{c} does not equal {v}",
        "the {c} is anything but {v}",
    ),
    ">": (
        "the {c} is greater than {v}",
        "the {c} is above {v}",
        "{c} exceeds {v}",
        "the {c} is more than {v}",
    ),
    "<": (
        "the {c} is less than {v}",
        "the {c} is below {v}",
        "{c} is under {v}",
        "the {c} is smaller than {v}",
    ),
    ">=": (
        "the {c} is at least {v}",
        "the {c} is {v} or more",
        "{c} is greater than or equal to {v}",
        "the {c} is no less than {v}",
    ),
    "<=": (
        "the {c} is at most {v}",
        "the {c} is {v} or less",
        "{c} is less than or equal to {v}",
        "the {c} does not exceed {v}",
    ),
    "after": (
        "the {c} is after {v}",
        "the {c} is later than {v}",
        "{c} lies after {v}",
        "the {c} comes after {v}",
    ),
    "before": (
        "the {c} is before {v}",
        "the {c} is earlier than {v}",
        "{c} lies before {v}",
        "the {c} comes before {v}",
    ),
    "between": (
        "the {c} is between {v} and {w} inclusive",
        "the {c} is from {v} to {w}, both included",
        "{c} lies in the range {v} to {w} (inclusive)",
        "the {c} is neither less than {v} nor more than {w}",
    ),
    "in": (
        "the {c} is one of {v}, {w}",
        "the {c} is in the list {v}, {w}",
        "{c} is any of {v}, {w}",
        "the {c} is among {v}, {w}",
    ),
    "starts": (
        "the {c} starts with {v}",
        "the {c} begins with {v}",
        "{c} has {v} at its beginning",
        "the first letter of the {c} is {v}",
    ),
    "and": ("{a} and {b}", "both {a} and {b}", "{a}, and also {b}", "{a} while {b}"),
    "or": ("{a} or {b}", "either {a} or {b}", "{a}, or else {b}", "at least one holds: {a}; {b}"),
    "all": (
        "{a}, {b} and {c}",
        "all of these hold: {a}, {b}, {c}",
        "{a} and {b} and {c}",
        "{a}, and {b}, and {c}",
    ),
    "any": (
        "{a}, {b} or {c}",
        "at least one of these holds: {a}, {b}, {c}",
        "{a} or {b} or {c}",
        "{a}, or {b}, or {c}",
    ),
    "and_or": (
        "{a}, and at least one of these holds: {b}, or {c}",
        "{a} and additionally (either {b} or {c})",
        "{a}, together with one or both of: {b}; {c}",
        "{a} and ({b} or {c})",
    ),
    "or_and": (
        "{a}, or both of these hold: {b}, and {c}",
        "{a} or alternatively (both {b} and {c})",
        "{a}, or failing that, both of: {b}; {c}",
        "{a} or ({b} and {c})",
    ),
    "average_all": (
        "the average {c} of all rows",
        "the mean {c} of the whole table",
        "the average of {c} over the entire table",
        "the overall average {c}",
    ),
    "highest_all": (
        "the highest {c} of all rows",
        "the maximum {c} of the whole table",
        "the largest {c} in the entire table",
        "the overall maximum of {c}",
    ),
    "lowest_all": (
        "the lowest {c} of all rows",
        "the minimum {c} of the whole table",
        "the smallest {c} in the entire table",
        "the overall minimum of {c}",
    ),
    "average_some": (
        "the average {c} of those rows of the whole table where {d}",
        "the mean {c} over all rows of the table for which {d}",
        "the average of {c} among all table rows such that {d}",
        "the average {c} taken over every row of the table where {d}",
    ),
    "occurs": (
        "the {c} also occurs in some row of the table where {d}",
        "the {c} is one that some row of the table has where {d}",
        "at least one row of the table with the same {c} is such that {d}",
        "the {c} appears among the {c} values of rows of the table where {d}",
    ),
    "neither": (
        "the {c} is neither the highest nor the lowest {c} in the table",
        "the {c} is not the maximum and not the minimum {c} of the whole table",
        "{c} differs from both the largest and the smallest {c} of all rows",
        "the {c} is strictly between the table's lowest and highest {c}",
    ),
    "count": ("number of rows", "count of rows", "number of records", "row count"),
    "SUM": ("total {c}", "sum of {c}", "summed {c}", "overall {c} added up"),
    "AVG": ("average {c}", "mean {c}", "average of {c}", "mean of {c}"),
    "MAX": ("highest {c}", "maximum {c}", "largest {c}", "maximum of {c}"),
    "MIN": ("lowest {c}", "minimum {c}", "smallest {c}", "minimum of {c}"),
    "spread": (
        "difference between the highest and the lowest {c}",
        "gap between the maximum and the minimum {c}",
        "range of {c} (its maximum minus its minimum)",
        "largest {c} minus the smallest {c}",
    ),
    "ratio": (
        "total {c} divided by the number of rows",
        "sum of {c} divided by the row count",
        "ratio of the summed {c} to the number of rows",
        "quotient of the total {c} and the number of rows",
    ),
    "two_sums": (
        "total {c} plus the total {d}",
        "sum of {c} added to the sum of {d}",
        "total {c} and the total {d} added together",
        "combined sum of {c} and of {d}",
    ),
    "insert": (
        "Add a row to {table} with {values}.",
        "Insert a new record into the {table} table: {values}.",
        "Please create an entry in {table} that has {values}.",
        "The {table} table needs a new row with {values}.",
    ),
    "insert_both": (" and another one with ", "; also one with ", ", plus a second one with "),
    "delete": (
        "Delete the rows of {table}{where}.",
        "Remove from {table} the entries{where}.",
        "Please get rid of the records in the {table} table{where}.",
        "Drop those rows of {table} from the table{where}.",
    ),
    "update": (
        "In {table}, {changes} for the rows{where}.",
        "Update the {table} table: {changes} in the entries{where}.",
        "For the records of {table}{where}, {changes}.",
        "Please {changes} in those rows of {table}{where}.",
    ),
    "update_all": (
        "In {table}, {changes} for all rows.",
        "Update the whole {table} table: {changes} in every entry.",
        "For all records of {table}, {changes}.",
        "Please {changes} in each row of {table}.",
    ),
    "set": (
        "set the {c} to {v}",
        "change the {c} to {v}",
        "make the {c} {v}",
        "replace the {c} by {v}",
    ),
    "raise": (
        "increase the {c} by {v}",
        "raise the {c} by {v}",
        "add {v} to the {c}",
        "make the {c} {v} higher",
    ),
    "write_limit": (
        "Do this only for the first {n} of them when sorted by {keys}.",
        "Sorted by {keys}, only the first {n} of these are affected.",
        "Apply it just to the first {n} of those rows in the order of {keys}.",
        "Restrict it to the first {n} of them, ordered by {keys}.",
    ),
}


class Speaker:
    """Picks among the first `max_phrasings` ways (None: all) to say something."""

    def __init__(self, rng: Random, max_phrasings: int | None) -> None:
        """`rng` decides."""
        self.rng = rng
        self._max = max_phrasings

    def say(self, what: str, **words: str) -> str:
        """Returns a phrase with its blanks filled in."""
        return self.rng.choice(_PHRASES[what][: self._max]).format_map(words)

    def capital(self, what: str, **words: str) -> str:
        """Returns a phrase that begins a sentence."""
        text = self.say(what, **words)
        return text[0].upper() + text[1:]


def enumerate_words(words: Sequence[str]) -> str:
    """Returns "a", "a and b" or "a, b and c"."""
    *first, last = words
    return f"{', '.join(first)} and {last}" if first else last


def count_rows(num_rows: int) -> str:
    """Returns "row" or "3 rows", to go after "the first"."""
    return "row" if num_rows == 1 else f"{num_rows} rows"
