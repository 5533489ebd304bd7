"""Chen et al., *Semi-Dynamic Load Balancing* (LB-BSP), SoCC 2020: the parts without a cluster."""

from __future__ import annotations

from hpcext.papers.lb_bsp import (
    balance as lb_bsp_balance,
)
from hpcext.papers.lb_bsp import (
    measured as lb_bsp_measured,
)
from hpcext.papers.lb_bsp import (
    table as lb_bsp_table,
)
from hpcext.papers.study import How, Study


def study(how: How) -> Study:
    """Reproduce Figure 8, Table 3 on recorded speeds, and show measurements of real workers."""
    return Study(
        "lb-bsp",
        "Semi-dynamic load balancing in non-dedicated environments (Chen et al., SoCC 2020)",
        (*lb_bsp_balance.tables(how), *lb_bsp_table.tables(how), *lb_bsp_measured.tables()),
        (*lb_bsp_balance.ASSUMED, *lb_bsp_table.ASSUMED),
    )
