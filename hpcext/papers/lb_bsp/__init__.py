"""Chen et al., *Semi-Dynamic Load Balancing* (LB-BSP), SoCC 2020: all that needs no cluster."""

from __future__ import annotations

from hpcext.papers.lb_bsp import balance, measured, table
from hpcext.papers.study import Extent, Study


def study(how: Extent) -> Study:
    """Reproduce Figure 8, Table 3 on recorded speeds, and show measurements of real workers."""
    return Study(
        "lb-bsp",
        "Semi-dynamic load balancing in non-dedicated environments (Chen et al., SoCC 2020)",
        (*balance.tables(how), *table.tables(how), *measured.tables()),
        (*balance.ASSUMED, *table.ASSUMED),
    )
