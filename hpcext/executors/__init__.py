"""Executors carry actions out and turn what happens into facts. No loop, no decision."""
