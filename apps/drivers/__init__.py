"""Other trainers on the environments: adapters that do without the training service."""
