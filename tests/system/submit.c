/*
 * Submits jobs that are held, as sbatch does but one after the other in one process, with whatever
 * lines of spank_job_env it is told to: sbatch would first have to start and to make them.
 *
 *     submit JOBS FILLING [LINE]...
 *
 * Each job has FILLING lines of another plugin, then LINE... It prints the seconds that the jobs took,
 * and on stderr what slurmctld says to the user. The exit status is 1 if it refused one.
 */
#include <errno.h>
#include <slurm/slurm.h>
#include <slurm/slurm_errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

static double now_s(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return now.tv_sec + 1e-9 * now.tv_nsec;
}

static void describe(job_desc_msg_t *job, int filling, int more, char **lines)
{
	static char *environment[] = { "PATH=/usr/bin:/bin", NULL };
	static char here[4096];

	slurm_init_job_desc_msg(job);
	job->name = "rules";
	job->script = "#!/bin/sh\ntrue\n";
	job->environment = environment;
	job->env_size = 1;
	job->user_id = getuid();
	job->group_id = getgid();
	job->work_dir = getcwd(here, sizeof(here));
	job->std_out = "/dev/null";
	job->min_nodes = 1;
	job->num_tasks = 1;
	job->priority = 0;
	job->spank_job_env_size = filling + more;
	job->spank_job_env = calloc(filling + more + 1, sizeof(char *));
	for (int index = 0; index < filling; index++)
		job->spank_job_env[index] = "_SLURM_SPANK_OPTION_other_name=value";
	for (int index = 0; index < more; index++)
		job->spank_job_env[filling + index] = lines[index];
}

int main(int count, char **words)
{
	submit_response_msg_t *said;
	job_desc_msg_t job;
	double begin;

	if (count < 3)
		return 2;
	slurm_init(NULL);
	describe(&job, atoi(words[2]), count - 3, words + 3);
	begin = now_s();
	for (int left = atoi(words[1]); left > 0; left--) {
		said = NULL;
		if (slurm_submit_batch_job(&job, &said)) {
			fprintf(stderr, "%s\n", slurm_strerror(errno));
			if (said && said->job_submit_user_msg)
				fprintf(stderr, "%s\n", said->job_submit_user_msg);
			return 1;
		}
		if (said->job_submit_user_msg)
			fprintf(stderr, "%s\n", said->job_submit_user_msg);
		slurm_free_submit_response_response_msg(said);
	}
	printf("%.6f\n", now_s() - begin);
	return 0;
}
