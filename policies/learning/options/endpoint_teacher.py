"""A teacher that a server has: `training.teacher` is the URL of an OpenAI-compatible endpoint.

`/completions` with `echo` says how likely the served model finds each token of a prompt, which
vLLM and SGLang answer and most closed services do not. Prompts are token ids, so that what was
sampled is what is scored, never text that is tokenized again. What it does not protect against: a
server that reads the same ids as other words, where it does not say the ids that it has read.
"""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
from openai import APIError, OpenAI

from agentpeft.envs import SettingsError
from agentpeft.envs.core.errors import did_you_mean
from agentpeft.policies.engines.endpoint_address import check_url, read_key
from agentpeft.policies.engines.openai import MAX_RETRIES
from agentpeft.policies.errors import TrainingError
from agentpeft.policies.learning.samples import Sample, Scores

_NUM_REQUESTS = 32
"""Requests at once, of each learner: the server batches them."""
_ID_PREFIX = "token_id:"
_ODD = (APIError, AttributeError, TypeError, ValueError)
"""What the client, or reading its answer, raises where that is not what OpenAI's servers say."""


class EndpointTeacher:
    """Asks an endpoint for the log-probabilities of sampled tokens, at temperature 1."""

    def __init__(self, teacher: str) -> None:
        """`teacher` is the URL, with `#` and the model's name if it has several.

        Raises: SettingsError where it does not answer, or has no such model.
        """
        url, _, model = teacher.partition("#")
        self._url = url
        check_url("training.teacher", url)
        self._client = OpenAI(base_url=url, api_key=read_key() or "none", max_retries=MAX_RETRIES)
        try:
            known = [each.id for each in self._client.with_options(max_retries=1).models.list()]
        except _ODD as error:
            failure = "does not answer" if isinstance(error, APIError) else "lists no models"
            raise SettingsError(f"training.teacher {url!r} {failure}: {error}") from None
        if not model and len(known) != 1:
            raise SettingsError(
                f"training.teacher {url!r} has the models {', '.join(known) or 'none'}: name one "
                f"as {url}#NAME"
            )
        if model and model not in known:
            raise SettingsError(
                f"training.teacher {url!r} has no model {model!r}{did_you_mean(model, known)}"
            )
        self._model = model or known[0]

    def score(self, samples: Sequence[Sample]) -> list[Scores]:
        """Returns the log-probabilities of each sample's sampled tokens.

        Raises: TrainingError where the endpoint fails, or has read other tokens.
        """
        with ThreadPoolExecutor(_NUM_REQUESTS) as pool:
            return list(pool.map(self._score, samples))

    def _score(self, sample: Sample) -> Scores:
        trajectory = sample.trajectory
        if not sample.num_sampled_tokens:
            return Scores(np.zeros(0, np.float32))
        ids = np.concatenate([trajectory.prompt_ids, trajectory.token_ids]).tolist()
        logprobs = self._ask(ids)
        places = (len(trajectory.prompt_ids) + np.flatnonzero(trajectory.loss_mask)).tolist()
        sampled = [logprobs[place] for place in places] if len(logprobs) == len(ids) else [None]
        if None in sampled:
            raise TrainingError(
                f"training.teacher {self._url!r} answered {len(logprobs)} log-probabilities for "
                f"{len(ids)} tokens: it must say those of a prompt (`echo`), as vLLM does"
            )
        return Scores(np.array(sampled, np.float32))

    def _ask(self, ids: list[int]) -> Sequence[float | None]:
        """Returns the log-probabilities of all tokens, the first of which has none."""
        try:
            answer = self._client.completions.create(
                model=self._model,
                prompt=ids,
                echo=True,
                logprobs=0,
                max_tokens=0,
                temperature=1.0,
                extra_body={"return_tokens_as_token_ids": True},
            )
            told = answer.choices[0].logprobs if answer.choices else None
            if told is None:
                raise TrainingError(f"training.teacher {self._url!r} answered no log-probabilities")
            logprobs = [v if v is None else float(v) for v in told.token_logprobs or ()]
            # Some servers say the tokens' texts in place of their ids
            ids_said = (t for t in told.tokens or () if t.startswith(_ID_PREFIX))
            read = [token.removeprefix(_ID_PREFIX) for token in ids_said]
        except _ODD as error:
            raise TrainingError(f"training.teacher {self._url!r}: {error}") from None
        if read and read != [str(token) for token in ids]:
            raise TrainingError(
                f"training.teacher {self._url!r} has read other tokens than it was sent"
            )
        return logprobs
