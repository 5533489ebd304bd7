/* In slurmstepd: the environment of the job, and how its batch script is started. */
#ifndef HPCEXT_REMOTE_H
#define HPCEXT_REMOTE_H

#include "args.h"
#include "spank.h"

/* The variables of the options that were given. */
int remote_post_opt(spank_t sp);

/* In the forked task, as the user: the batch script of a suspendable job or a trainer runs
 * under hpcext. */
int remote_task_init(spank_t sp, const struct args *args);

#endif
