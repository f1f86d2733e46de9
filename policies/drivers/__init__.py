"""Adapters with which other libraries train on the environments, without the training service."""
