/* hpcext in sbatch, srun, salloc and slurmstepd: options, and what they do to a job.
 *
 *     optional /usr/lib/hpcext/hpcext.so command=/usr/bin/hpcext       (plugstack.conf)
 *
 * Nothing here makes a job fail that does not use it. */
#include "args.h"
#include "local.h"
#include "options.h"
#include "remote.h"

#define WHY_SIZE 512

#pragma GCC visibility push(default)
SPANK_PLUGIN(hpcext, 1)
#pragma GCC visibility pop

static struct args args;
static char why_disabled[WHY_SIZE]; /* "": it is not */

int slurm_spank_init(spank_t sp, int ac, char **av)
{
	int rc = args_parse(&args, ac, av, why_disabled, sizeof(why_disabled));

	switch (spank_context()) {
	case S_CTX_LOCAL:
	case S_CTX_ALLOCATOR:
		options_register(sp, rc == 0 ? NULL : why_disabled);
		break;
	case S_CTX_REMOTE:
		if (rc == 0)
			options_register(sp, NULL);
		else
			slurm_error("hpcext: %s; the plugin does nothing", why_disabled);
		break;
	case S_CTX_SLURMD: /* once, when slurmd starts */
		if (rc != 0)
			slurm_error("hpcext: %s; the plugin does nothing", why_disabled);
		break;
	default:
		break;
	}
	return ESPANK_SUCCESS;
}

int slurm_spank_init_post_opt(spank_t sp, int ac, char **av)
{
	(void)ac;
	(void)av;
	if (why_disabled[0] != '\0')
		return ESPANK_SUCCESS;
	if (spank_context() == S_CTX_REMOTE)
		return remote_post_opt(sp);
	local_post_opt();
	return ESPANK_SUCCESS;
}

int slurm_spank_task_init(spank_t sp, int ac, char **av)
{
	(void)ac;
	(void)av;
	return why_disabled[0] == '\0' ? remote_task_init(sp, &args) : ESPANK_SUCCESS;
}
