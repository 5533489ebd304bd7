/* In sbatch, srun and salloc: what was given fits together, and does something here. */
#ifndef HPCEXT_LOCAL_H
#define HPCEXT_LOCAL_H

/* Ends the command after what cannot be; called once for each part of a heterogeneous job. */
void local_post_opt(void);

#endif
