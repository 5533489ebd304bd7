-- A module of Lmod for an hpcext on a file system that all nodes have, as docs/packages.md installs it:
-- copy it to DIR/hpcext/VERSION.lua, where DIR is in MODULEPATH.
local base = pathJoin("/opt/hpcext", myModuleVersion())

whatis("Share GPUs among deep-learning jobs inside Slurm or LSF")
help("hpcext --help, and hpcext(1)")

-- Not base/bin: the Python there is not the one that users' trainings are to run by.
prepend_path("PATH", pathJoin(base, "command"))
prepend_path("MANPATH", pathJoin(base, "share/man"))
