"""The processes of a run: env runners and learners, as Ray actors or inline."""
