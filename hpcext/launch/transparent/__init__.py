"""Transparent suspension: a process tree that saves nothing is suspended as it is.

``saver.py`` takes the place of a command's own way to save. It takes the first of ``ways.py`` that
works here: CRIU (``criu.py``), with NVIDIA's driver, which moves GPU memory to host memory before
and back afterwards (``driver.py``; in a helper, ``driver_steps.py``). Nothing runs of what is in
images (``images.py``, ``manifest.py``) until it is asked to return.

Where CRIU does not work the tree may stay in memory, stopped (``resident.py``), and its supervisor
with it, until it becomes that of the next attempt (``residence.py``). What is told of all this is
in ``told.py``.

What images do not have is kept away from a command (``no_io_uring.py``), kept beside them
(``links.py``), or a reason not to suspend it (``opened.py``, ``connections.py``).

Standard library only, as all that a supervisor imports.
"""
