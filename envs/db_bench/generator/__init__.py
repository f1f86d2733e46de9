"""Unlimited DB-bench tasks for any set of skills."""

from agentpeft.envs.db_bench.generator.generator import DBBenchGenerator

__all__ = ["DBBenchGenerator"]
