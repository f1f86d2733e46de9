"""One config trained with each of several settings, as trials of Ray Tune (extra `tune`)."""
