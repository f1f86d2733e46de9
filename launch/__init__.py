"""Commands that a person runs."""

import sys
from pathlib import Path

# Python puts a script's folder first on the path, where this one's `report`, `evaluate` and others
# would shadow packages of these names. So the scripts import this before all that is not Python's.
if sys.path and (Path(sys.path[0]) / "prepare_data.py").is_file():  # of whichever checkout
    del sys.path[0]
