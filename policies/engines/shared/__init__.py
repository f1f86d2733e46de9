"""Engines that several runs share: one base, and the adapters of all."""
