"""The broker's side of a shared directory: questions of users are files, and so are the answers.

The owner of a file is who asks: as the descriptor says from which it is read, of a regular file
with one name that nobody else could write. The broker owns the directory, so it can remove what
somebody puts there; of very many files it looks at some, whichever they are, and removes what is
no question, so that a flood ends. All that happens in a thread of its own, for which no decision
and no other door waits.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import os
import stat
import threading
import time
from collections import Counter
from pathlib import Path

from hpcext import documents, private
from hpcext.broker.desk import Desk
from hpcext.broker.identity import Peer, name_of
from hpcext.broker.questions import NoQuestionError, Question, read, sample
from hpcext.core.errors import HpcextError, InputError, refused
from hpcext.harvest.leave import BrokerError
from hpcext.harvest.ways import places
from hpcext.harvest.ways.drop import ANSWERS, BEAT, MOST_NAME_BYTES, QUESTIONS, framed
from hpcext.numerals import whole
from hpcext.text import clean

log = logging.getLogger(__name__)

LOOK_S = 0.5
"""Seconds between two looks at the directory."""

STALE_S = 60.0
"""Seconds of the file server after which a question is not answered, and an answer removed."""

TIDY_S = 10.0
"""Seconds between two looks for answers that nobody needs any more."""

MOST_OF_USER = 32
"""The most files of one user in one look; others of his are removed unread."""

HEARD_S = 10.0
"""Seconds in which the service must have answered."""

QUESTIONS_MODE, ANSWERS_MODE = 0o1733, 0o711


class Drop:
    """A shared directory, which belongs to this account.

    Parameters
    ----------
    directory : pathlib.Path
    desk : Desk
    """

    def __init__(self, directory: Path, desk: Desk) -> None:
        self._directory = directory
        self._desk = desk
        self._ended = threading.Event()
        self._failing = ""
        self._beat = 0
        # The file server's clock at a moment of ours.
        self._server_s = self._own_s = self._tidied_s = 0.0
        self._answered: dict[str, float] = {}
        # Users whose directories the broker cannot remove.
        self._leaves: set[int] = set()
        self._loop: asyncio.AbstractEventLoop | None = None

    def __str__(self) -> str:
        """Return where it is."""
        return f"drop://{self._directory}"

    @property
    def _questions(self) -> Path:
        return self._directory / QUESTIONS

    @property
    def _answers(self) -> Path:
        return self._directory / ANSWERS

    async def begin(self) -> None:
        """Answer from now on what is put there.

        Raises
        ------
        HpcextError
            The directory cannot be used, or harvesters would not believe it.
        """
        self._loop = asyncio.get_running_loop()
        try:
            await asyncio.to_thread(self.prepare)
        except OSError as error:
            raise unusable(error, self._directory) from None
        # A daemon, so that no file server is waited for at the end.
        threading.Thread(target=self._work, name="shared directory", daemon=True).start()

    async def end(self) -> None:
        """Answer no more."""
        self._ended.set()

    def prepare(self) -> None:
        """Make the directories, and remove answers of the broker before; raise as :meth:`begin`."""
        check(self._directory)
        for path, mode in ((self._questions, QUESTIONS_MODE), (self._answers, ANSWERS_MODE)):
            with contextlib.suppress(FileExistsError):
                path.mkdir(mode=0o700)
            fd = private.open_directory(path)
            try:
                os.fchmod(fd, mode)
            finally:
                os.close(fd)
        with contextlib.suppress(OSError, ValueError):
            data = documents.read_untrusted(self._directory / BEAT, most_bytes=MOST_NAME_BYTES)
            self._beat = whole(data.decode("ascii").strip()) or 0
        for entry in os.scandir(self._answers):
            os.unlink(entry.path)
        self.beat()

    # Looks.

    def _work(self) -> None:
        while not self._ended.is_set():
            try:
                more = self.look()
                self._fails("")
            except OSError as error:
                more = False
                self._fails(f"{self} cannot be used: {error.strerror or error}")
            except Exception:
                # A mistake of ours costs a look, not the service.
                more = False
                log.exception("%s was not looked at", self)
            if not more:
                self._ended.wait(LOOK_S)

    def look(self) -> bool:
        """Answer what is there; return whether there is more than one look is for.

        Raises
        ------
        OSError
            The directory cannot be used, or an answer not be written.
        """
        files, directories, more = sample(os.scandir(self._questions))
        of_user: Counter[int] = Counter()
        failed: OSError | None = None
        for name in files:
            try:
                self._look_at(name, of_user)
            except OSError as error:
                # Such as of a full disk: others are heard all the same.
                failed = error
        for name in directories:
            self._remove(self._questions / name)
        self._tidy()
        self.beat()
        if failed is not None:
            raise failed
        return more

    def _remove(self, directory: Path) -> None:
        """Remove a directory; say of each user once that there is one with something in it."""
        try:
            uid = directory.lstat().st_uid
        except OSError:
            return
        try:
            os.rmdir(directory)
        except OSError as error:
            if error.errno in {errno.ENOTEMPTY, errno.EEXIST} and uid not in self._leaves:
                self._leaves.add(uid)
                log.warning(
                    "%s of uid %d cannot be removed, as something is in it: root must, and others "
                    "that uid %d has made there",
                    clean(str(directory)), uid, uid,
                )  # fmt: skip

    def _look_at(self, name: str, of_user: Counter[int]) -> None:
        path = self._questions / name
        try:
            facts = path.lstat()
        except OSError:
            return
        # A link to somebody's file is not his doing, and does not count as his.
        of_user[facts.st_uid] += facts.st_nlink == 1
        stale = self._now_s() - facts.st_mtime > STALE_S
        if name.startswith(".") and not stale and of_user[facts.st_uid] <= MOST_OF_USER:
            # It is being written.
            return
        try:
            if stale or of_user[facts.st_uid] > MOST_OF_USER:
                raise NoQuestionError("stale, or one of too many")
            question = read(path)
        except NoQuestionError as error:
            log.debug("%s of uid %d is no question: %s", clean(name), facts.st_uid, error)
            question = None
        # Once is enough. What somebody makes impossible to remove harms nobody else.
        with contextlib.suppress(OSError):
            os.unlink(path)
        if question is not None and name not in self._answered:
            self._answered[name] = self._now_s()
            self._answer(name, question)

    def _answer(self, name: str, question: Question) -> None:
        line = self._hear(Peer(question.uid, name_of(question.uid)), question.line)
        if line is not None:
            # Its name is known to whoever asked, and nobody can list it.
            data = framed(name, line)
            documents.write_file(self._answers / name, data, durable=False, mode=0o644)

    def _hear(self, peer: Peer, line: bytes) -> bytes | None:
        """Return the service's answer, from its own thread; None: none in time, or too many."""

        async def heard() -> bytes | None:
            if self._desk.enter(peer):
                # A flood is not worth a file each time.
                return None
            try:
                return self._desk.answer(peer, line)
            finally:
                self._desk.leave(peer)

        assert self._loop is not None
        if self._ended.is_set():
            return None
        answer = asyncio.run_coroutine_threadsafe(heard(), self._loop)
        try:
            return answer.result(HEARD_S)
        except Exception:
            answer.cancel()
            return None

    # Time, as the file server has it.

    def _now_s(self) -> float:
        return self._server_s + time.monotonic() - self._own_s

    def beat(self) -> None:
        """Say that all is answered that was there; raise OSError if that cannot be written."""
        self._beat += 1
        # In its place, and closed, so that NFS has what is new for whoever opens it.
        flags = os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        fd = os.open(self._directory / BEAT, flags, 0o644)
        try:
            os.fchmod(fd, 0o644)
            os.pwrite(fd, b"%018d\n" % self._beat, 0)
            # NFS writes it out before it says when that was.
            self._server_s, self._own_s = os.fstat(fd).st_mtime, time.monotonic()
        finally:
            os.close(fd)

    def _tidy(self) -> None:
        """Remove answers that are too old for anybody to wait for."""
        now_s = self._now_s()
        if now_s - self._tidied_s < TIDY_S:
            return
        self._tidied_s = now_s
        self._answered = {
            name: at_s for name, at_s in self._answered.items() if now_s - at_s < 2 * STALE_S
        }
        with os.scandir(self._answers) as there:
            for entry in there:
                with contextlib.suppress(FileNotFoundError):
                    if now_s - entry.stat(follow_symlinks=False).st_mtime > STALE_S:
                        os.unlink(entry.path)

    def _fails(self, why: str) -> None:
        """Say it once if the directory cannot be used, and once when it can be again."""
        if why != self._failing:
            log.warning("%s", clean(why) or f"{self} can be used again")
        self._failing = why


def unusable(error: OSError, directory: Path) -> HpcextError:
    """Return the error for a directory to which the broker cannot write."""
    found = refused(error, clean(f"drop://{directory}"))
    if error.errno == errno.EROFS:
        # So it is for a service, unless its unit says otherwise (systemd.exec(5), ProtectSystem).
        found.do = f"systemctl edit hpcext-broker: ReadWritePaths={clean(str(directory))}"
    return found


def check(directory: Path) -> None:
    """Refuse a directory that harvesters would not believe.

    Raises
    ------
    InputError
        It is not this account's, or others could change it.
    HpcextError
        It is not there, perhaps not yet: it is another host's.
    """
    where = clean(f"drop://{directory}")
    try:
        uid = places.owner(directory, directory)
    except BrokerError as error:
        kind = InputError if os.path.lexists(directory) else HpcextError
        raise kind(f"harvesters would refuse it: it {error.what}", where=where) from None
    if uid != os.geteuid() or not stat.S_ISDIR(directory.lstat().st_mode):
        raise InputError(
            f"belongs to uid {uid}, and the broker is uid {os.geteuid()}",
            where=where,
            valid="a directory of the broker's account, to which nobody else can write",
        )
    for place, facts in private.walk(directory.parent):
        if facts.st_uid:
            log.warning(
                "%s: harvesters of others will refuse it: %s belongs to uid %d, and not to root",
                where, clean(str(place)), facts.st_uid,
            )  # fmt: skip
            return
