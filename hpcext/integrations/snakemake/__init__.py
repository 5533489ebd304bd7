"""The executor of Snakemake whose jobs run in a pilot: ``snakemake --executor hpcext``.

Snakemake finds plug-ins by the names of installed packages, so a package of its own, in
``site_configs/packaging/snakemake``, names what is here.
"""
