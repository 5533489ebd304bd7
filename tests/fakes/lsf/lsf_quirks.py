"""Contract engine of LSF, written from the vendor's documentation: in what engines differ."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Quirks:
    bare_quotes: bool = False
    """The parameter file does not escape quotes in values."""

    unknown_keys_ignored: bool = False
    """Otherwise a key that the engine does not know in LSB_SUB_MODIFY_FILE refuses the job."""

    no_esub_arguments: bool = False
    """`-a "x(a,b)"` calls `esub.x` without arguments."""

    stray_argument: bool = False
    """`-a "x(a,b)"` calls `esub.x x a b`."""

    script_flattened: bool = False
    """LSB_SUB_COMMAND_LINE of a script is one line. Otherwise it is not there, as nothing says
    what it would be."""

    starter_gets_text: bool = False
    """%USRCMD is the text of the command, put in as it is. Otherwise it is the path of the script
    that has it: both are documented."""

    eexec_before_pre_exec: bool = False
    """eexec hears of START before the pre-exec command of -E has run."""

    empty_is_dash: bool = False
    """bjobs prints `-` for what is empty."""

    leader_alone: bool = False
    """LSB_JOBPIDS of a job control is the leader of the job, and no other process of it."""

    warning_misparsed: bool = False
    """`bsub -wa` and `-wt` are taken and mean nothing."""
    forgotten_fails: bool = False
    """bjobs exits with 255 for a job that it does not know. Otherwise it says so as a record with
    ERROR, and exits with 0."""

    times_in_hms: bool = False
    """bjobs writes run times and limits as `hh:mm:ss`: LSB_HMS_TIME_FORMAT, or another engine."""

    index_in_id: bool = False
    """JOBID of bjobs is `ID[INDEX]` for an element of an array: LSB_BJOBS_DISPLAY_ENH=Y."""

    blaunch_hides_gpus: bool = False
    """CUDA_VISIBLE_DEVICES of what blaunch starts is what blaunch itself had, if anything."""

    signals_do_not_count: bool = False
    """`bkill -s TSTP` leaves the state RUN, and a `bkill -s CONT` after it does not arrive.
    Otherwise both are refused, as the documentation leaves open what they do."""

    no_gpus: bool = False
    """bsub and bhosts have no -gpu."""

    no_bslots: bool = False
    """There is neither bslots nor brsvs."""

    no_json: bool = False
    """bjobs and bhosts have neither -json nor, bhosts, -o."""

    no_djob: bool = False
    """A job is told neither LSB_DJOB_HOSTFILE nor LSB_DJOB_NUMPROC."""

    no_command_line: bool = False
    """An esub is told LSB_SUB_COMMAND_LINE of nothing."""

    none_fails: bool = False
    """bjobs that finds no job exits with 255; its JSON says that there are no records."""

    no_rn: bool = False
    """bsub has no -rn."""

    lean: bool = False
    """The engine has what volclava 2.2 has: few fields of `bjobs -o`, bhosts as tables, lsrun in
    place of blaunch, `bparams -l`, and fewer options of bsub; see lsf_tables."""

    parallel_killed_at_once: bool = False
    """bkill, brequeue and bmig send SIGKILL alone to a job of several slots: as IBM documents it
    where lsf.conf has not LSB_USE_SEQUENTIAL_SIGNAL=Y."""


RECORDED = ("no_djob", "no_command_line", "none_fails", "no_rn")
"""Quirks of the engine that the recordings are of."""

LEAN = (*RECORDED, "lean", "no_bslots", "no_esub_arguments")
"""Those, and what else it has not that hpcext could use."""
