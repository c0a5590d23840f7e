"""Programs of every kind, with what must come of them on each way of running them."""

from __future__ import annotations

from sandboxes.types import Program, Ran

CALM_S = 30.0
"""Seconds that nothing here needs, even on a busy machine."""
BRIEF_S = 1.0
"""For what runs into its limit anyway."""


def call(body: str, *cases: str, entry: str = "f", time_s: float = CALM_S, output_limit: int = 4096) -> Program:
    return Program(body, "call", entry, cases or ("[]",), {}, time_s, output_limit)


def stdin(body: str, *cases: str, time_s: float = CALM_S, output_limit: int = 4096) -> Program:
    return Program(body, "stdin", "", cases, {}, time_s, output_limit)


def script(body: str, time_s: float = CALM_S, **files: bytes) -> Program:
    return Program(body, "script", "", (), {name.replace("_", "."): data for name, data in files.items()}, time_s, 4096)


def outline(ran: Ran) -> list[str]:
    """Kind, error, then status, value and error of each case: all but the time."""
    cases = [" ".join(filter(None, (case.status, case.value.rstrip("\n"), case.error))) for case in ran.cases]
    return [" ".join(filter(None, (ran.kind, ran.error))), *cases]


FORK = "import os, signal, sys, time\n"
CORPUS: dict[str, tuple[Program, list[str]]] = {
    # ------------------------------------------------------------------------------ values
    "plain": (call("def f(a, b):\n return a + b", "[1, 2]", '["a", "b"]'), ["exit", "ok 3", 'ok "ab"']),
    "tagged": (
        call("def f():\n return ({1, 2}, (1,), {1: 2}, float('nan'), -0.0, None, True, b'x')"),
        [
            "exit",
            'ok {"tuple":[{"set":[1,2]},{"tuple":[1]},{"dict":[[1,2]]},{"float":"nan"},-0.0,null,true,{"repr":"b\'x\'"}]}',
        ],
    ),
    "object": (call("class A: pass\ndef f():\n return A()"), ["exit", 'ok {"repr":"<solution.A object at 0x>"}']),
    "cycle": (call("def f():\n a = [1]\n a.append(a)\n return a"), ["exit", 'ok [1,{"repr":"[1, [...]]"}]']),
    "liar": (
        call("class L(list):\n def __iter__(self): return iter([1, 2])\n def __repr__(self): return 'me'\nf = L"),
        ["exit", 'ok {"repr":"me"}'],
    ),
    "no repr": (
        call("class A:\n def __repr__(self): raise KeyboardInterrupt\ndef f(): return [1, A()]"),
        ["exit", 'ok [1,{"repr":"<no text>"}]'],
    ),
    "fresh arguments": (
        call("seen = []\ndef f(a):\n a.append(1)\n seen.append(a)\n return a", "[[]]", "[[]]"),
        ["exit", "ok [1]", "ok [1]"],
    ),
    "state between cases": (call("n = 0\ndef f():\n global n\n n += 1\n return n", "[]", "[]"), ["exit", "ok 1", "ok 2"]),
    "method": (
        call("class Solution:\n n = 0\n def f(self, x):\n  self.n += x\n  return self.n", "[1]", "[1]", entry="Solution.f"),
        ["exit", "ok 1", "ok 1"],
    ),
    "huge integer": (
        call("def f(): return 10 ** 5000"),
        ["exit", "error ValueError: an integer of more than 4215 digits"],
    ),
    "long value": (
        call("def f(n): return 'x' * n", "[5000]", "[2]"),
        ["exit", "output_limit a value of more than 4096 characters", 'ok "xx"'],
    ),
    "deep value": (
        call("def f():\n a = []\n for i in range(100000): a = [a]\n return len(str(a))"),
        ["exit", "error RecursionError: maximum recursion depth exceeded while getting the repr of an object"],
    ),
    "surrogate": (call("def f(): return '\\ud800'"), ["exit", 'ok "\\ud800"']),
    "hash order": (call("def f(): return list({'a', 'b', 'c', 'd', 'e', 'f'}) == list(set('fedcba'))"), ["exit", "ok false"]),
    "future": (call("from __future__ import annotations\ndef f(x: nothing): return x", "[1]"), ["exit", "ok 1"]),
    "main block": (call("def f(): return __name__\nif __name__ == '__main__': 1 / 0"), ["exit", 'ok "solution"']),
    "dataclass": (
        call("from dataclasses import dataclass\n@dataclass\nclass P:\n x: int\ndef f(): return P(1)"),
        ["exit", 'ok {"repr":"P(x=1)"}'],
    ),
    # ------------------------------------------------------------------------------ errors
    "raises": (
        call("def f(x): return 1 // x", "[0]", "[1]"),
        ["exit", "error ZeroDivisionError: integer division or modulo by zero", "ok 1"],
    ),
    "syntax": (call("def f(:", "[]", "[]"), ["exit"] + 2 * ["error SyntaxError: invalid syntax (solution.py, line 1)"]),
    "load fails": (call("1 / 0", "[]", "[]"), ["exit"] + 2 * ["error ZeroDivisionError: division by zero"]),
    "no entry": (call("g = 1"), ["exit", "error NameError: name 'f' is not defined"]),
    "wrong arguments": (
        call("def f(): pass", "[1]"),
        ["exit", "error TypeError: f() takes 0 positional arguments but 1 was given"],
    ),
    "recursion": (
        call("def f(n): return f(n + 1)", "[0]"),
        ["exit", "error RecursionError: maximum recursion depth exceeded"],
    ),
    "nasty exception": (
        call("class E(Exception):\n def __str__(self): raise self\ndef f(): raise E"),
        ["exit", "error E: <no text>"],
    ),
    "long error": (call("def f(): raise ValueError('a\\nb' * 1000)"), ["exit", "error " + ("ValueError: a " + "ba " * 100)[:300]]),
    "null byte": (call("x = '\0'"), ["exit", "error SyntaxError: source code string cannot contain null bytes"]),
    # ------------------------------------------------------------------------------ ends
    "sys.exit in a case": (call("import sys\ndef f(x): sys.exit(x)", "[0]", "[1]"), ["exit", "error SystemExit: 0", "error SystemExit: 1"]),
    "os._exit in a case": (
        call("import os\ndef f(x): return os._exit(3) if x else 7", "[0]", "[1]", "[0]"),
        ["exit exit code 3", "ok 7", "missing", "missing"],
    ),
    "os._exit at load": (call("import os\nos._exit(0)", "[]"), ["exit exit code 0", "missing"]),
    "killed by itself": (
        call("import os\ndef f(x): return os.kill(os.getpid(), x) if x else 1", "[0]", "[9]"),
        ["exit signal 9", "ok 1", "missing"],
    ),
    "segfault": (
        script("import ctypes\nprint('a', flush=True)\nctypes.string_at(0)"),
        ["exit signal 11", "error a signal 11"],
    ),
    "script": (script("import sys\nprint(__name__, sys.argv, input.__name__)"), ["exit", "ok __main__ ['main.py'] input"]),
    "exit 0": (script("print(1)\nexit()"), ["exit", "ok 1"]),
    "exit 3": (script("import sys\nprint(1)\nsys.exit(3)"), ["exit", "error 1 SystemExit: 3"]),
    "exit with words": (script("import sys\nsys.exit('no')"), ["exit", "error SystemExit: no"]),
    "hard exit": (script("import os\nprint(1, flush=True)\nos._exit(0)"), ["exit", "ok 1"]),
    "uncaught": (script("print(1)\nraise KeyError(2)"), ["exit", "error 1 KeyError: 2"]),
    "at exit": (script("import atexit\natexit.register(print, 'end')\nprint(1)"), ["exit", "ok 1\nend"]),
    # ------------------------------------------------------------------------------ input, output, files
    "input": (stdin("print(sum(map(int, input().split())))", "1 2", "3 4\n", ""), ["exit", "ok 3", "ok 7", "error EOFError: EOF when reading a line"]),
    "descriptor 0": (stdin("import os\nprint(os.read(0, 99), open(0).read() == '')", "ä"), ["exit", "ok b'\\xc3\\xa4' True"]),
    "each case anew": (
        stdin("import os\nprint(os.listdir(), open('x', 'a').write(input()))", "a", "b"),
        ["exit", "ok [] 1", "ok [] 1"],
    ),
    "subprocess reads stdin": (
        stdin("import subprocess\nprint(subprocess.run(['cat'], capture_output=True).stdout)", "ab"),
        ["exit", "ok b'ab'"],
    ),
    "not UTF-8": (script("import os\nos.write(1, b'a\\xff\\xc3')"), ["exit", "ok a\ufffd\ufffd"]),
    "both streams": (script("import sys\nprint('e', file=sys.stderr)\nprint('o')"), ["exit", "ok o"]),
    "print in a case": (call("def f(): print('noise')"), ["exit", "ok null"]),
    "files": (
        script("import helper\nprint(helper.x, open('data.txt').read())", helper_py=b"x = 5", data_txt=b"ab"),
        ["exit", "ok 5 ab"],
    ),
    "files left": (
        script("import os\nos.mkdir('/tmp/w/d')\nopen('/tmp/w/d/x', 'w').write('x')\nos.chmod('/tmp/w/d', 0)"),
        ["exit", "ok"],
    ),
    "stdout replaced": (
        script("import io, sys\nprint('a')\nsys.stdout = io.StringIO()\nprint('b')"),
        ["exit", "ok a"],
    ),
    "stdout closed": (script("import sys\nprint('a')\nsys.stdout.close()"), ["exit", "ok a"]),
    # ------------------------------------------------------------------------------ itself and its builtins
    "patched builtins": (
        call("import builtins, json\nfor n in ('len', 'print', 'repr', 'type', 'isinstance', 'map', 'str', 'list'):\n setattr(builtins, n, None)\njson.dumps = json.loads = None\ndef f(x): return [x, (x,)]", "[1]", '["a"]'),
        ["exit", 'ok [1,{"tuple":[1]}]', 'ok ["a",{"tuple":["a"]}]'],
    ),
    "patched modules": (
        call("import os, sys, time, json.decoder as d\nos._exit = os.write = time.monotonic = None\nd.JSONDecoder = None\nsys.modules.clear()\ndef f(x): return x", "[1]"),
        ["exit", "ok 1"],
    ),
    "limit of recursion": (
        call("import sys\nsys.setrecursionlimit(100000)\ndef g(n): return n and g(n - 1)\ndef f(n): return g(n)", "[50000]"),
        ["exit", "ok 0"],
    ),
    "thread": (
        call("import threading\ndef f():\n a = []\n t = threading.Thread(target=a.append, args=(1,))\n t.start(); t.join()\n return a"),
        ["exit", "ok [1]"],
    ),
    "threads at the end": (
        script("import threading, time\ndef g():\n time.sleep(0.1)\n print('g')\nthreading.Thread(target=g).start()\nprint('m')"),
        ["exit", "ok m\ng"],
    ),
    "random": (call("import random\ndef f(): return random.random()", "[]", "[]"), ["exit", "ok 0.8444218515250481", "ok 0.7579544029403025"]),
    "forks": (
        call("import os, random\ndef f():\n r, w = os.pipe()\n if os.fork() == 0:\n  os.write(w, b'x')\n  os._exit(0)\n os.wait()\n return len(os.read(r, 9))"),
        ["exit", "ok 1"],
    ),
    "processes": (
        script("import multiprocessing as m\nif __name__ == '__main__':\n with m.get_context('fork').Pool(2) as p: print(p.map(abs, [-1, -2]))"),
        ["exit", "ok [1, 2]"],
    ),
    "daemon": (
        script(FORK + "if os.fork() == 0:\n os.setsid()\n signal.signal(15, signal.SIG_IGN)\n if os.fork() == 0:\n  while True: time.sleep(1)\n os._exit(0)\nprint('parent')"),
        ["exit", "ok parent"],
    ),
    "child outlives its parent": (
        script(FORK + "print('a', flush=True)\nif os.fork(): os._exit(0)\ntime.sleep(1000)"),
        ["exit", "ok a"],
    ),
    "own signal": (
        script(FORK + "signal.signal(signal.SIGALRM, lambda *a: print('alarm'))\nsignal.setitimer(signal.ITIMER_REAL, 0.05)\nsignal.pause()"),
        ["exit", "ok alarm"],
    ),
    "closes everything": (script("import os\nprint('a', flush=True)\nos.closerange(3, 256)\nprint('b')"), ["exit", "ok a\nb"]),
    "closes its result": (call("import os\ndef f(x):\n x and os.closerange(3, 256)\n return x", "[0]", "[1]"), ["exit exit code 0", "ok 0", "missing"]),
    # ------------------------------------------------------------------------------ limits
    "endless case": (
        call("def f(x):\n while x: pass\n return x", "[0]", "[1]", "[0]", time_s=3.0),
        ["timeout", "ok 0", "timeout", "missing"],
    ),
    "endless load": (call("while True: pass", "[]", "[]", time_s=BRIEF_S), ["timeout", "timeout", "missing"]),
    "sleeps": (script("import time\nprint('a', flush=True)\ntime.sleep(1000)", time_s=BRIEF_S), ["timeout", "timeout a"]),
    "blocks signals": (
        script(FORK + "signal.pthread_sigmask(signal.SIG_BLOCK, range(1, 65))\nwhile True: pass", time_s=BRIEF_S),
        ["timeout", "timeout"],
    ),
    "second input hangs": (
        stdin("x = input()\nprint(x, flush=True)\nwhile x == 'b': pass", "a", "b", "c", time_s=3.0),
        ["timeout", "ok a", "timeout b", "missing"],
    ),
    "flood": (script("while True: print('x' * 100)"), ["output_limit", "output_limit " + ("x" * 100 + "\n") * 40 + "x" * 56]),
    "flood of errors": (script("import sys\nwhile True: print('x' * 100, file=sys.stderr)"), ["output_limit", "output_limit"]),
    "flood in a case": (
        call("def f(x):\n while x: print('x' * 100)\n return x", "[0]", "[1]", "[0]"),
        ["output_limit", "ok 0", "output_limit", "missing"],
    ),
    "memory": (
        call("def f(x):\n a = []\n while x: a.append('x' * 10 ** 6)\n return x", "[0]", "[1]", "[0]"),
        ["exit", "ok 0", "oom MemoryError", "ok 0"],
    ),
    "small memory": (script("a = []\nwhile True: a.append([0])"), ["exit", "oom MemoryError"]),
    # ------------------------------------------------------------------------------ lies
    "nonsense as a result": (call("import os\ndef f(): os.write(200, b'nonsense' * 9)"), ["died", "missing"]),
    "forged result": (
        call("import os\ndef f(): os.write(200, bytes([0, 0, 0, 0, 1, 0, 0, 0, 0]) + b'7'); os._exit(0)", "[]", "[]"),
        ["exit exit code 0", "ok 7", "missing"],
    ),
    "forged value": (
        call("import os\ndef f(): os.write(200, bytes([0, 0, 0, 0, 3, 0, 0, 0, 0]) + b'[[['); os._exit(0)"),
        ["died the worker failed: not an answer (Expecting value: line 1 column 4 (char 3))", "missing"],
    ),
    "too many results": (call("import os\ndef f(): os.write(200, (bytes([0, 0, 0, 0, 1, 0, 0, 0, 0]) + b'7') * 9)"), ["died", "ok 7"]),
}  # fmt: skip
