"""Tasks: where they come from, how they are generated, filtered, split and ordered."""
