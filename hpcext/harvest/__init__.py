"""Harvesting of idle nodes: leases that are taken, held and given back, and attempts on them."""
