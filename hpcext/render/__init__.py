"""How figures look: on a page, in a plot, in a table of a terminal, in a file."""
