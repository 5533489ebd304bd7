"""Executors, which carry actions out and turn what happens into facts: no loop, no decision."""
