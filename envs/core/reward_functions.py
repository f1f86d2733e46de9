"""Reward functions of users: named or given in settings, called with their results checked."""

from collections.abc import Callable
from dataclasses import dataclass
from math import isfinite, nan
from typing import TYPE_CHECKING

from agentpeft.envs.core.errors import EnvFault, SettingsError, import_user_module, shown

if TYPE_CHECKING:  # which imports this module where a reward is a function
    from agentpeft.envs.core.rewards import Episode


@dataclass(frozen=True)
class UserReward:
    """A user's function, the setting that it is of, and how messages call it."""

    setting: str
    name: str
    function: "Callable[[Episode], float]"

    @classmethod
    def load(cls, setting: str, given: object) -> "UserReward":
        """Returns the function that a setting has, or names as "module:function".

        Raises: SettingsError where it cannot be imported or called.
        """
        function, name = given, shown(given)
        if isinstance(given, str):
            name = given
            module_name, _, attribute = given.partition(":")
            try:
                function = getattr(import_user_module(module_name), attribute)
            except (SettingsError, AttributeError) as error:
                raise SettingsError(
                    f"{setting} {shown(given)} must be 'module:function' that can be imported: "
                    f"{error}"
                ) from error
        if not callable(function):
            raise SettingsError(f"{setting} {shown(given)} is not callable")
        return cls(setting, name, function)

    def __call__(self, episode: "Episode") -> float:
        """Returns the reward. Raises: EnvFault unless it is a finite number; what it raises."""
        try:
            value: object = self.function(episode)
        except Exception as error:
            error.add_note(f"{episode.place}: raised by the {self.setting} of the settings")
            raise
        try:
            reward = nan if isinstance(value, str | bytes) else float(value)  # type: ignore[arg-type]
        except (TypeError, ValueError, OverflowError):
            reward = nan
        if not isfinite(reward):
            raise EnvFault(
                f"{episode.place}: {self.setting} {self.name} returned {shown(value)}, "
                "no finite number"
            )
        return reward
