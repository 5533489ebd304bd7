"""The broker of a site: how many idle nodes the harvesters of all its users may have."""
