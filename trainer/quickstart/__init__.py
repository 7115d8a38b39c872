"""The stages of `./quickstart`, run through the same `longmix` commands that a user would give."""
