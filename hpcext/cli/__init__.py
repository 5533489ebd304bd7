"""The command line: a module for each command, and :mod:`hpcext.cli.output`, which prints."""
