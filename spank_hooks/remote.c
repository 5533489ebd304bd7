#include "remote.h"

#include <dlfcn.h>
#include <errno.h>
#include <limits.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <slurm/slurm.h>

#include "batch.h"
#include "options.h"
#include "values.h"

#define WHY_SIZE 512

/* Sets a variable of the job; an error is told, and no reason to fail. */
static bool set_variable(spank_t sp, const char *name, const char *value)
{
	spank_err_t rc = spank_setenv(sp, name, value, 1);

	if (rc != ESPANK_SUCCESS)
		slurm_error("hpcext: %s cannot be set: %s", name, spank_strerror(rc));
	return rc == ESPANK_SUCCESS;
}

static bool is_batch_script(spank_t sp)
{
	uint32_t step;

	return spank_get_item(sp, S_JOB_STEPID, &step) == ESPANK_SUCCESS &&
	       step == SLURM_BATCH_SCRIPT;
}

/* Options of sbatch travel twice: in the environment of the job, from which --export=NONE, NIL or a
 * list takes them away (22.05, sbatch.c, env_array_merge_slurm_spank), and as the spank_job_env of
 * its record, which slurmctld adds to whatever environment that is. */
static void take_options_of_job(spank_t sp)
{
	char value[SHOWN_SIZE];

	for (enum option_id id = 0; id < OPTIONS; id++) {
		spank_err_t rc = spank_getenv(sp, option_sent_as(id), value, sizeof(value));

		/* What is longer than this is cut, and no valid value is as long. */
		if (rc == ESPANK_SUCCESS || rc == ESPANK_NOSPACE)
			option_take(id, value);
	}
}

int remote_post_opt(spank_t sp)
{
	char scaling[VALUE_SIZE], why[WHY_SIZE];
	bool named = spank_getenv(sp, "HPCEXT_SCALING", scaling, sizeof(scaling)) == ESPANK_SUCCESS;
	bool fit;

	if (is_batch_script(sp))
		take_options_of_job(sp);
	fit = options_fit(named ? scaling : NULL, why, sizeof(why));
	if (!fit)
		slurm_error("hpcext: %s; ignored", why);
	for (enum option_id id = 0; id < OPTIONS; id++) {
		const char *value = option_value(id);

		if (value != NULL && (fit || id != OPTION_GPUS))
			set_variable(sp, option_variable(id), value);
	}
	if (option_value(OPTION_SUSPENDABLE) != NULL)
		set_variable(sp, "HPCEXT_SUSPENDABLE", "1");
	return ESPANK_SUCCESS;
}

/* Whether this process, which is the user's by now, may run a file. */
static bool can_run(const char *path)
{
	struct stat facts;

	if (stat(path, &facts) < 0)
		return false;
	if (!S_ISREG(facts.st_mode)) {
		errno = EISDIR;
		return false;
	}
	return access(path, X_OK) == 0;
}

/* The program beside this plugin, wherever that is. */
static bool find_program(char path[PATH_MAX])
{
	Dl_info self;
	const char *slash;
	int len;

	if (dladdr(&set_variable, &self) == 0 || self.dli_fname == NULL)
		return false;
	slash = strrchr(self.dli_fname, '/');
	if (slash == NULL || self.dli_fname[0] != '/')
		return false;
	len = snprintf(path, PATH_MAX, "%.*s/" BATCH_PROGRAM, (int)(slash - self.dli_fname),
		       self.dli_fname);
	return len < PATH_MAX;
}

int remote_task_init(spank_t sp, const struct args *args)
{
	static char program[PATH_MAX]; /* stays until execve(): argv points to it */
	bool trainer = option_value(OPTION_TRAINER) != NULL;
	const char *what = trainer ? "a trainer" : NULL;
	char **argv = NULL, parts[SHOWN_SIZE];
	int argc = 0;

	if (!trainer && option_value(OPTION_SUSPENDABLE) != NULL)
		what = "suspended";
	if (what == NULL || !is_batch_script(sp))
		goto plain;
	if (spank_getenv(sp, "SLURM_HET_SIZE", parts, sizeof(parts)) != ESPANK_ENV_NOEXIST) {
		slurm_error("hpcext: the job cannot be %s: it is a heterogeneous one; it runs as "
			    "usual", what);
		goto plain;
	}
	if (args->command == NULL) {
		slurm_error("hpcext: the job cannot be %s: plugstack.conf has no command=PATH; it "
			    "runs as usual", what);
		goto plain;
	}
	if (!can_run(args->command)) {
		slurm_error("hpcext: the job cannot be %s: %s: %s; it runs as usual", what,
			    args->command, strerror(errno));
		goto plain;
	}
	if (!find_program(program) || !can_run(program)) {
		slurm_error("hpcext: the job cannot be %s: no " BATCH_PROGRAM
			    " beside the plugin; it runs as usual", what);
		goto plain;
	}
	if (spank_get_item(sp, S_JOB_ARGV, &argc, &argv) != ESPANK_SUCCESS || argc < 1 ||
	    argv == NULL || argv[0] == NULL) {
		slurm_error("hpcext: the job cannot be %s: Slurm does not say what it runs; it "
			    "runs as usual", what);
		goto plain;
	}
	if (!set_variable(sp, BATCH_COMMAND, args->command) ||
	    !set_variable(sp, BATCH_SCRIPT, argv[0]))
		goto plain;
	if (trainer && !set_variable(sp, BATCH_IS_TRAINER, "1"))
		goto plain;
	if (!trainer)
		spank_unsetenv(sp, BATCH_IS_TRAINER); /* a user's own would mislead */
	/* The array is the very one that slurmstepd gives to execve() after the task prologs,
	 * TMPDIR and the user's limits (22.05, slurmd/slurmstepd/task.c, exec_task; it is shared
	 * since slurmstepd_job.c: task->argv = job->argv). An execve() from here would leave all
	 * that out. spank.h asks not to modify it: it must not grow, and what it points to is not
	 * ours; so one pointer changes, in a process that is about to become the job, and the
	 * program there puts the rest in front. */
	argv[0] = program;
plain:
	return ESPANK_SUCCESS;
}
