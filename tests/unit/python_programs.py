"""Programs of Python that tell much about the interpreter that runs them, and behave the same each time."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from dataclasses import dataclass, field

from fumehood.sandbox.pool.interpreter import LONGEST


@dataclass(frozen=True)
class Program:
    code: str
    env: Mapping[str, str] = field(default_factory=dict)
    since: tuple[int, int] = (3, 8)


ENDS = {
    "nothing": "",
    "prints": "print('hello')",
    "error": "def f():\n    1/0\nf()",
    "error in a comprehension": "[1/x for x in (1, 0)]",
    "error in the first line": "raise ValueError('x')",
    "error of a class that is frozen": """
        import dataclasses
        @dataclasses.dataclass(frozen=True)
        class Mine(Exception):
            x: int
        raise Mine(3)
    """,
    "error without a traceback": "raise ValueError('x').with_traceback(None)",
    "cause": "try:\n    1/0\nexcept ZeroDivisionError as e:\n    raise KeyError('k') from e",
    "context": "try:\n    {}['k']\nexcept KeyError:\n    undefined",
    "context suppressed": """
        try:
            1/0
        except ZeroDivisionError:
            raise OSError(2, 'no', 'x') from None
    """,
    "error with an error as its argument": """
        e = ValueError('a')
        try:
            raise e
        except ValueError:
            raise TypeError(e)
    """,
    "raised twice": """
        def f():
            raise ValueError
        try:
            f()
        except ValueError as e:
            x = e
        raise x
    """,
    "error that cannot be shown": """
        class E(Exception):
            def __str__(self): raise KeyError
        raise E
    """,
    "recursion without end": "def f():\n    f()\nf()",
    "recursion, how deep": """
        def f(n):
            try:
                return f(n + 1)
            except RecursionError:
                return n
        print(f(0))
    """,
    "recursion in C, how deep": """
        class A:
            def __repr__(self):
                global n
                n += 1
                return repr([self])
        n = 0
        try:
            repr(A())
        except RecursionError:
            print(n)
    """,
    "assertion": "assert 1 == 2, 'x'",
    "import": "import nothing_of_that_name",
    "syntax": "x = 1\ny = = 2\n",
    "syntax, unfinished": "def f(:\n  pass",
    "syntax, a string": "print('abc",
    "syntax, indented": "x = 1\n  y = 2\n",
    "syntax, tabs": "if 1:\n\tx = 1\n        y = 2\n",
    "syntax, from the compiler": "def f():\n    x = 1\n    global x\n",
    "syntax, far out": "return 1",
    "syntax, from text": "eval('1 +')",
    "syntax, not ASCII": "x = 'ä' ß ö = 3",
    "syntax, a bad coding": "# -*- coding: latin-1 -*-\nprint('ä')",
    "exit": "import sys; sys.exit()",
    "exit 3": "import sys; sys.exit(3)",
    "exit 256": "import sys; sys.exit(256)",
    "exit -1": "import sys; sys.exit(-1)",
    "exit with text": "import sys; sys.exit('sorry')",
    "exit with a tuple": "raise SystemExit((1, 2))",
    "exit, nested": """
        def f():
            try:
                exit(4)
            finally:
                print('finally')
        f()
    """,
    "exit, a class": "class Mine(SystemExit): pass\nraise Mine(7)",
    "exit at once": "import os, sys; sys.stdout.write('lost'); os._exit(9)",
    "exit inside a handler": """
        try:
            1/0
        except ZeroDivisionError:
            raise SystemExit('because')
    """,
    "interrupt": "raise KeyboardInterrupt",
    "interrupted": "import os, signal, time\nos.kill(os.getpid(), signal.SIGINT)\ntime.sleep(60)",
    "interrupt, caught": """
        import os, signal
        try:
            os.kill(os.getpid(), signal.SIGINT)
            while True: pass
        except KeyboardInterrupt:
            print('caught')
    """,
    "killed": "import os, signal; os.kill(os.getpid(), signal.SIGTERM)",
    "aborted": "import os; os.abort()",
    "at exit": """
        import atexit, sys
        atexit.register(print, 'bye')
        atexit.register(lambda: print(sys.excepthook is sys.__excepthook__))
        1/0
    """,
    "at exit, an error": "import atexit\natexit.register(lambda: 1/0)",
    "at exit, an exit": "import atexit, sys\natexit.register(lambda: sys.exit(5))\nsys.exit(6)",
    "at exit of an interrupt": """
        import atexit, sys
        atexit.register(lambda: print(sys.excepthook is sys.__excepthook__))
        raise KeyboardInterrupt
    """,
    "last error": """
        import atexit, sys, traceback
        atexit.register(lambda: traceback.print_tb(sys.last_traceback))
        atexit.register(lambda: traceback.print_last())
        1/0
    """,
    "hook": """
        import sys
        sys.excepthook = lambda *a: print(a[0], a[1], a[2].tb_lineno, a[2].tb_next, a[1].__traceback__ is a[2])
        1/0
    """,
    "hook that fails": """
        import sys
        def hook(*a): raise KeyError('hook')
        sys.excepthook = hook
        1/0
    """,
    "hook that exits": "import sys\nsys.excepthook = lambda *a: sys.exit(8)\n1/0",
    "hook that is missing": "import sys\ndel sys.excepthook\n1/0",
    "hook that is nothing": "import sys\nsys.excepthook = None\n1/0",
    "left to the end": """
        class A:
            def __del__(self): print('gone', __name__)
        a = A()
        b = [a]; b.append(b)
    """,
    "error while deleting": "class A:\n    def __del__(self): 1/0\na = A()\ndel a",
    "names of its own": "_boot = 1\nBaseException_ = 2\nprint(_boot)\n1/0",
    "all names gone": "globals().clear()\n1/0",
    "a main module of its own": """
        import sys, types
        sys.modules['__main__'] = types.ModuleType('x')
        1/0
    """,
    "an output that is closed": "import sys\nprint('x')\nsys.stdout.close()\n1/0",
    "outputs that are closed": "import os\nos.close(1); os.close(2)\nprint('x')",
    "error output that is nothing": "import sys\nsys.stderr = None\n1/0",
}
SINCE_3_11 = {
    "group": "raise ExceptionGroup('g', [ValueError(1), ExceptionGroup('h', [TypeError(2)])])",
    "group of what was raised": """
        def f():
            raise ValueError('x')
        try:
            f()
        except* ValueError as e:
            raise
    """,
    "notes": "e = ValueError('x')\ne.add_note('a note')\nraise e",
}
THREADS = {
    "thread": """
        import threading
        t = threading.Thread(target=print, args=('in it',))
        t.start(); t.join()
    """,
    "thread that outlives": """
        import threading
        threading.Thread(target=lambda: (threading.main_thread().join(), print('late'))).start()
        print('early')
    """,
    "thread that outlives an error": """
        import threading
        threading.Thread(target=lambda: (threading.main_thread().join(), print('late'))).start()
        1/0
    """,
    "thread with an error": """
        import threading
        t = threading.Thread(target=lambda: 1/0, name='mine')
        t.start(); t.join()
        print('on')
    """,
    "main thread": """
        import threading
        print(threading.current_thread() is threading.main_thread(), threading.active_count())
    """,
    "daemon": """
        import threading, time
        threading.Thread(target=time.sleep, args=(60,), daemon=True).start()
        print('over')
    """,
    "pool of threads": """
        from concurrent.futures import ThreadPoolExecutor
        with ThreadPoolExecutor(2) as p:
            print(list(p.map(abs, [-1, -2])))
    """,
    "asyncio": """
        import asyncio
        async def f():
            await asyncio.sleep(0)
            1/0
        asyncio.run(f())
    """,
    "fork": """
        import os, sys
        pid = os.fork()
        if not pid:
            print('child'); sys.exit(3)
        print(os.waitpid(pid, 0)[1])
    """,
    "fork, an error in the child": """
        import os, sys
        pid = os.fork()
        if not pid:
            1/0
        os.waitpid(pid, 0)
    """,
    "process, forked": """
        import multiprocessing
        def f(x):
            return x * x
        if __name__ == '__main__':
            with multiprocessing.get_context('fork').Pool(2) as pool:
                print(pool.map(f, [1, 2, 3]))
    """,
    "process, forked, with an error": """
        import multiprocessing, re, sys
        def f():
            sys.exit(5)
        p = multiprocessing.get_context('fork').Process(target=f)
        p.start(); p.join()
        print(p.exitcode)
    """,
    "process, spawned": """
        import multiprocessing
        p = multiprocessing.get_context('spawn').Process(target=print, args=('spawned',))
        p.start(); p.join()
        print(p.exitcode)
    """,
    "subprocess": """
        import subprocess, sys
        child = 'import sys; print(repr(sys.stdin.read()))'
        print(subprocess.run([sys.executable, '-c', child], capture_output=True).stdout)
    """,
    "subprocess, its input": """
        import subprocess
        print(subprocess.run(['readlink', '/proc/self/fd/0'], capture_output=True).stdout)
    """,
    "signals": """
        import signal
        for s in sorted(signal.valid_signals()):
            print(s, signal.getsignal(s))
        print(signal.pthread_sigmask(signal.SIG_BLOCK, []))
        print([line for line in open('/proc/self/status') if line.startswith(('Sig', 'Shd')) and 'SigQ' not in line])
    """,
}
INPUT = {
    "input()": "input('> ')",
    "input, read": """
        import sys
        print(repr(sys.stdin.read()), repr(sys.stdin.readline()), list(sys.stdin))
    """,
    "input, bytes": "import os, sys\nprint(sys.stdin.buffer.read(), os.read(0, 1))",
    "input, what it is": """
        import os, stat, sys
        i = sys.stdin
        print(i, i is sys.__stdin__, i.fileno(), i.isatty(), i.seekable(), i.readable(), i.writable(), i.mode, i.name)
        print(i.encoding, i.errors, i.newlines, i.line_buffering, i.write_through, i.closed, i.tell())
        print(i.buffer, i.buffer.raw, i.buffer.mode, i.buffer.raw.closefd, vars(i), vars(i.buffer.raw))
        print(os.readlink('/proc/self/fd/0'), os.get_inheritable(0), os.fstat(0).st_rdev)
        print(open('/proc/self/fdinfo/0').read().split('mnt_id')[0])
    """,
    "input, again by its number": "print(repr(open(0).read()))",
    "input, closed": "import sys; sys.stdin.close(); print(sys.stdin)",
    "files that are open": """
        import os
        print(sorted(os.listdir('/proc/self/fd')), os.open('/dev/null', os.O_RDONLY))
    """,
    "output, without a line's end": "print('x', end='')",
    "output, much": "import sys\nfor i in range(20000): print(i)\nprint('e', file=sys.stderr)",
    "output, how buffered": """
        import sys
        for s in (sys.stdout, sys.stderr): print(s, s.line_buffering, s.write_through, s.encoding, s.errors)
    """,
    "output, flushed where it dies": """
        import os, sys
        print('kept', flush=True)
        print('lost')
        os.kill(os.getpid(), 9)
    """,
}
NAMES = {
    "names": """
        print(list(globals().items())[:5], sorted(globals()))
        print(dir(), vars() is globals(), locals() is globals())
    """,
    "main": """
        import __main__, sys
        print(__main__, vars(__main__) is globals(), sys.modules['__main__'] is __main__, __main__.__spec__)
    """,
    "builtins": "import builtins\nprint(__builtins__ is builtins, sorted(vars(builtins)))",
    "text of the module": "'text'\nprint(__doc__)",
    "annotations": "x: int = 3\nprint(__annotations__, x)",
    "class": "class A: pass\nprint(A, A.__module__, A.__qualname__)",
    "pickle": """
        import pickle
        class A:
            def __eq__(self, other): return type(self) is type(other)
        data = pickle.dumps(A())
        print(data, pickle.loads(data) == A())
    """,
    "arguments": "import sys\nprint(sys.argv, sys.path, sys.flags, sys.warnoptions, sys._xoptions)",
    "arguments, as they were": """
        import sys
        print(sys.orig_argv if hasattr(sys, 'orig_argv') else 0)
    """,
    "modules": "import sys\nprint(sorted(sys.modules), sorted(sys.path_importer_cache))",
    "all of sys": "import sys\nprint(sorted(set(vars(sys)) - {'x'}))",
    "cache of lines": """
        import sys
        l = sys.modules.get('linecache')
        print(l and (l.cache, getattr(l, '_interactive_cache', 0)))
    """,
    "own frame": """
        import sys
        f = sys._getframe()
        print(f.f_code.co_name, f.f_code.co_filename, f.f_code.co_flags, f.f_lineno)
        print(f.f_globals is f.f_locals, f.f_trace)
    """,
    "own source": """
        import inspect
        def f(): pass
        try:
            print(inspect.getsource(f))
        except OSError as e:
            print(e)
    """,
    "star": "from math import *\nprint(pi)",
    "del": "x = 1\ndel x\nprint('x' in globals())",
    "exec": "exec('x = 1')\nprint(x, eval('x + 1'))",
    "closures": """
        n = 2
        f = lambda: [n * y for y in range(n)]
        print(f(), [n for n in range(3)], n)
        class C:
            m = n
            k = [m for m in range(m)]
        print(C.k)
    """,
    "future": """
        from __future__ import annotations
        def f(x: undefined): pass
        print(f.__annotations__)
    """,
    "future does not leak in": """
        def f(x: int): pass
        print(f.__annotations__, compile('1', '', 'eval').co_flags)
    """,
    "future that is late": "x = 1\nfrom __future__ import annotations",
    "garbage": "import gc\nprint(gc.collect(), gc.isenabled(), gc.get_threshold(), gc.garbage)",
    "error being handled": "import sys\nprint(sys.exc_info())\nraise",
    "named tuple": """
        import collections, enum, typing
        print(collections.namedtuple('N', 'a').__module__, enum.Enum('E', 'a').__module__)
        print(typing.NamedTuple('T', [('a', int)]).__module__)
    """,
    "warning": """
        import warnings
        warnings.warn('careful')
        warnings.warn('careful', DeprecationWarning)
        def f(): warnings.warn('up', stacklevel=2)
        f()
        print(sorted(globals()))
    """,
    "log": """
        import logging
        logging.basicConfig(format='%(funcName)s %(lineno)d %(module)s %(message)s')
        logging.warning('x')
        try:
            1/0
        except ZeroDivisionError:
            logging.exception('y')
    """,
    "traced": """
        import sys
        def t(frame, event, arg):
            print(event, frame.f_code.co_name, frame.f_lineno)
            return t
        sys.settrace(t)
        def f(): pass
        f()
    """,
    "debugger": "print('before')\nbreakpoint()\nprint('after')",
    "unit tests": """
        import io, unittest
        class T(unittest.TestCase):
            def test(self): self.assertEqual(1, 2)
        unittest.main(testRunner=unittest.TextTestRunner(io.StringIO()))
    """,
    "directory": "import os, sys\nprint(os.getcwd() == os.path.abspath(sys.path[0] or '.'))",
    "hashes": "print(hash('x'), {'a', 'b', 'c'})",
}
TEXTS = {
    "any text": "print('äöü €  \U0001f600 \ufeff \x7f \x1b')",
    "names that are not ASCII": "größe = 1\nprint(größe)\nraise ValueError('ß')",
    "line ends": "x = 1\r\ny = '''a\r\nb'''\rz = 2\nprint(repr(y), z)",
    "form feed": "\x0cx = 1\nprint(x)\n\x0c",
    "byte order mark": "\ufeffprint(1)",
    "no end of line": "if 1:\n    print(1)\n    # end",
    "only a comment": "# nothing",
    "backslash": "print(1)\\",
    "escapes": "print('\\d', '\\N{BULLET}', b'\\xff')",
    "long": "x = '" + "ä" * 50_000 + "'\nprint(len(x))",
    "longest": "#" * (LONGEST - 9) + "\nprint(1)",
    "indented": "    print(1)\n    if 1:\n        print(2)\n",
    "indented, text inside": "  x = '''\n  a\n \n    b'''\n\n  print(repr(x))\n  ",
}
NO_ENCODING = {"LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"}
STREAMS = "import sys\nprint(sys.stdin.encoding, sys.stdin.errors, sys.stdin.write_through, sys.stdout.write_through)\n"
ENVIRONMENTS = {
    "unbuffered": Program(STREAMS + "print(1)", {"PYTHONUNBUFFERED": "1"}),
    "without assertions": Program("'text'\nassert 0\nprint(__doc__)", {"PYTHONOPTIMIZE": "2"}),
    "warnings, all": Program("import sys\nprint('\\d', sorted(sys.modules))\n1 is 1", {"PYTHONWARNINGS": "always"}),
    "warnings, errors": Program("'\\d'", {"PYTHONWARNINGS": "error"}),
    "developers' mode": Program("import sys\nopen('/dev/null')\nprint(sys.flags)\n1/0", {"PYTHONDEVMODE": "1"}),
    "encoding": Program(STREAMS + "print('ä€')", {"PYTHONIOENCODING": "latin-1:replace"}),
    "no encoding": Program("print('ä')", NO_ENCODING),
    "no encoding, none needed": Program(STREAMS, NO_ENCODING),
    "no path of its own": Program("import sys\nprint(sys.path)", {"PYTHONSAFEPATH": "1"}),
    "inspected": Program("print(1)\n1/0", {"PYTHONINSPECT": "1"}),
}


def _table() -> dict[str, Program]:
    plain = {**ENDS, **THREADS, **INPUT, **NAMES}
    return {
        **{name: Program(textwrap.dedent(code)) for name, code in plain.items()},
        **{name: Program(textwrap.dedent(code), since=(3, 11)) for name, code in SINCE_3_11.items()},
        **{name: Program(code) for name, code in TEXTS.items()},
        **ENVIRONMENTS,
    }


TABLE = _table()
