"""Chen et al., *Semi-Dynamic Load Balancing*, SoCC 2020 (LB-BSP): what is reproduced of it."""

from __future__ import annotations

from hpcext.sim.papers import lb_bsp_table
from hpcext.sim.papers.study import How, Study


def study(how: How) -> Study:
    """Run the experiments."""
    return Study(
        "lb-bsp",
        "LB-BSP (Chen et al., SoCC 2020): predicted speeds of workers",
        (*lb_bsp_table.tables(how),),
        (*lb_bsp_table.ASSUMED,),
    )
