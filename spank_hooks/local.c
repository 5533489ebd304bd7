#include "local.h"

#include <dlfcn.h>
#include <errno.h>
#include <limits.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <slurm/slurm.h>

#include "options.h"
#include "spank.h"

#define SCRIPT "cli_filter.lua"
#define LOADS "/lua/" SCRIPT /* in the lines that hpcext-admin has the site add to its script */

enum { WHY_SIZE = 512, SCRIPT_MOST = 1 << 20 };

static bool any_given_here(void)
{
	for (enum option_id id = 0; id < OPTIONS; id++)
		if (option_given_here(id))
			return true;
	return false;
}

/* Whether a file holds a word; if it cannot be read, that is not known, and it may. */
static bool may_hold(const char *path, const char *word)
{
	FILE *file = fopen(path, "re");
	bool found = true;
	char *text;
	size_t size;

	if (file == NULL)
		return true;
	text = malloc(SCRIPT_MOST + 1);
	if (text != NULL) {
		size = fread(text, 1, SCRIPT_MOST, file);
		text[size] = '\0';
		found = size == SCRIPT_MOST || strstr(text, word) != NULL;
	}
	free(text);
	fclose(file);
	return found;
}

/* Whether the site's script of cli_filter loads our rules, as far as this command can know: what it
 * has read of slurm.conf is a structure of libslurm that slurm.h describes, but does not declare. */
static bool rules_are_loaded(void)
{
	const slurm_conf_t *conf = dlsym(RTLD_DEFAULT, "slurm_conf");
	char path[PATH_MAX];
	const char *slash;
	int len;

	if (conf == NULL || conf->slurm_conf == NULL)
		return true;
	if (conf->cli_filter_plugins == NULL || strstr(conf->cli_filter_plugins, "lua") == NULL)
		return false;
	slash = strrchr(conf->slurm_conf, '/');
	if (slash == NULL)
		return true;
	len = snprintf(path, sizeof(path), "%.*s/" SCRIPT, (int)(slash - conf->slurm_conf),
		       conf->slurm_conf);
	return len >= (int)sizeof(path) || may_hold(path, LOADS);
}

static void note_that_rules_are_missing(void)
{
	const char *what = NULL;

	/* A step is paid for already. */
	if (getenv("SLURM_JOB_ID") != NULL &&
	    strcmp(program_invocation_short_name, "srun") == 0)
		return;
	/* In the order in which the rules go by them. */
	if (option_given_here(OPTION_TRAINER))
		what = "--requeue --open-mode=append";
	else if (option_given_here(OPTION_SUSPENDABLE))
		what = "--requeue --open-mode=append --signal=B:USR2@LEAD";
	else if (option_given_here(OPTION_GPUS))
		what = "--gres";
	if (what != NULL && !rules_are_loaded())
		slurm_info("hpcext: nothing fills in what the job needs, since the site's " SCRIPT
			   " does not load hpcext's rules: give %s yourself, and tell the "
			   "administrator", what);
}

void local_post_opt(void)
{
	static bool any;
	static unsigned times;
	char why[WHY_SIZE];

	any = any || any_given_here();
	if (++times > 1) {
		/* Its parts are one job to Slurm and several to us; a signal comes to one of them. */
		if (any) {
			slurm_error("hpcext: options of hpcext are not for a heterogeneous job (valid: "
				    "one part, without ':' or hetjob); submit the part that trains by "
				    "itself");
			options_refuse();
		}
		return;
	}
	/* Steps of a job that runs inherit its options, which its sbatch or a node has judged. */
	if (!any)
		return;
	if (!options_fit(getenv("HPCEXT_SCALING"), why, sizeof(why))) {
		slurm_error("hpcext: %s", why);
		options_refuse();
	}
	if (!options_belong(why, sizeof(why))) {
		slurm_error("hpcext: %s", why);
		options_refuse();
	}
	note_that_rules_are_missing();
}
