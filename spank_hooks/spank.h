/* Slurm's own header, with the one thing that is different here: we compile with
 * -fvisibility=hidden, for a symbol that we export could take the place of one of sbatch's own
 * (a global named `opt` did). What Slurm looks for by name must be seen. */
#ifndef HPCEXT_SPANK_H
#define HPCEXT_SPANK_H

#pragma GCC visibility push(default)
#include <slurm/spank.h>
#pragma GCC visibility pop

#endif
