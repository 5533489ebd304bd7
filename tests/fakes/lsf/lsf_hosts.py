"""Contract engine of LSF, written from the vendor's documentation: hosts, queues, what is free."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence

import lsf_submit
import lsf_tables
from lsf_site import Host, Queue, RefusedError, Site

OPTIONS = {
    "bjobs": {"-A", "-a", "-J", "-l", "-o", "-json", "-noheader", "-u", "-w"},
    "bhosts": {"-w", "-X", "-o", "-json", "-gpu"},
    "bparams": {"-a", "-l"},
}
BSUB = lsf_submit.VALUES | lsf_submit.SWITCHES
SHOWN = {"RUN", "SSUSP", "USUSP", "UNKWN"}
HEADER = "RSVID        TYPE      USER       NCPUS          RSV_HOSTS     TIME_WINDOW"


def options(site: Site, name: str) -> set[str]:
    """What a command takes at this site."""
    known = set(BSUB if name == "bsub" else OPTIONS.get(name, ()))
    if site.quirks.no_gpus:
        known.discard("-gpu")
    if site.quirks.no_rn:
        known.discard("-rn")
    if site.quirks.no_json:
        known -= {"-json", "-o"} if name == "bhosts" else {"-json"}
    return known - lsf_tables.LACKS.get(name, set()) if site.quirks.lean else known


def check_options(site: Site, name: str, argv: Sequence[str]) -> None:
    """Refuse what this site has not; -h prints the usage to stderr, as the manual pages say."""
    if site.quirks.no_bslots and name in {"bslots", "brsvs"}:
        raise RefusedError(f"{name}: command not found")
    everything = BSUB if name == "bsub" else OPTIONS.get(name, set())
    known = options(site, name)
    asked = argv[:1] == ["-h"]
    if asked or any(word in everything - known for word in argv):
        raise RefusedError(f"Usage: {name} {' '.join(f'[{word}]' for word in sorted(known))}")


def lsid(site: Site, argv: Sequence[str]) -> int:
    """As "Viewing LSF version, cluster name, and current management host" shows it."""
    print("LSF 10.1.0, Jan 5 2016\nCopyright IBM Corp. 1992, 2022.\n")
    print(f"My cluster name is {site.directory.name}\nMy master name is {site.hosts[0].name}")
    return 0


def bhosts(site: Site, argv: Sequence[str]) -> int:
    words, fields, form = list(argv), [], "-w"
    while words and words[0].startswith("-"):
        option = words.pop(0)
        if option == "-o":
            fields = words.pop(0).upper().split()
        elif option in {"-json", "-gpu"}:
            form = option
    hosts = [host for host in site.hosts if not words or host.name in words]
    if form == "-gpu":
        return _gpus(site, hosts)
    rows = [_row(site, host) for host in hosts]
    if form == "-json":
        chosen = [{key: row[key] for key in fields} for row in rows]
        print(json.dumps({"COMMAND": "bhosts", "HOSTS": len(rows), "RECORDS": chosen}))
        return 0
    columns = ["HOST_NAME", "STATUS", "JL/U", "MAX", "NJOBS", "RUN", "SSUSP", "USUSP", "RSV"]
    for shown in [dict(zip(columns, columns, strict=True)), *rows]:
        print(" ".join(f"{shown[column]:<14}" for column in columns).rstrip())
    return 0


def _row(site: Site, host: Host) -> dict[str, str]:
    # What is suspended gives up its slots to others, and is counted.
    here = [job for job in site.jobs() if job.state in SHOWN and host.name in job.hosts]
    slots = dict.fromkeys(("RUN", "SSUSP", "USUSP"), 0)
    for job in here:
        slots[job.state if job.state in slots else "RUN"] += job.hosts[host.name]
    used = sum(slots.values()) + host.kept
    # bhosts(1): closed_Full where all slots are used, and RSV counts.
    status = "unavail" if host.name in site.shown_down() else host.closed
    status = status or ("closed_Full" if used >= host.slots else "ok")
    gpus = sum(len(job.gpus.get(host.name, [])) for job in here)
    empty = "-" if site.quirks.empty_is_dash else ""
    return {
        "HOST_NAME": host.name,
        "STATUS": status,
        "JL/U": "-",
        "MAX": str(host.slots),
        "NJOBS": str(used),
        **{state: str(count) for state, count in slots.items()},
        "RSV": str(host.kept),
        "NGPUS": str(host.gpus) if host.gpus else empty,
        "NGPUS_ALLOC": str(gpus) if host.gpus else empty,
    }


def _gpus(site: Site, hosts: Sequence[Host]) -> int:
    hosts = [host for host in hosts if host.gpus]
    if not hosts:
        raise RefusedError("No hosts found")
    print(
        "HOST_NAME            GPU_ID                MODEL     MUSED      MRSV"
        "  NJOBS    RUN   SUSP    RSV"
    )
    jobs = [job for job in site.jobs() if job.holds()]
    for host in hosts:
        for gpu in range(host.gpus):
            name = host.name if gpu == 0 else ""
            used = sum(gpu in job.gpus.get(host.name, []) for job in jobs)
            print(f"{name:<20} {gpu:>6} {host.model:>20}  0M  0M  {used}  {used}  0  0")
    return 0


def bqueues(site: Site, argv: Sequence[str]) -> int:
    if argv[:1] not in (["-l"], ["-r"]):
        raise RefusedError(f"{' '.join(argv)}: not played by this engine")
    for name in argv[1:] or site.queues:
        if name not in site.queues:
            raise RefusedError(f"{name}: No such queue.")
        _queue(name, site.queues[name])
        if argv[0] == "-r":
            # bqueues(1): "if fairshare is defined for the queue, displays recursively the share
            # account tree of the fairshare queue".
            _shares(site.queues[name].shares)
    return 0


def bhpart(site: Site, argv: Sequence[str]) -> int:
    if list(argv) != ["-r"]:
        raise RefusedError(f"{' '.join(argv)}: not played by this engine")
    if not site.host_partitions:
        raise RefusedError("No host partition is configured")
    for name, shares in site.host_partitions.items():
        print(f"HOST_PARTITION_NAME: {name}\nHOSTS: all")
        _shares(shares)
    return 0


def _shares(tables: dict[str, dict[str, float]]) -> None:
    """Tables as "Viewing hierarchical share information for a host partition" shows them."""
    for path, rows in tables.items():
        print(f"\nSHARE_INFO_FOR: {path}/")
        print("USER/GROUP   SHARES  PRIORITY  STARTED  RESERVED  CPU_TIME  RUN_TIME   ADJUST")
        for name, priority in rows.items():
            print(f"{name:<12} {1:>6}  {priority:>8.3f} {0:>8} {0:>9} {0:>9.1f} {0:>9} {0:>8.3f}")
    print()


def _queue(name: str, queue: Queue) -> None:
    print(f"\nQUEUE: {name}\n  -- A queue of the tests\n\nPARAMETERS/STATISTICS")
    print("PRIO NICE STATUS          MAX JL/U JL/P JL/H NJOBS  PEND   RUN SSUSP USUSP  RSV ")
    counts = "-    -    -    -     0     0     0     0     0    0"
    print(f" {queue.priority}   20  {queue.status}       {counts}\n")
    if queue.run_limit:
        print(f"RUNLIMIT\n {queue.run_limit:.1f} min\n")
    if queue.policies:
        print(f"SCHEDULING POLICIES:  {queue.policies}")
    if queue.preemption:
        print(f"PREEMPTION = {queue.preemption}")
    print(f"USERS: all\nHOSTS:  {queue.hosts}")
    if queue.requeue_exit_values:
        print(f"REQUEUE_EXIT_VALUES:  {' '.join(map(str, queue.requeue_exit_values))}")
    if queue.rerunnable:
        print("RERUNNABLE :  yes")
    if queue.job_controls:
        print("\nJOB_CONTROLS:")
        for action, said in queue.job_controls.items():
            print(f"    {action}:     [{said}]")
        print()
    if queue.job_starter:
        print(f"JOB_STARTER:  {queue.job_starter}")


def bslots(site: Site, argv: Sequence[str]) -> int:
    if not site.windows:
        print("No backfill window exists at this time")
        return 0
    for seconds, hosts in site.windows:
        hours, left = divmod(seconds, 3600)
        length = f"{hours} hours {left // 60} minutes {left % 60} seconds"
        slots, runtime = sum(hosts.values()), length if seconds else "UNLIMITED"
        print(f"SLOTS: {slots}\nRUNTIME: {runtime}")
        print(f"HOSTS: {' '.join(f'{count}*{name}' for name, count in hosts.items())}\n")
    return 0


def brsvs(site: Site, argv: Sequence[str]) -> int:
    print(f"{HEADER}\n{site.reservations}" if site.reservations else "No reservation found")
    return 0


def bparams(site: Site, argv: Sequence[str]) -> int:
    if argv not in (["-a"], ["-l"]):
        raise RefusedError(f"{' '.join(argv)}: not played by this engine")
    most = max(queue.max_job_requeue for queue in site.queues.values())
    if argv == ["-l"]:
        print("System default queues for automatic queue selection:")
    print("lsb.params configuration at Thu Jan 1 00:00:00 1970\n")
    print(f"    DEFAULT_QUEUE = {next(iter(site.queues))}\n    MAX_JOB_REQUEUE = {most}")
    return 0


COMMANDS: dict[str, Callable[[Site, Sequence[str]], int]] = {
    each.__name__: each for each in (lsid, bhosts, bqueues, bhpart, bslots, brsvs, bparams)
}
