"""A virtual /bin/sh: the part of its grammar that batch scripts of ours and of the tests have.

So the very script that production writes is run, and not a model of it. It does what dash does:
a trap waits for the command in the foreground, `wait` is ended by a signal that is trapped,
background commands ignore SIGINT, and subshells have the default action of what is trapped, but
ignore what is ignored. What is not understood is an error: no pipes, here-documents, nor patterns
of file names. Compared with the machine's own /bin/sh in test_shell.py.
"""

from __future__ import annotations

import contextlib
import fnmatch
import operator
import os
import re
import signal
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from virtual import calls
from virtual.kernel import Dead, Process

NAME = re.compile(r"[A-Za-z_]\w*")
RESERVED = {"if", "then", "elif", "else", "fi", "while", "until", "for", "do", "done", "case",
            "esac", "{", "}", "!", "in"}  # fmt: skip
BLANKS, ENDS = " \t", "\n;&|()<>"


class Unknown(Exception):
    """Something that this shell does not understand."""


class Part(NamedTuple):
    """A part of a word: text, a parameter with what stands for it, arithmetic, or a command."""

    kind: str
    text: str
    quoted: bool
    operator: str = ""
    other: tuple[Any, ...] = ()


Word = tuple[Part, ...]


class Simple(NamedTuple):
    """Assignments, words, and redirections."""

    assigns: list[tuple[str, Word]]
    words: list[Word]
    redirects: list[tuple[int, str, Word]]


class Compound(NamedTuple):
    """Any other command: its kind, and what belongs to that."""

    kind: str
    parts: tuple[Any, ...]
    redirects: list[tuple[int, str, Word]]


class Parser:
    """Reads a script."""

    def __init__(self, text: str) -> None:
        self._text, self._at = text.replace("\\\n", ""), 0

    def script(self) -> list[Any]:
        """Return all commands."""
        found = self._list(())
        if self._at < len(self._text):
            self._fail()
        return found

    def _fail(self) -> None:
        raise Unknown(f"not understood: {self._text[self._at : self._at + 40]!r}")

    def _blanks(self, *, lines: bool = False) -> None:
        skipped = BLANKS + ("\n" if lines else "")
        while self._at < len(self._text):
            if self._text[self._at] in skipped:
                self._at += 1
            elif self._text[self._at] == "#":
                end = self._text.find("\n", self._at)
                self._at = len(self._text) if end < 0 else end
            else:
                return

    def _has(self, operator: str) -> bool:
        """Take an operator, if it comes next."""
        self._blanks()
        if not self._text.startswith(operator, self._at):
            return False
        longer = {"&": "&&", "|": "||", ";": ";;"}.get(operator)
        if longer and self._text.startswith(longer, self._at):
            return False
        self._at += len(operator)
        return True

    def _next(self) -> str:
        """Return the reserved word that comes next, or nothing."""
        self._blanks()
        found = re.compile(r"[^\s;&|()<>\"'$\\]+").match(self._text, self._at)
        return found[0] if found and found[0] in RESERVED else ""

    def _take(self, *words: str) -> str:
        found = self._next()
        if found not in words:
            self._fail()
        self._at += len(found)
        return found

    def _list(self, until: Sequence[str]) -> list[Any]:
        found: list[Any] = []
        while True:
            self._blanks(lines=True)
            if self._at >= len(self._text) or self._next() in until:
                return found
            if self._text[self._at] == ")" or self._text.startswith(";;", self._at):
                return found
            command = self._and_or()
            if self._has("&"):
                command = Compound("background", (command,), [])
            else:
                self._has(";")
            found.append(command)

    def _and_or(self) -> Any:
        left = self._negated()
        while True:
            kind = "and" if self._has("&&") else "or" if self._has("||") else ""
            if not kind:
                if self._has("|"):
                    raise Unknown("a pipe")
                return left
            self._blanks(lines=True)
            left = Compound(kind, (left, self._negated()), [])

    def _negated(self) -> Any:
        if self._next() == "!":
            self._take("!")
            return Compound("not", (self._command(),), [])
        return self._command()

    def _command(self) -> Any:
        word = self._next()
        method = getattr(self, f"_{word}", None) if word.isalpha() else None
        if word == "{":
            self._take("{")
            body = self._list(("}",))
            self._take("}")
            return Compound("group", (body,), self._redirects())
        if method is not None and word in {"if", "while", "until", "for", "case"}:
            found = method()
            return found._replace(redirects=self._redirects())
        if word:
            self._fail()
        if self._has("("):
            body = self._list(())
            if not self._has(")"):
                self._fail()
            return Compound("subshell", (body,), self._redirects())
        function = re.compile(r"([A-Za-z_]\w*)\(\)\s*").match(self._text, self._at)
        if function:
            self._at = function.end()
            return Compound("function", (function[1], self._command()), [])
        return self._simple()

    def _if(self) -> Compound:
        branches = []
        word = self._take("if")
        while word in {"if", "elif"}:
            condition = self._list(("then",))
            self._take("then")
            branches.append((condition, self._list(("elif", "else", "fi"))))
            word = self._take("elif", "else", "fi")
        last = []
        if word == "else":
            last = self._list(("fi",))
            self._take("fi")
        return Compound("if", (branches, last), [])

    def _while(self) -> Compound:
        kind = self._take("while", "until")
        condition = self._list(("do",))
        self._take("do")
        body = self._list(("done",))
        self._take("done")
        return Compound(kind, (condition, body), [])

    _until = _while

    def _for(self) -> Compound:
        self._take("for")
        name, words = self._name(), None
        if self._next() == "in" or not self._has(";"):
            words = []
            self._take("in")
            while (word := self._word()) is not None:
                words.append(word)
            self._has(";")
        self._blanks(lines=True)
        self._take("do")
        body = self._list(("done",))
        self._take("done")
        return Compound("for", (name, words, body), [])

    def _case(self) -> Compound:
        self._take("case")
        word, branches = self._word(), []
        self._take("in")
        self._blanks(lines=True)
        while self._next() != "esac":
            self._has("(")
            patterns = [self._word()]
            while self._has("|"):
                patterns.append(self._word())
            if not self._has(")"):
                self._fail()
            branches.append((patterns, self._list(("esac",))))
            self._has(";;")
            self._blanks(lines=True)
        self._take("esac")
        return Compound("case", (word, branches), [])

    def _name(self) -> str:
        self._blanks()
        found = NAME.match(self._text, self._at)
        if found is None:
            raise Unknown("no name")
        self._at = found.end()
        return found[0]

    def _simple(self) -> Simple:
        assigns, words, redirects = [], [], []
        while True:
            redirects += self._redirects()
            self._blanks()
            assign = re.compile(r"([A-Za-z_]\w*)=").match(self._text, self._at)
            if assign and not words:
                self._at = assign.end()
                assigns.append((assign[1], self._word(blanks=False) or ()))
                continue
            word = self._word()
            if word is None:
                break
            words.append(word)
        if not (assigns or words or redirects):
            self._fail()
        return Simple(assigns, words, redirects)

    def _redirects(self) -> list[tuple[int, str, Word]]:
        found = []
        while True:
            self._blanks()
            match = re.compile(r"([0-9]?)(>>|>&|>|<)").match(self._text, self._at)
            if match is None:
                return found
            if self._text.startswith("<<", self._at):
                raise Unknown("a here-document")
            self._at = match.end()
            fd = int(match[1]) if match[1] else 0 if match[2] == "<" else 1
            found.append((fd, match[2], self._word() or ()))

    def _word(self, *, blanks: bool = True) -> Word | None:
        if blanks:
            self._blanks()
        parts: list[Part] = []
        text, at = self._text, self._at
        while self._at < len(text) and text[self._at] not in BLANKS + ENDS:
            char = text[self._at]
            if char == "'":
                end = text.index("'", self._at + 1)
                parts.append(Part("text", text[self._at + 1 : end], True))
                self._at = end + 1
            elif char == '"':
                self._at += 1
                parts += self._double()
            elif char == "$":
                parts.append(self._dollar(quoted=False))
            elif char == "\\":
                parts.append(Part("text", text[self._at + 1], True))
                self._at += 2
            elif char == "`":
                raise Unknown("a command in backquotes")
            else:
                parts.append(Part("text", char, False))
                self._at += 1
        return tuple(parts) if self._at > at else None

    def _double(self) -> list[Part]:
        parts = [Part("text", "", True)]
        while (char := self._text[self._at]) != '"':
            if char == "$":
                parts.append(self._dollar(quoted=True))
            elif char == "\\" and self._text[self._at + 1] in '$`"\\':
                parts.append(Part("text", self._text[self._at + 1], True))
                self._at += 2
            else:
                parts.append(Part("text", char, True))
                self._at += 1
        self._at += 1
        return parts

    def _dollar(self, *, quoted: bool) -> Part:
        text = self._text
        if text.startswith("$((", self._at):
            end = text.index("))", self._at)
            found = Part("arithmetic", text[self._at + 3 : end], quoted)
            self._at = end + 2
            return found
        if text.startswith("$(", self._at):
            inside = Parser(text[self._at + 2 :])
            commands = inside._list(())
            if not inside._has(")"):
                self._fail()
            self._at += 2 + inside._at
            return Part("command", "", quoted, other=tuple(commands))
        if text.startswith("${", self._at):
            end = text.index("}", self._at)
            match = re.fullmatch(r"(\w+)(?:(:-|-)(.*))?", text[self._at + 2 : end])
            if match is None:
                raise Unknown(text[self._at : end + 1])
            self._at = end + 1
            other = Parser(match[3])._word() or () if match[3] else ()
            return Part("parameter", match[1], quoted, match[2] or "", other)
        match = re.compile(r"\$([A-Za-z_]\w*|[0-9?!$#@])").match(text, self._at)
        if match is None:
            raise Unknown(text[self._at : self._at + 10])
        self._at = match.end()
        return Part("parameter", match[1], quoted)


class Leave(Exception):
    """The end of loops, or of a function."""

    def __init__(self, kind: str, count: int = 1) -> None:
        super().__init__(kind)
        self.kind, self.count = kind, count


class Shell:
    """A shell that runs a script in the present process.

    Parameters
    ----------
    arguments : sequence of str
        ``$0``, ``$1`` ...
    """

    def __init__(self, arguments: Sequence[str]) -> None:
        self._arguments = list(arguments)
        self._variables: dict[str, str] = {}
        self._functions: dict[str, Any] = {}
        self._traps: dict[int, str] = {}
        self._heard: list[int] = []
        self._last = self._background = self._printed_status = 0
        self._pid = calls.getpid()
        self._ended: dict[int, int] = {}

    def run(self, text: str) -> int:
        """Run a script to its end, and return its status."""
        with contextlib.suppress(Leave):
            self._all(Parser(text).script())
        return self._last

    def _all(self, commands: Sequence[Any]) -> int:
        for command in commands:
            self._do(command)
            self._hear()
        return self._last

    def _hear(self) -> None:
        """Run the traps of what came meanwhile."""
        while self._heard:
            signum = self._heard.pop(0)
            last = self._last
            self._all(Parser(self._traps.get(signum, ":")).script())
            self._last = last

    def _do(self, command: Any) -> int:
        if isinstance(command, Simple):
            self._last = self._simple(command)
            return self._last
        with _Redirected(self, command.redirects):
            return getattr(self, f"_do_{command.kind}")(*command.parts)

    def _do_group(self, body: list[Any]) -> int:
        return self._all(body)

    def _do_and(self, left: Any, right: Any) -> int:
        return self._do(right) if self._do(left) == 0 else self._last

    def _do_or(self, left: Any, right: Any) -> int:
        return self._do(right) if self._do(left) else self._last

    def _do_not(self, command: Any) -> int:
        self._last = int(not self._do(command))
        return self._last

    def _do_if(self, branches: list[Any], last: list[Any]) -> int:
        for condition, body in branches:
            if self._all(condition) == 0:
                self._last = 0
                return self._all(body)
        self._last = 0
        return self._all(last)

    def _do_while(self, condition: list[Any], body: list[Any], *, until: bool = False) -> int:
        while (self._all(condition) == 0) is not until:
            if self._leaves(body):
                break
        self._last = 0
        return 0

    def _do_until(self, condition: list[Any], body: list[Any]) -> int:
        return self._do_while(condition, body, until=True)

    def _do_for(self, name: str, words: list[Word] | None, body: list[Any]) -> int:
        # Without `in` it is the arguments.
        for value in self._arguments[1:] if words is None else self._fields(words):
            self._variables[name] = value
            if self._leaves(body):
                break
        return self._last

    def _leaves(self, body: list[Any]) -> bool:
        """Run the body of a loop; return whether the loop is over."""
        try:
            self._all(body)
        except Leave as leave:
            if leave.kind == "return":
                raise
            if leave.count > 1:
                leave.count -= 1
                raise
            return leave.kind == "break"
        return False

    def _do_case(self, word: Word, branches: list[Any]) -> int:
        said = self._text(word)
        self._last = 0
        for patterns, body in branches:
            if any(fnmatch.fnmatchcase(said, self._text(each)) for each in patterns):
                return self._all(body)
        return 0

    def _do_function(self, name: str, body: Any) -> int:
        self._functions[name] = body
        self._last = 0
        return 0

    def _do_subshell(self, body: list[Any]) -> int:
        self._last = self._wait_for(self._fork(lambda shell: shell._all(body)))
        return self._last

    def _do_background(self, command: Any) -> int:
        def child(shell: Shell) -> int:
            for signum in (signal.SIGINT, signal.SIGQUIT):
                calls.sigaction(signum, signal.SIG_IGN)
            if isinstance(command, Simple):
                return shell._simple(command, replaces=True)
            if isinstance(command, Compound) and command.kind == "subshell":
                # It is that subshell.
                with _Redirected(shell, command.redirects):
                    return shell._all(command.parts[0])
            return shell._do(command)

        self._background = self._fork(child)
        self._last = 0
        return 0

    def _fork(self, body: Callable[[Shell], int]) -> int:
        again = Shell(self._arguments)
        again._variables, again._functions = dict(self._variables), dict(self._functions)
        again._traps = {signum: what for signum, what in self._traps.items() if not what}
        again._last, again._background = self._last, self._background
        again._pid = self._pid
        trapped = [signum for signum, what in self._traps.items() if what]

        def child() -> None:
            process = calls.kernel().current
            assert process is not None
            # As dash does it, first of all: a signal that comes before it is lost in the child.
            for signum in trapped:
                process.handlers[signum] = signal.SIG_DFL
                process.pending = [each for each in process.pending if each != signum]
            try:
                code = body(again)
            except Leave:
                code = again._last
            calls._exit(code)

        return calls.kernel().fork(child)

    # Simple commands.

    def _simple(self, command: Simple, *, replaces: bool = False) -> int:
        self._printed_status = 0
        words = self._fields(command.words)
        values = {name: self._text(word) for name, word in command.assigns}
        environ = calls.me().environ
        if not words:
            for name, value in values.items():
                (environ if name in environ else self._variables)[name] = value
            with _Redirected(self, command.redirects):
                return self._printed_status
        name = words[0]
        builtin = getattr(self, f"_builtin_{BUILTINS[name]}", None) if name in BUILTINS else None
        if name in self._functions:
            return self._call(words, command.redirects)
        if builtin is not None and name != "exec":
            return self._own(name, lambda: builtin(words[1:]), command.redirects)
        if name == "exec":
            return self._replace(words[1:], values, command.redirects)
        if replaces:
            return self._replace(words, values, command.redirects)
        return self._wait_for(
            self._fork(lambda shell: shell._replace(words, values, command.redirects))
        )

    def _own(
        self, name: str, does: Callable[[], int], redirects: list[tuple[int, str, Word]]
    ) -> int:
        try:
            with _Redirected(self, redirects):
                return does()
        except _UnopenedError as error:
            # Its own output may be a file on the same disk.
            with contextlib.suppress(OSError):
                calls.write(2, f"{error}\n".encode())
            if name in SPECIAL:
                raise SystemExit(2) from None
            return 2

    def _call(self, words: list[str], redirects: list[tuple[int, str, Word]]) -> int:
        before, self._arguments = self._arguments, [self._arguments[0], *words[1:]]
        try:
            with _Redirected(self, redirects):
                return self._do(self._functions[words[0]])
        except Leave as leave:
            if leave.kind != "return":
                raise
            return self._last
        finally:
            self._arguments = before

    def _replace(
        self, words: list[str], values: dict[str, str], redirects: list[tuple[int, str, Word]]
    ) -> int:
        """Become a program."""
        _Redirected(self, redirects).begin()
        if not words:
            return 0
        try:
            calls.kernel().execute(words, {**calls.me().environ, **values})
        except OSError as error:
            calls.write(2, f"{words[0]}: {error.strerror}\n".encode())
        raise SystemExit(127)

    def _wait_for(self, pid: int) -> int:
        """Wait for a command in the foreground, whatever comes meanwhile."""
        while pid not in self._ended:
            self._reap(*calls.waitpid(-1, 0))
        return self._ended.pop(pid)

    def _reap(self, pid: int, status: int) -> None:
        self._ended[pid] = _shell_status(status)

    def _builtin_wait(self, words: list[str]) -> int:
        """Wait for one; whatever else ends meanwhile is collected, too."""
        if not words:
            raise Unknown("wait for all")
        pid, children = int(words[0]), calls.me().children
        while True:
            while any(each.dead for each in children):
                self._reap(*calls.waitpid(-1, os.WNOHANG))
            if pid in self._ended:
                status = self._ended[pid]
                if pid != self._background:
                    del self._ended[pid]
                return status
            if not any(each.pid == pid for each in children):
                return 127
            calls.kernel().wait(lambda: any(each.dead for each in children) or bool(self._heard))
            if self._heard and not any(each.dead for each in children):
                return 128 + self._heard[0]

    def _builtin_trap(self, words: list[str]) -> int:
        what, names = words[0], words[1:]
        for name in names:
            signum = int(getattr(signal, f"SIG{name}"))
            if what == "-":
                self._traps.pop(signum, None)
                calls.sigaction(signum, signal.SIG_DFL)
            elif not what:
                self._traps[signum] = ""
                calls.sigaction(signum, signal.SIG_IGN)
            else:
                self._traps[signum] = what
                calls.sigaction(signum, self._on_signal)
        return 0

    def _on_signal(self, signum: int, _frame: object) -> None:
        if signum not in self._heard:
            self._heard.append(signum)

    def _builtin_kill(self, words: list[str]) -> int:
        said = words[0].removeprefix("-")
        signum = int(said) if said.isdecimal() else int(getattr(signal, f"SIG{said}"))
        try:
            calls.kill(int(words[1]), signum)
        except OSError as error:
            calls.write(2, f"sh: kill: {error.strerror}\n".encode())
            return 1
        calls.me()  # what it has sent itself comes before anything else
        return 0

    def _builtin_exit(self, words: list[str]) -> int:
        raise SystemExit(int(words[0]) & 0xFF if words else self._last)

    def _builtin_break(self, words: list[str]) -> int:
        raise Leave("break", int(words[0]) if words else 1)

    def _builtin_continue(self, words: list[str]) -> int:
        raise Leave("continue", int(words[0]) if words else 1)

    def _builtin_return(self, words: list[str]) -> int:
        self._last = int(words[0]) if words else self._last
        raise Leave("return")

    def _builtin_echo(self, words: list[str]) -> int:
        try:
            calls.write(1, f"{' '.join(words)}\n".encode())
        except OSError:
            return 1
        return 0

    def _builtin_cd(self, words: list[str]) -> int:
        try:
            calls.chdir(words[0])
        except OSError as error:
            calls.write(2, f"sh: cd: {words[0]}: {error.strerror}\n".encode())
            return 2
        return 0

    def _builtin_true(self, words: list[str]) -> int:
        return 0

    def _builtin_false(self, words: list[str]) -> int:
        return 1

    def _builtin_export(self, words: list[str]) -> int:
        for word in words:
            name, is_set, value = word.partition("=")
            calls.me().environ[name] = value if is_set else self._variables.pop(name, "")
        return 0

    def _builtin_test(self, words: list[str]) -> int:  # noqa: PLR0911  (a table)
        if words[-1] != "]":
            raise Unknown("[ without ]")
        words = words[:-1]
        if words[0] == "!":
            return int(not self._builtin_test([*words[1:], "]"]))
        match words:
            case ["-z", text]:
                return int(bool(text))
            case ["-n", text] | [text]:
                return int(not text)
            case ["-e", path]:
                return int(not calls.access(path, 0))
            case [left, "=", right]:
                return int(left != right)
            case [left, "!=", right]:
                return int(left == right)
            case [left, "-eq" | "-ne" | "-lt" | "-le" | "-gt" | "-ge" as how, right]:
                return int(not COMPARES[how](int(left), int(right)))
        raise Unknown(f"[ {' '.join(words)} ]")

    # Words.

    def _fields(self, words: Sequence[Word]) -> list[str]:
        found = []
        for word in words:
            if [(part.kind, part.text) for part in word if part.text] == [("parameter", "@")]:
                found += self._arguments[1:]
                continue
            fields, current, there = [], "", False
            for part in word:
                value = self._value(part)
                if part.quoted or part.kind == "text":
                    current, there = current + value, there or part.quoted or bool(value)
                    continue
                pieces = re.split(r"[ \t\n]+", value)
                for at, piece in enumerate(pieces):
                    if at:
                        fields += [current] if there else []
                        current, there = "", False
                    current, there = current + piece, there or bool(piece)
            found += [*fields, current] if there else fields
        return found

    def _text(self, word: Word) -> str:
        return "".join(self._value(part) for part in word)

    def _value(self, part: Part) -> str:
        if part.kind == "text":
            return part.text
        if part.kind == "arithmetic":
            return str(self._number(part.text))
        if part.kind == "command":
            return self._printed(part.other)
        value = self._parameter(part.text)
        if part.operator and (value is None or (part.operator == ":-" and not value)):
            return self._text(part.other)
        return value or ""

    def _printed(self, commands: Sequence[Any]) -> str:
        """Return what commands print, without the ends of its last lines."""
        reads, writes = calls.pipe()

        def child(shell: Shell) -> int:
            calls.dup2(writes, 1)
            calls.close(reads)
            calls.close(writes)
            return shell._all(commands)

        pid = self._fork(child)
        calls.close(writes)
        found = b""
        while more := calls.read(reads, 1 << 16):
            found += more
        calls.close(reads)
        self._printed_status = self._wait_for(pid)
        return found.decode().rstrip("\n")

    def _parameter(self, name: str) -> str | None:
        special = {"?": self._last, "!": self._background or "", "#": len(self._arguments) - 1}
        if name in special:
            return str(special[name])
        if name == "$":
            return str(self._pid)
        if name.isdecimal():
            at = int(name)
            return self._arguments[at] if at < len(self._arguments) else None
        if name in self._variables:
            return self._variables[name]
        return calls.me().environ.get(name)

    def _number(self, text: str) -> int:
        """Return a sum, without parentheses or products."""
        total, sign = 0, 1
        for token in re.findall(r"\d+|[A-Za-z_]\w*|\S", text):
            if token in "+-":
                sign = -1 if token == "-" else 1
            else:
                number = token if token.isdecimal() else self._parameter(token) or "0"
                if not number.lstrip("-").isdecimal():
                    raise Unknown(f"$(({text}))")
                total += sign * int(number)
        return total


class _UnopenedError(Exception):
    """A file that a command is redirected to cannot be opened."""


class _Redirected:
    """Descriptors of a command that lead elsewhere, for as long as it lasts."""

    def __init__(self, shell: Shell, redirects: list[tuple[int, str, Word]]) -> None:
        self._shell, self._redirects = shell, redirects
        self._kept: list[tuple[int, int]] = []

    def begin(self) -> None:
        """Open them."""
        for fd, how, word in self._redirects:
            target = self._shell._text(word)
            if how == ">&":
                calls.dup2(int(target), fd)
                continue
            flags = {"<": os.O_RDONLY, ">": os.O_WRONLY | os.O_CREAT | os.O_TRUNC,
                     ">>": os.O_WRONLY | os.O_CREAT | os.O_APPEND}[how]  # fmt: skip
            opened = calls.open(target, flags, 0o666)
            calls.dup2(opened, fd)
            calls.close(opened)

    def __enter__(self) -> None:
        for fd, _, _ in self._redirects:
            self._kept.append((fd, calls.dup(fd)))
        try:
            self.begin()
        except OSError as error:
            self.__exit__(None)
            raise _UnopenedError(str(error)) from None

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None and issubclass(kind, Dead):
            return
        for fd, kept in reversed(self._kept):
            calls.dup2(kept, fd)
            calls.close(kept)


def _shell_status(status: int) -> int:
    code = os.waitstatus_to_exitcode(status)
    return 128 - code if code < 0 else code


BUILTINS = {
    "wait": "wait", "trap": "trap", "kill": "kill", "exit": "exit", "break": "break",
    "continue": "continue", "return": "return", "echo": "echo", ":": "true", "true": "true",
    "false": "false", "export": "export", "[": "test", "exec": "exec", "cd": "cd",
}  # fmt: skip

SPECIAL = {":", "break", "continue", "exit", "export", "return", "trap"}
"""Those that end a script if they cannot be redirected, by POSIX."""

COMPARES = {
    "-eq": operator.eq, "-ne": operator.ne, "-lt": operator.lt, "-le": operator.le,
    "-gt": operator.gt, "-ge": operator.ge,
}  # fmt: skip


def program(process: Process) -> int:
    """Run ``sh FILE ARGUMENT...`` or ``sh -c TEXT ARGUMENT...``."""
    words = list(process.argv[1:])
    if words and words[0] == "-c":
        text, arguments = words[1], words[2:] or ["sh"]
    else:
        fd = calls.open(words[0], os.O_RDONLY)
        text, arguments = calls.read(fd, 1 << 20).decode(), words
        calls.close(fd)
    return Shell(arguments).run(text)


def script(text: str, arguments: Sequence[str]) -> Callable[[Process], int]:
    """Return the program that runs the script of a batch job."""
    return lambda _: Shell(arguments).run(text)


def _date(process: Process) -> int:
    if list(process.argv[1:]) != ["+%s"]:
        raise Unknown(f"date {process.argv[1:]}")
    calls.write(1, f"{int(calls._time())}\n".encode())
    return 0


def _rm(process: Process) -> int:
    forced, *paths = process.argv[1:]
    if forced != "-f":
        raise Unknown("rm without -f")
    for path in paths:
        try:
            calls.unlink(path)
        except FileNotFoundError:
            continue
        except OSError as error:
            calls.write(2, f"rm: {path}: {error.strerror}\n".encode())
            return 1
    return 0


def _mv(process: Process) -> int:
    try:
        calls.rename(*process.argv[1:])
    except OSError as error:
        calls.write(2, f"mv: {process.argv[1]}: {error.strerror}\n".encode())
        return 1
    return 0


PROGRAMS: dict[str, Callable[[Process], int | None]] = {
    "sh": program,
    "sleep": lambda process: calls.sleep(float(process.argv[1])),
    "date": _date, "rm": _rm, "mv": _mv,
}  # fmt: skip
"""Programs that scripts start, by name."""
