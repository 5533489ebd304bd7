"""No module needs itself: imports of the package have no circle, also those inside of functions."""

from __future__ import annotations

import graphlib

import grimp


def test_imports_have_no_circle() -> None:
    # What only annotations name is left out: nothing of it is there at run time.
    graph = grimp.build_graph("hpcext", exclude_type_checking_imports=True, cache_dir=None)
    imports = {each: graph.find_modules_directly_imported_by(each) for each in graph.modules}
    try:
        graphlib.TopologicalSorter(imports).prepare()
    except graphlib.CycleError as error:
        raise AssertionError(" imports ".join(reversed(error.args[1]))) from None
