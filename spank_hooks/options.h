/* The options that sbatch, srun and salloc get, and what was given of them. */
#ifndef HPCEXT_OPTIONS_H
#define HPCEXT_OPTIONS_H

#include <stdbool.h>
#include <stddef.h>

#include "spank.h"

enum option_id {
	OPTION_SUSPENDABLE,
	OPTION_GPUS,
	OPTION_SCALING,
	OPTION_TRAINER,
	OPTION_CHECKPOINT,
	OPTIONS
};

/* Registers all options; only from slurm_spank_init(). With a reason they are refused when used:
 * who does not use them need not know that the plugin is not configured well. */
int options_register(spank_t sp, const char *disabled);

/* The value of an option, or NULL if it was not given. */
const char *option_value(enum option_id id);

/* Whether it was given on the command line of this command: not in slurmstepd, and not by the job that
 * the command runs in. */
bool option_given_here(enum option_id id);

/* The variable that tells a job of an option's value. */
const char *option_variable(enum option_id id);

/* The variable in which slurmctld tells a batch job of an option; the user may have made it up. */
const char *option_sent_as(enum option_id id);

/* In slurmstepd: what that variable holds, if the option has come by no other way. Checked as any
 * other value; a bad one is logged, and counts as not given. */
void option_take(enum option_id id, const char *value);

/* Whether what was given fits together, and if not, why, in one line.
 * `scaling` is HPCEXT_SCALING of the job's environment, or NULL. */
bool options_fit(const char *scaling, char *why, size_t size);

/* Whether each option has the one that it belongs to, and if not, why, in one line. */
bool options_belong(char *why, size_t size);

/* Ends sbatch, srun or salloc after bad input; anywhere else returns -1. */
int options_refuse(void);

#endif
