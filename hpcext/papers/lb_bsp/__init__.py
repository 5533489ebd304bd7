"""Chen et al., *Semi-Dynamic Load Balancing* (LB-BSP), SoCC 2020: all that needs no cluster."""

from __future__ import annotations

from hpcext.papers.lb_bsp import balance, measured, stragglers, table
from hpcext.papers.study import Extent, Study


def study(how: Extent) -> Study:
    """Reproduce Figure 8, Table 3 on recorded speeds, and show measurements of real workers.

    With data, also the rules on recorded workers of which some straggle.
    """
    return Study(
        "lb-bsp",
        "Semi-dynamic load balancing in non-dedicated environments (Chen et al., SoCC 2020)",
        (
            *balance.tables(how),
            *table.tables(how),
            *stragglers.tables(how.data),
            *measured.tables(),
        ),
        (*balance.ASSUMED, *table.ASSUMED, *stragglers.ASSUMED),
    )
