#include "options.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "values.h"

#define LEAD_DEFAULT_S "120"

/* has_arg of spank_option is that of getopt_long(3): Slurm hands it on (plugstack.c). */
enum { ARGUMENT_REQUIRED = 1, ARGUMENT_OPTIONAL = 2 };

static int on_option(int id, const char *value, int remote);

/* Slurm's help does not say whose an option is: `usage` does. */
static struct spank_option table[OPTIONS] = {
	[OPTION_SUSPENDABLE] = {
		.name = "hpcext-suspendable",
		.arginfo = "LEAD",
		.usage = "[hpcext] the job may be suspended and requeued; it is told LEAD seconds "
			 "before, to save its state (10 to 86400, by default " LEAD_DEFAULT_S ")",
		.has_arg = ARGUMENT_OPTIONAL,
		.val = OPTION_SUSPENDABLE,
		.cb = on_option,
	},
	[OPTION_GPUS] = {
		.name = "hpcext-gpus",
		.arginfo = "auto|N|MIN:MAX",
		.usage = "[hpcext] GPUs that the training can use (1 to 1024); more than one choice "
			 "needs --hpcext-scaling",
		.has_arg = ARGUMENT_REQUIRED,
		.val = OPTION_GPUS,
		.cb = on_option,
	},
	[OPTION_SCALING] = {
		.name = "hpcext-scaling",
		.arginfo = "NAME",
		.usage = "[hpcext] the profile that says how fast the training is on how many GPUs "
			 "(hpcext profile measures one)",
		.has_arg = ARGUMENT_REQUIRED,
		.val = OPTION_SCALING,
		.cb = on_option,
	},
	[OPTION_TRAINER] = {
		.name = "hpcext-trainer",
		.arginfo = "MIN:MAX",
		.usage = "[hpcext] the script trains on MIN to MAX idle nodes (1 to 10000), and the "
			 "job waits for it",
		.has_arg = ARGUMENT_REQUIRED,
		.val = OPTION_TRAINER,
		.cb = on_option,
	},
	[OPTION_CHECKPOINT] = {
		.name = "hpcext-checkpoint",
		.arginfo = "PRESET",
		.usage = "[hpcext] with --hpcext-suspendable or --hpcext-trainer: how the training "
			 "saves its state by its own means (lightning, transformers, ..., transparent)",
		.has_arg = ARGUMENT_REQUIRED,
		.val = OPTION_CHECKPOINT,
		.cb = on_option,
	},
};

/* What slurmctld puts before the name of an option that a job was submitted with. */
#define SENT "SLURM_SPANK__SLURM_SPANK_OPTION_hpcext_hpcext_"

static const struct {
	enum value_kind kind;
	const char *variable;
	const char *sent;
} rules[OPTIONS] = {
	[OPTION_SUSPENDABLE] = {VALUE_LEAD, "HPCEXT_LEAD_S", SENT "suspendable"},
	[OPTION_GPUS] = {VALUE_GPUS, "HPCEXT_GPUS", SENT "gpus"},
	[OPTION_SCALING] = {VALUE_NAME, "HPCEXT_SCALING", SENT "scaling"},
	[OPTION_TRAINER] = {VALUE_NODES, "HPCEXT_TRAINER", SENT "trainer"},
	[OPTION_CHECKPOINT] = {VALUE_PRESET, "HPCEXT_CHECKPOINT", SENT "checkpoint"},
};

static char given[OPTIONS][VALUE_SIZE]; /* "": not given; no valid value is empty */
static bool here[OPTIONS];		/* on this command line, and not by the job around it */
static const char *disabled_why;

int options_register(spank_t sp, const char *disabled)
{
	int rc = ESPANK_SUCCESS;

	memset(given, 0, sizeof(given));
	memset(here, 0, sizeof(here));
	disabled_why = disabled;
	for (int id = 0; id < OPTIONS && rc == ESPANK_SUCCESS; id++)
		rc = spank_option_register(sp, &table[id]);
	if (rc != ESPANK_SUCCESS)
		slurm_error("hpcext: options cannot be registered: %s", spank_strerror(rc));
	return rc;
}

const char *option_value(enum option_id id)
{
	return given[id][0] != '\0' ? given[id] : NULL;
}

bool option_given_here(enum option_id id)
{
	return here[id];
}

const char *option_variable(enum option_id id)
{
	return rules[id].variable;
}

const char *option_sent_as(enum option_id id)
{
	return rules[id].sent;
}

/* Whether a value is one that the job around this command was submitted with: srun calls back with
 * those before it reads its command line (plugstack.c, spank_process_env_options). */
static bool inherited(enum option_id id, const char *value)
{
	const char *sent = getenv(rules[id].sent);

	return sent != NULL && value != NULL && strcmp(sent, value) == 0;
}

/* What to do after a value that is not valid has been told: a job that runs already (in slurmstepd,
 * and where its own srun inherits the options of the job) is not to suffer. */
static int after_bad(bool runs)
{
	return runs ? ESPANK_SUCCESS : options_refuse();
}

/* An optional argument that was not given is NULL on the command line, "" in slurmstepd, and "(null)"
 * for the steps inside a batch job, whose srun finds the job's options in SLURM_SPANK_... variables
 * (22.05, plugstack.c, _option_setenv). An empty one on the command line is a mistake, as in
 * --hpcext-suspendable=$LAED. */
static bool lead_not_given(const char *value, int remote)
{
	return value == NULL || strcmp(value, "(null)") == 0 || (remote && value[0] == '\0');
}

static int on_option(int id, const char *value, int remote)
{
	enum value_kind kind = rules[id].kind;
	bool runs = remote || inherited(id, value);
	const char *problem;
	char shown[SHOWN_SIZE];

	if (disabled_why != NULL) {
		slurm_error("hpcext: --%s: not available here: %s; tell the administrator",
			    table[id].name, disabled_why);
		return after_bad(runs);
	}
	if (id == OPTION_SUSPENDABLE && lead_not_given(value, remote))
		value = LEAD_DEFAULT_S;
	if (value == NULL)
		value = "";
	problem = value_problem(kind, value);
	if (problem != NULL) {
		slurm_error("hpcext: --%s: %s%s%s (valid: %s)%s", table[id].name,
			    value_shown(value, shown), problem[0] != '\0' ? ": " : "", problem,
			    value_valid(kind), runs ? "; ignored" : "");
		return after_bad(runs);
	}
	snprintf(given[id], sizeof(given[id]), "%s", value);
	here[id] = !runs;
	return ESPANK_SUCCESS;
}

void option_take(enum option_id id, const char *value)
{
	if (option_value(id) == NULL)
		on_option(id, value, 1);
}

bool options_fit(const char *scaling, char *why, size_t size)
{
	const char *gpus = option_value(OPTION_GPUS);

	if (gpus == NULL || value_is_number(gpus) || option_value(OPTION_SCALING) != NULL)
		return true;
	/* A profile may also be named by a variable, which holds for what is submitted inside. */
	if (scaling != NULL && value_problem(VALUE_NAME, scaling) == NULL)
		return true;
	snprintf(why, size,
		 "--hpcext-gpus: '%s' leaves a choice, which nothing here decides (valid with it: "
		 "--hpcext-scaling=NAME); hpcext profile --name NAME measures a training",
		 gpus);
	return false;
}

bool options_belong(char *why, size_t size)
{
	if (option_value(OPTION_CHECKPOINT) == NULL || option_value(OPTION_TRAINER) != NULL ||
	    option_value(OPTION_SUSPENDABLE) != NULL)
		return true;
	snprintf(why, size,
		 "--hpcext-checkpoint: '%s' is for a job that may be suspended, which this one may "
		 "not (valid with it: --hpcext-suspendable, or --hpcext-trainer=MIN:MAX)",
		 option_value(OPTION_CHECKPOINT));
	return false;
}

int options_refuse(void)
{
	/* Where a callback fails, Slurm adds a line of its own with the value as it is, control
	 * characters too, and ends; where slurm_spank_init_post_opt() of an optional plugin fails,
	 * it goes on and submits (22.05, plugstack.c, _do_call_stack). So these three end here.
	 * Others (scrontab) keep a user's work, and know better what to do after an error. */
	static const char *const programs[] = {"sbatch", "salloc", "srun"};
	/* As in sbatch(1): the status that a user wants for errors of Slurm. */
	const char *status = getenv("SLURM_EXIT_ERROR");

	for (size_t i = 0; i < sizeof(programs) / sizeof(programs[0]); i++)
		if (strcmp(program_invocation_short_name, programs[i]) == 0)
			exit(status != NULL && atoi(status) != 0 ? atoi(status) : 1);
	return -1;
}
