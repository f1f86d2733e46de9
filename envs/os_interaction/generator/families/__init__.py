"""The families of generated OS tasks: a function each, with the commands that do what it does."""

from agentpeft.envs.os_interaction.generator.families import files, lines, questions, users
from agentpeft.envs.os_interaction.generator.families.family import FAMILIES

# What a task's id makes depends on which families there are and on their order, within these
# modules and among them.
__all__ = ["FAMILIES", "files", "lines", "questions", "users"]
