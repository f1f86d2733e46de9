"""Playing episodes: environments and an engine, tokens in, tokens out."""
