"""What a request is refused with."""


class Refused(Exception):  # noqa: N818 (a program's mistake or a limit, not an error of ours)
    """A request that is not answered; `status` is HTTP's, `kind` OpenAI's type of error."""

    def __init__(self, status: int, message: str, kind: str = "invalid_request_error") -> None:
        super().__init__(message)
        self.status, self.message, self.kind = status, message, kind
