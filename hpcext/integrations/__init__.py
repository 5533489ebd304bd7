"""Plug-ins of other packages, which alone import them."""
