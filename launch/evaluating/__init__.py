"""Who is evaluated, and the files that an evaluation leaves."""
