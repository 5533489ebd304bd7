/* What the plugin tells hpcext-batch, which takes it out of the environment again. */
#ifndef HPCEXT_BATCH_H
#define HPCEXT_BATCH_H

#define BATCH_PROGRAM "hpcext-batch"
#define BATCH_COMMAND "HPCEXT_COMMAND"
#define BATCH_SCRIPT "HPCEXT_SCRIPT"
#define BATCH_LEAD "HPCEXT_LEAD_S"
#define BATCH_NODES "HPCEXT_TRAINER"
/* Set where the script is a trainer, which goes before suspendable: every trainer can be suspended. */
#define BATCH_IS_TRAINER "HPCEXT_IS_TRAINER"

#endif
