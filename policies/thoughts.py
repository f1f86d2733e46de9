"""Where a model's thoughts end: what follows them is its action."""

END_OF_THOUGHT = "</think>"


def is_thinking(text: str, end: str = END_OF_THOUGHT) -> bool:
    """Returns whether a thought begins in `text` and does not end.

    A thought begins with `end` less its slash; `end` without a slash has no such mark.

    >>> is_thinking("<think>1 + 1"), is_thinking("<think>1 + 1</think> 2"), is_thinking("2")
    (True, False, False)
    """
    begin = end.replace("/", "", 1)
    return begin != end and begin in text.rpartition(end)[2]


def find_action(text: str, end: str = END_OF_THOUGHT, *, is_opened: bool = False) -> str:
    r"""Returns what follows the last thought; of a thought without an end, nothing.

    A text without thoughts is returned as it is, as is every text where `end` is empty.
    `is_opened`: the prompt has begun a thought, as some chat templates do.

    >>> find_action("Should I stop?</think>\n\nGo on.", is_opened=True)
    'Go on.'
    >>> find_action("Should I stop?", is_opened=True), find_action("Go on.")
    ('', 'Go on.')
    """
    if not end:
        return text
    is_ended = end in text
    if is_thinking(text, end) or (is_opened and not is_ended):
        return ""
    return text.rpartition(end)[2].lstrip() if is_ended else text
