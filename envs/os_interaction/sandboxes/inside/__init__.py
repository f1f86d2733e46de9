"""Code that runs inside a sandbox: standard library only."""
