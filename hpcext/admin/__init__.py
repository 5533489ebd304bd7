"""The installation of hpcext into a batch system, by an administrator, and its removal.

Files are installed as a whole, each is in a manifest, and none is removed that was changed
(``install.py``, ``manifest.py``). The site's own files are never edited: what they need is shown as
a diff (``edits.py``). Root relies only on paths that nobody else can change (``trust.py``).

What is installed for Slurm (``spank_hooks/``): options are checked in sbatch and again in
slurmstepd, where a bad one is only logged. The batch script of a suspendable job becomes
``hpcext-batch``, which has hpcext prepare what runs in its place
(:mod:`hpcext.backends.slurm.suspend`), or runs the user's script if that fails. The script of a
trainer becomes ``hpcext trainer``, a ticket.

For LSF (``lsf_scripts/``): an esub makes variables of ``bsub -a``, and a job starter is sourced
before the user's text, which it never touches. In a suspendable job that shell becomes the manager,
which runs the same once more; in that of a trainer it becomes the ticket. ``hpcext-job-control``,
``echkpnt`` and ``erestart`` find it by what it registered (:mod:`hpcext.backends.lsf.suspend`).
"""
