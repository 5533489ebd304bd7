"""The system calls of the present virtual process, as Python's own `posix` module has them.

The standard library's pure parts (`os`, `pathlib`, `shutil`, `subprocess`, `tempfile`) are run on
these, so what they do with a system call is not imitated but done. What a module of ours calls and
is not here is an error at once: nothing reaches the real machine.
"""

from __future__ import annotations

import errno
import io
import os
import posix
import resource
import signal
import stat
import time
import types
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any

from virtual.disk import Directory, File, Inode, Link, failed
from virtual.kernel import EPOCH, SYSCALL_S, Dead, Kernel, Opened, Pipe, Process, proc

PURE = ("fspath", "waitstatus_to_exitcode", "WIFEXITED", "WEXITSTATUS", "WIFSIGNALED", "WTERMSIG",
        "WIFSTOPPED", "WSTOPSIG", "WCOREDUMP", "strerror")  # fmt: skip

READ_BYTES = 1 << 17
_EXCLUSIVE, _WRITES = os.O_CREAT | os.O_EXCL, os.O_WRONLY | os.O_RDWR

_kernel: Kernel | None = None


def use(kernel: Kernel | None) -> None:
    """Have system calls go to a kernel."""
    global _kernel, me  # noqa: PLW0603  (the path of every system call)
    _kernel = kernel
    me = kernel.me if kernel is not None else _nobody


def kernel() -> Kernel:
    """Return the kernel of the present room."""
    if _kernel is None:
        raise Dead
    return _kernel


def _nobody() -> Process:
    raise Dead


me = _nobody
"""Returns the process that calls."""


def mine() -> Process:
    """Return the process that asks for what no other can change: nobody has a turn for that."""
    process = kernel().current
    if process is None or process.code is not None:
        raise Dead
    return process


# Files.


def _text(path: object) -> str:
    text = path if type(path) is str else os.fsdecode(path)  # type: ignore[type-var]
    if "\0" in text:
        raise ValueError("embedded null byte")
    return text


def _absolute(process: Process, path: object, dir_fd: int | None = None) -> str:
    text = _text(path)
    if text[:1] == "/":
        return text
    if not text:
        raise failed(errno.ENOENT, text)
    base = process.cwd if dir_fd is None else _opened(process, dir_fd).path
    return f"{base}/{text}"


def _opened(process: Process, fd: int) -> Opened:
    found = process.fds.get(fd)
    if found is None:
        raise failed(errno.EBADF)
    return found


def _allowed(process: Process, inode: Inode, path: str, wanted: int) -> None:
    """Refuse what modes do not permit: 4 to read, 2 to write, 1 to enter."""
    if process.uid == 0:
        return
    shift = 6 if inode.uid == process.uid else 0
    if not inode.mode >> shift & wanted:
        raise failed(errno.EACCES, path)


def open(path: object, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
    process = me()
    where = _absolute(process, path, dir_fd)
    if where.startswith("/proc"):
        found = proc(process.machine, process, where)
        if found is None:
            raise failed(errno.ENOENT, where)
        opened = Opened(None, where, flags)
        opened.content = found if isinstance(found, bytes) else b""
        return _kernel.open(process, opened)
    disk = process.machine.disk
    try:
        inode = disk.opened(where, follow=not flags & os.O_NOFOLLOW)
    except FileNotFoundError:
        if not flags & os.O_CREAT:
            raise
        inode = disk.make(where, mode & ~0o022, process.uid)
        return _kernel.open(process, Opened(inode, where, flags))
    if flags & _EXCLUSIVE == _EXCLUSIVE:
        raise failed(errno.EEXIST, where)
    if isinstance(inode, Link):
        if not flags & os.O_PATH:
            raise failed(errno.ELOOP, where)
    else:
        _allowed(process, inode, where, 2 if flags & _WRITES else 4)
    if isinstance(inode, Directory):
        if flags & _WRITES:
            raise failed(errno.EISDIR, where)
    elif flags & os.O_DIRECTORY:
        raise failed(errno.ENOTDIR, where)
    if flags & os.O_TRUNC and isinstance(inode, File):
        del inode.data[:]
    return _kernel.open(process, Opened(inode, where, flags))


def close(fd: int) -> None:
    kernel().close(me(), fd)


def read(fd: int, size: int) -> bytes:
    process = me()
    opened = _opened(process, fd)
    if opened.pipe is not None:
        pipe = opened.pipe
        kernel().wait(lambda: bool(pipe.data) or not pipe.writers)
        data = bytes(pipe.data[:size])
        del pipe.data[:size]
        return data
    if isinstance(opened.inode, File):
        data = bytes(opened.inode.data[opened.at : opened.at + size])
    else:
        data = _content(opened)[opened.at : opened.at + size]
    opened.at += len(data)
    return data


def pread(fd: int, size: int, at: int) -> bytes:
    return _content(_opened(me(), fd))[at : at + size]


def preadv(fd: int, buffers: Sequence[Any], at: int) -> int:
    (buffer,) = buffers
    data = pread(fd, len(buffer), at)
    buffer[: len(data)] = data
    return len(data)


def _content(opened: Opened) -> bytes:
    if opened.content is not None:
        return opened.content
    if isinstance(opened.inode, Directory):
        raise failed(errno.EISDIR, opened.path)
    return bytes(opened.inode.data) if isinstance(opened.inode, File) else b""


def write(fd: int, data: Any) -> int:
    process = me()
    opened = _opened(process, fd)
    data = bytes(data)
    if opened.pipe is not None:
        if not opened.pipe.readers:
            process.signal(signal.SIGPIPE)
            if process.dead:
                raise Dead
            raise failed(errno.EPIPE)
        opened.pipe.data += data
        kernel().touched()
        return len(data)
    inode = opened.inode
    if not isinstance(inode, File):
        return len(data)  # the null device
    data = process.machine.disk.room_for(data)
    at = len(inode.data) if opened.flags & os.O_APPEND else opened.at
    inode.data[at : at + len(data)] = data
    inode.mtime = _time()
    opened.at = at + len(data)
    return len(data)


def pwrite(fd: int, data: Any, at: int) -> int:
    process = me()
    inode = _opened(process, fd).inode
    assert isinstance(inode, File)
    process.machine.disk.writable()
    data = bytes(data)
    inode.data += bytes(max(0, at - len(inode.data)))
    inode.data[at : at + len(data)] = data
    return len(data)


def lseek(fd: int, at: int, whence: int) -> int:
    opened = _opened(mine(), fd)
    if opened.pipe is not None:
        raise failed(errno.ESPIPE)
    if whence == os.SEEK_CUR:
        at += opened.at
    elif whence == os.SEEK_END:
        at += len(_content(opened))
    opened.at = at
    return at


def ftruncate(fd: int, size: int) -> None:
    inode = _opened(me(), fd).inode
    assert isinstance(inode, File)
    del inode.data[size:]
    inode.data += bytes(size - len(inode.data))


def fsync(fd: int) -> None:
    process = me()
    inode = _opened(process, fd).inode
    if inode is not None:
        process.machine.disk.sync(inode)


fdatasync = fsync


def isatty(fd: int) -> bool:
    return False


def get_inheritable(fd: int) -> bool:
    return fd in mine().kept


def set_inheritable(fd: int, inheritable: bool) -> None:
    process = mine()
    _opened(process, fd)
    process.kept.add(fd) if inheritable else process.kept.discard(fd)


def set_blocking(fd: int, blocking: bool) -> None:
    _opened(mine(), fd)


def get_blocking(fd: int) -> bool:
    return True


def dup2(fd: int, to: int, inheritable: bool = True) -> int:
    process = me()
    opened = _opened(process, fd)
    if fd != to:
        kernel().open_at(process, to, opened)
    process.kept.add(to) if inheritable else process.kept.discard(to)
    return to


def dup(fd: int) -> int:
    process = me()
    return kernel().open(process, _opened(process, fd))


def pipe() -> tuple[int, int]:
    process = me()
    shared = Pipe()
    ends = []
    for writes in (False, True):
        opened = Opened(None, "pipe")
        opened.pipe, opened.writes = shared, writes
        ends.append(kernel().open(process, opened))
    return ends[0], ends[1]


def _facts(process: Process, path: object, dir_fd: int | None, follow: bool) -> os.stat_result:
    if isinstance(path, int):
        return fstat(path)
    where = _absolute(process, path, dir_fd)
    if where.startswith("/proc"):
        found = proc(process.machine, process, where)
        if found is None:
            raise failed(errno.ENOENT, where)
        kind = stat.S_IFDIR if isinstance(found, list) else stat.S_IFREG
        return os.stat_result((kind | 0o555, 1, 2, 1, process.uid, process.uid, 0, 0, 0, 0))
    return process.machine.disk.find(where, follow=follow).facts()


def stat_(
    path: object, *, dir_fd: int | None = None, follow_symlinks: bool = True
) -> os.stat_result:
    return _facts(me(), path, dir_fd, follow_symlinks)


def lstat(path: object, *, dir_fd: int | None = None) -> os.stat_result:
    return _facts(me(), path, dir_fd, False)


def fstat(fd: int) -> os.stat_result:
    process = mine()
    opened = _opened(process, fd)
    if opened.inode is not None:
        return opened.inode.facts()
    kind = stat.S_IFIFO if opened.pipe is not None else stat.S_IFREG
    return os.stat_result((kind | 0o600, 1, 2, 1, process.uid, process.uid, 0, 0, 0, 0))


def access(path: object, mode: int, **_: Any) -> bool:
    process = me()
    try:
        where = _absolute(process, path)
        _facts(process, where, None, True)
        inode = process.machine.disk.find(where)
        for wanted in (4, 2, 1):
            if mode & wanted:
                _allowed(process, inode, where, wanted)
    except OSError:
        return False
    return True


def listdir(path: object = ".") -> list[str]:
    process = me()
    where = _opened(process, path).path if isinstance(path, int) else _absolute(process, path)
    if where.startswith("/proc"):
        names = proc(process.machine, process, where)
        if not isinstance(names, list):
            raise failed(errno.ENOENT, where)
        return names
    inode = process.machine.disk.find(where)
    if not isinstance(inode, Directory):
        raise failed(errno.ENOTDIR, where)
    process.machine.disk.listed(inode)
    names = sorted(inode.entries)
    kernel().chance.shuffle(names)  # the kernel promises no order
    return names


class Entry:
    """An entry of scandir."""

    def __init__(self, where: str, name: str) -> None:
        self.name = name
        self.path = f"{where}/{name}" if where != "/" else f"/{name}"

    def __fspath__(self) -> str:
        return self.path

    def stat(self, *, follow_symlinks: bool = True) -> os.stat_result:
        return _facts(me(), self.path, None, follow_symlinks)

    def inode(self) -> int:
        return self.stat(follow_symlinks=False).st_ino

    def _is(self, kind: Callable[[int], bool], follow: bool) -> bool:
        try:
            return kind(self.stat(follow_symlinks=follow).st_mode)
        except FileNotFoundError:
            return False

    def is_dir(self, *, follow_symlinks: bool = True) -> bool:
        return self._is(stat.S_ISDIR, follow_symlinks)

    def is_file(self, *, follow_symlinks: bool = True) -> bool:
        return self._is(stat.S_ISREG, follow_symlinks)

    def is_symlink(self) -> bool:
        return self._is(stat.S_ISLNK, False)

    def is_junction(self) -> bool:
        return False


class Entries:
    """What scandir gives."""

    def __init__(self, entries: Iterable[Entry]) -> None:
        self._entries = iter(entries)

    def __iter__(self) -> Iterator[Entry]:
        return self._entries

    def __next__(self) -> Entry:
        return next(self._entries)

    def __enter__(self) -> Entries:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._entries = iter(())


def scandir(path: object = ".") -> Entries:
    process = me()
    where = _opened(process, path).path if isinstance(path, int) else _text(path)
    return Entries([Entry(where, name) for name in listdir(path)])


def mkdir(path: object, mode: int = 0o777, *, dir_fd: int | None = None) -> None:
    process = me()
    process.machine.disk.make_directory(
        _absolute(process, path, dir_fd), mode & ~0o022, process.uid
    )


def rmdir(path: object, *, dir_fd: int | None = None) -> None:
    process = me()
    process.machine.disk.remove_directory(_absolute(process, path, dir_fd))


def unlink(path: object, *, dir_fd: int | None = None) -> None:
    process = me()
    process.machine.disk.remove(_absolute(process, path, dir_fd))


remove = unlink


def rename(
    old: object, new: object, *, src_dir_fd: int | None = None, dst_dir_fd: int | None = None
) -> None:
    process = me()
    process.machine.disk.rename(
        _absolute(process, old, src_dir_fd), _absolute(process, new, dst_dir_fd)
    )
    kernel().happened()


replace = rename


def link(source: object, path: object, **_: Any) -> None:
    process = me()
    process.machine.disk.link(_absolute(process, source), _absolute(process, path))
    kernel().happened()


def symlink(
    target: object, path: object, target_is_directory: bool = False, *, dir_fd: int | None = None
) -> None:
    process = me()
    process.machine.disk.make_link(_text(target), _absolute(process, path, dir_fd), process.uid)


def readlink(path: object, *, dir_fd: int | None = None) -> str:
    process = me()
    where = _absolute(process, path, dir_fd) if _text(path) else _opened(process, dir_fd or 0).path
    if where.startswith("/proc"):
        found = proc(process.machine, process, where)
        if not isinstance(found, str):
            raise failed(errno.ENOENT, where)
        return found
    inode = process.machine.disk.find(where, follow=False)
    if not isinstance(inode, Link):
        raise failed(errno.EINVAL, where)
    return inode.target


def chmod(
    path: object, mode: int, *, dir_fd: int | None = None, follow_symlinks: bool = True
) -> None:
    process = me()
    inode = process.machine.disk.find(_absolute(process, path, dir_fd), follow=follow_symlinks)
    inode.mode = stat.S_IFMT(inode.mode) | mode


def fchmod(fd: int, mode: int) -> None:
    inode = _opened(me(), fd).inode
    assert inode is not None
    inode.mode = stat.S_IFMT(inode.mode) | mode


def utime(path: object, times: tuple[float, float] | None = None, **_: Any) -> None:
    process = me()
    if isinstance(path, int):
        inode = _opened(process, path).inode
        assert inode is not None
    else:
        inode = process.machine.disk.find(_absolute(process, path))
    inode.mtime = times[1] if times else _time()


def getcwd() -> str:
    return mine().cwd


def chdir(path: object) -> None:
    process = me()
    where = _absolute(process, path)
    if not isinstance(process.machine.disk.find(where), Directory):
        raise failed(errno.ENOTDIR, where)
    process.cwd = where


def umask(mask: int) -> int:
    return 0o022


# Processes.


def getpid() -> int:
    return mine().pid


def getppid() -> int:
    parent = me().parent
    return parent.pid if parent else 0


def getuid() -> int:
    return mine().uid


geteuid = getgid = getegid = getuid


def getpgrp() -> int:
    return mine().group


def _process(pid: int) -> Process:
    process = me()
    found = process.machine.processes.get(pid or process.pid)
    if found is None:
        raise failed(errno.ESRCH)
    return found


def getpgid(pid: int) -> int:
    return _process(pid).group


def getsid(pid: int) -> int:
    return _process(pid).session


def setsid() -> None:
    process = me()
    process.group = process.session = process.pid


def uname() -> os.uname_result:
    return os.uname_result(("Linux", mine().machine.name, "6", "1", "x86_64"))


def urandom(size: int) -> bytes:
    mine()
    return kernel().chance.randbytes(size)


def _send(sender: Process, process: Process, signum: int) -> None:
    if process.uid != sender.uid and sender.uid:
        raise failed(errno.EPERM)
    if signum:
        kernel().tell(f"{sender!r} sends {_NAMED[signum].name} to {process!r}")
        kernel().sent(sender, process, signum)
        kernel().happened()
    process.signal(signum)
    if sender.dead:
        raise Dead
    if sender.stopped:
        kernel().pause()


def kill(pid: int, signum: int) -> None:
    if pid <= 0:
        killpg(-pid, signum)
        return
    _send(me(), _process(pid), signum)


def killpg(group: int, signum: int) -> None:
    process = me()
    group = group or process.group
    members = [each for each in process.machine.processes.values() if each.group == group]
    if not members:
        raise failed(errno.ESRCH)
    for each in members:
        _send(process, each, signum)


def pidfd_open(pid: int, flags: int = 0) -> int:
    process = me()
    opened = Opened(None, f"pidfd:{pid}")
    opened.process = _process(pid)
    return kernel().open(process, opened)


def pidfd_send_signal(fd: int, signum: int, *_: Any) -> None:
    process = me()
    target = _opened(process, fd).process
    if target is None:
        raise failed(errno.EBADF)
    if target.dead:
        raise failed(errno.ESRCH)
    _send(process, target, signum)


def _status(code: int) -> int:
    return -code if code < 0 else code << 8


def waitpid(pid: int, options: int) -> tuple[int, int]:
    process = me()

    def ended() -> list[Process]:
        return [each for each in process.children if each.dead and pid in {-1, each.pid}]

    if not any(pid in {-1, each.pid} for each in process.children):
        raise failed(errno.ECHILD)
    if not options & os.WNOHANG:
        kernel().wait(lambda: bool(ended()))
    if not (found := ended()):
        return 0, 0
    process.machine.reap(found[0])
    return found[0].pid, _status(found[0].code or 0)


def _exit(code: int) -> None:
    process = me()
    process.end(code & 0xFF)
    raise Dead


def execve(path: object, argv: Sequence[str], environ: Mapping[Any, Any]) -> None:
    kernel().execute(
        [_text(path), *map(_text, list(argv)[1:])],
        {_text(key): _text(value) for key, value in environ.items()},
    )


def fork_exec(  # noqa: PLR0917  (as it is called)
    argv: Sequence[bytes], programs: Sequence[bytes], close_fds: bool, keep: Sequence[int],
    cwd: bytes | None, environ: Sequence[bytes] | None, p2cread: int, p2cwrite: int, c2pread: int,
    c2pwrite: int, errread: int, errwrite: int, errpipe_read: int, errpipe_write: int,
    restore_signals: bool, start_new_session: bool, *more: Any,
) -> int:  # fmt: skip
    """Do what `_posixsubprocess` does; subprocess.Popen is run on it."""
    variables = (
        dict(me().environ)
        if environ is None
        else dict(os.fsdecode(each).split("=", 1) for each in environ)
    )
    words = [os.fsdecode(each) for each in argv]
    (prepare,) = [each for each in more if callable(each)] or [lambda: None]

    def child() -> None:
        process = me()
        for fd, to in ((p2cread, 0), (c2pwrite, 1), (errwrite, 2)):
            if fd != -1:
                dup2(fd, to)
        if cwd:
            chdir(cwd)
        if start_new_session:
            setsid()
        prepare()
        process.kept |= set(keep) - {errpipe_write}
        if close_fds:
            process.kept &= {0, 1, 2, *keep} - {errpipe_write}
        try:
            kernel().execute(words, variables)
        except OSError as error:
            write(errpipe_write, f"OSError:{error.errno or 0:x}:".encode())
            _exit(255)

    return kernel().fork(child)


def prctl(option: int, value: int, *_: Any) -> int:
    process = me()
    if option == 1:
        process.parent_signal = int(value)
    elif option == 36:
        process.subreaper = bool(value)
    return 0


def tgkill(group: int, thread: int, signum: int) -> int:
    try:
        kill(group, signum)
    except OSError:
        return -1
    return 0


def flock(file: Any, how: int) -> None:
    """Wait for the lock of a file; it is gone with the last descriptor of whoever has it."""
    if how != 2:
        raise NotImplementedError(f"flock {how} is not virtual")
    opened = _opened(me(), file if isinstance(file, int) else file.fileno())
    inode: Any = opened.inode
    kernel().wait(lambda: inode.locked_by in {None, opened})
    inode.locked_by = opened


# Signals.


def sigaction(signum: int, handler: Any) -> Any:
    process = me()
    before = process.heeds(signum)
    process.handlers[int(signum)] = handler
    ignored = handler == signal.SIG_IGN or (
        handler == signal.SIG_DFL and signum in {signal.SIGCHLD, signal.SIGCONT}
    )
    if ignored and signum in process.pending and signum not in process.blocked:
        process.pending.remove(signum)
    return before


def getsignal(signum: int) -> Any:
    return me().heeds(int(signum))


def pthread_sigmask(how: int, mask: Iterable[int]) -> set[int]:
    process = me()
    before = {_NAMED.get(each, each) for each in process.blocked}
    wanted = {int(each) for each in mask} - {signal.SIGKILL, signal.SIGSTOP}
    if how == signal.SIG_BLOCK:
        process.blocked |= wanted
    elif how == signal.SIG_UNBLOCK:
        process.blocked -= wanted
    else:
        process.blocked = wanted
    process.deliver()
    if process.stopped:
        kernel().pause()
    return before


_NAMED = {int(each): each for each in signal.Signals}
_VALID = signal.valid_signals()


def sigpending() -> set[int]:
    process = me()
    return {_NAMED.get(each, each) for each in process.pending if each in process.blocked}


class Info:
    """What sigtimedwait gives."""

    def __init__(self, signum: int) -> None:
        self.si_signo = signum


def sigtimedwait(signums: Iterable[int], timeout_s: float) -> Info | None:
    process = me()
    wanted = {int(each) for each in signums}
    deadline = kernel().now + max(0.0, timeout_s)
    return _sigwait(process, wanted, deadline)


def sigwaitinfo(signums: Iterable[int]) -> Info:
    found = _sigwait(me(), {int(each) for each in signums}, None)
    assert found is not None
    return found


def _sigwait(process: Process, wanted: Collection[int], deadline: float | None) -> Info | None:
    if not kernel().wait(lambda: any(each in wanted for each in process.pending), deadline):
        return None
    signum = min(each for each in process.pending if each in wanted)
    process.pending.remove(signum)
    return Info(signum)


# Time.


def _time() -> float:
    machine = mine().machine
    machine.kernel.now += SYSCALL_S
    return EPOCH + machine.kernel.now + machine.skew_s


def monotonic() -> float:
    machine = mine().machine
    machine.kernel.now += SYSCALL_S
    return machine.kernel.now - machine.booted + 1000.0


def sleep(seconds: float) -> None:
    me()
    kernel().wait(None, kernel().now + max(0.0, seconds))


# Python's files.


_KINDS = {"r": os.O_RDONLY, "w": os.O_WRONLY | os.O_CREAT | os.O_TRUNC,
          "a": os.O_WRONLY | os.O_CREAT | os.O_APPEND,
          "x": os.O_WRONLY | os.O_CREAT | os.O_EXCL}  # fmt: skip
MODES = {kind: (kind == "r", kind != "r", flags | os.O_CLOEXEC) for kind, flags in _KINDS.items()}
MODES |= {
    f"+{kind}": (True, True, flags & ~os.O_WRONLY | os.O_RDWR | os.O_CLOEXEC)
    for kind, flags in _KINDS.items()
}
"""Whether a mode reads, whether it writes, and the flags of open(2)."""


class FileIO(io.RawIOBase):
    """What io.FileIO is, on virtual descriptors."""

    def __init__(
        self, file: Any, mode: str = "r", closefd: bool = True, opener: Any = None
    ) -> None:
        self.mode, self._closes = mode, closefd
        self.name = file
        self._reads, self._writes, flags = MODES["".join(sorted(mode))]
        if isinstance(file, int):
            self._fd = file
        else:
            self._fd = opener(file, flags) if opener else open(file, flags, 0o666)
        opened = _opened(mine(), self._fd)
        if isinstance(opened.inode, Directory):
            if closefd and not isinstance(file, int):
                close(self._fd)
            raise failed(errno.EISDIR, file)
        self._seeks = opened.pipe is None
        self._opened = opened
        if flags & os.O_APPEND and not isinstance(file, int):
            lseek(self._fd, 0, os.SEEK_END)

    def fileno(self) -> int:
        return self._fd

    def readable(self) -> bool:
        return self._reads

    def writable(self) -> bool:
        return self._writes

    def seekable(self) -> bool:
        return self._seeks

    def isatty(self) -> bool:
        return False

    def readinto(self, buffer: Any) -> int:
        data = read(self._fd, len(buffer))
        buffer[: len(data)] = data
        return len(data)

    def readall(self) -> bytes:
        parts = []
        while data := read(self._fd, READ_BYTES):
            parts.append(data)
        return b"".join(parts)

    def write(self, data: Any) -> int:
        return write(self._fd, bytes(data))

    def seek(self, at: int, whence: int = 0) -> int:
        return lseek(self._fd, at, whence)

    def tell(self) -> int:
        if not self._seeks:
            raise failed(errno.ESPIPE)
        return self._opened.at

    def truncate(self, size: int | None = None) -> int:
        size = self.tell() if size is None else size
        ftruncate(self._fd, size)
        return size

    def close(self) -> None:
        if not self.closed:
            super().close()
            if self._closes:
                close(self._fd)


def open_file(  # noqa: PLR0917  (as the built-in)
    file: Any, mode: str = "r", buffering: int = -1, encoding: str | None = None,
    errors: str | None = None, newline: str | None = None, closefd: bool = True, opener: Any = None,
) -> Any:  # fmt: skip
    """Do what the built-in open does."""
    raw = FileIO(
        file if isinstance(file, int) else _text(file),
        mode.replace("b", "").replace("t", ""),
        closefd,
        opener,
    )
    if buffering == 0:
        return raw
    if "+" in mode:
        buffer: Any = io.BufferedRandom(raw)
    elif "r" in mode:
        buffer = io.BufferedReader(raw)
    else:
        buffer = io.BufferedWriter(raw)
    if "b" in mode:
        return buffer
    return io.TextIOWrapper(buffer, encoding or "utf-8", errors, newline, buffering == 1)


# Python's modules.


def as_posix() -> types.ModuleType:
    """Return the module `posix` of virtual processes."""
    module = types.ModuleType("posix")
    for name, value in vars(posix).items():
        if not callable(value) or isinstance(value, type) or name in PURE:
            setattr(module, name, value)
    names = (
        "open", "close", "read", "pread", "preadv", "pwrite", "write", "lseek", "ftruncate",
        "fsync", "fdatasync", "isatty", "get_inheritable", "set_inheritable", "set_blocking",
        "get_blocking", "dup", "dup2", "pipe", "lstat", "fstat", "access", "listdir", "scandir",
        "mkdir", "rmdir", "unlink", "remove", "rename", "replace", "link", "symlink", "readlink",
        "chmod", "fchmod", "utime", "getcwd", "chdir", "umask", "getpid", "getppid", "getuid",
        "geteuid", "getgid", "getegid", "getpgrp", "getpgid", "getsid", "setsid", "uname",
        "urandom", "kill", "killpg", "pidfd_open", "waitpid", "_exit", "execve",
    )  # fmt: skip
    for name in names:
        setattr(module, name, globals()[name])
    module.stat = stat_  # type: ignore[attr-defined]
    module.DirEntry = Entry  # type: ignore[attr-defined]
    module.cpu_count = lambda: 2  # type: ignore[attr-defined]
    module.__all__ = [name for name in vars(module) if not name.startswith("__")]  # type: ignore[attr-defined]
    return module


def as_signal() -> types.ModuleType:
    """Return the module `signal`."""
    module = types.ModuleType("signal")
    for name, value in vars(signal).items():
        if not isinstance(value, types.FunctionType | types.BuiltinFunctionType):
            setattr(module, name, value)
    module.__dict__.update(
        signal=sigaction, getsignal=getsignal, pthread_sigmask=pthread_sigmask,
        sigpending=sigpending, sigtimedwait=sigtimedwait, sigwaitinfo=sigwaitinfo,
        pidfd_send_signal=pidfd_send_signal, valid_signals=lambda: set(_VALID),
        set_wakeup_fd=lambda *_a, **_k: -1, default_int_handler=signal.default_int_handler,
        strsignal=signal.strsignal,
    )  # fmt: skip
    return module


def as_time() -> types.ModuleType:
    """Return the module `time`."""
    module = types.ModuleType("time")
    module.__dict__.update(vars(time))
    module.__dict__.update(
        time=_time, monotonic=monotonic, sleep=sleep, perf_counter=monotonic,
        process_time=lambda: 0.0, time_ns=lambda: int(_time() * 1e9),
        monotonic_ns=lambda: int(monotonic() * 1e9),
        localtime=lambda at=None: time.gmtime(_time() if at is None else at),
        gmtime=lambda at=None: time.gmtime(_time() if at is None else at),
        strftime=lambda form, at=None: time.strftime(form, at or time.gmtime(_time())),
    )  # fmt: skip
    return module


def as_resource() -> types.ModuleType:
    """Return the module `resource`."""
    module = types.ModuleType("resource")
    module.__dict__.update(vars(resource))
    usage = resource.struct_rusage((0.0,) * 2 + (0,) * 14)
    module.getrusage = lambda _who: usage  # type: ignore[attr-defined]
    return module
