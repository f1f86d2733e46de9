"""The families of generated OS tasks: a function each, with the commands that do what it does."""

from agentpeft.envs.os_interaction.generator.families import files, lines, questions, users
from agentpeft.envs.os_interaction.generator.families.family import FAMILIES

# What an id makes depends on the order in which families are defined, within these modules and
# among them: keep it, and add new families to the last one.
__all__ = ["FAMILIES", "files", "lines", "questions", "users"]
