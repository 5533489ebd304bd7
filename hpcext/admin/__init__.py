"""The installation of hpcext into a batch system, by an administrator, and its removal."""
