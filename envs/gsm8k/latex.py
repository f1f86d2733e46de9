r"""Numbers and units as LaTeX writes them, in plain text: `\frac{3}{4}\text{ m}^2` is `3/4 m^2`.

Only what leaves a number as it is, or can be written as a fraction, is replaced. Any other command
stays, backslash and all, and so does what it stands in: no number. Braces stay, too.
"""

import re

_ARGUMENT = r"\s*(?:\{\s*(-?[0-9][0-9,]*)\s*\}|([0-9]))"
_FRACTION = re.compile(rf"([0-9]?)\\[dtc]?frac{_ARGUMENT}{_ARGUMENT}")
_THOUSANDS = re.compile(r"\\,(?=[0-9]{3}(?![0-9]))|\{(?=,\})|(?<=\{,)\}")
_RAISED = re.compile(r"\^\s*\{\s*(-?[0-9]+|°)\s*\}")
_COMMAND = re.compile(
    r"\\(?:[hv]space\*?\s*\{[^{}]*\}|(?:text)?color\s*\{[a-z]*\}|([a-zA-Z]+)|(.))", re.DOTALL
)
_COMMANDS = {
    " ": ", ; : > ( ) [ ] quad qquad text textbf textit textrm textsf texttt textnormal mbox hbox "
    "mathrm mathbf mathit mathsf mathtt bm boldsymbol emph underline operatorname bf it rm "
    "displaystyle textstyle large Large huge Huge",
    "": "! left right big Big bigg Bigg bigl bigr Bigl Bigr",
    "/": "over",
    "°": "circ degree textdegree",
    "\u00d7": "times cdot",
    "$": "$ textdollar",
    "£": "pounds",
    "€": "euro texteuro",
    "¢": "cent textcent",
    "%": "%",
    "{": "{",
    "}": "}",
}
_PLAIN = {name: plain for plain, names in _COMMANDS.items() for name in names.split()} | {" ": " "}


def write_plainly(text: str) -> str:
    r"""Returns a text without the LaTeX that changes no number.

    >>> write_plainly(r"\left( 1\frac12 \right)~\mathrm{km}, 1{,}000^\circ")
    '( 1 1/2 )  {km}, 1,000°'
    """
    if "\\" not in text and "~" not in text and "{,}" not in text:
        return text
    text = _THOUSANDS.sub(lambda match: "\u2009" if match[0] == r"\," else "", text)
    text = _COMMAND.sub(_write_command, _FRACTION.sub(_write_fraction, text))
    return _RAISED.sub(r"^\1", text).replace("^°", "°").replace("~", " ")


def _write_command(match: re.Match[str]) -> str:
    name = match[1] or match[2]
    return " " if name is None else _PLAIN.get(name, match[0])


def _write_fraction(match: re.Match[str]) -> str:
    r"""Returns `\frac{3}{4}` as 3/4, and `\frac345` as 3/4 5."""
    whole, top, bottom = match[1], match[2] or match[3], match[4] or match[5]
    is_followed = match.string[match.end() : match.end() + 1].isdigit()
    return f"{whole}{' ' * bool(whole)}{top}/{bottom}{' ' * is_followed}"
