"""How figures look: on a page, in a picture, in a table of a terminal, in a file."""
