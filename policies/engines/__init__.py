"""Engines that sample tokens from a policy; see `protocol`."""
