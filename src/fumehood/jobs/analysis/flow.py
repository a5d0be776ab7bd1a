"""From where visitors speak to where it hurts: data followed through the assignments of one function.

Small on purpose. It knows no other function, no branches and no fields; what went through a cleaner is clean.
"""

# ruff: noqa: E501 - tables read best with one rule for each line

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from tree_sitter import Node

from fumehood.jobs.analysis.code import Call, Code
from fumehood.jobs.analysis.findings import Finding
from fumehood.jobs.analysis.syntax import inside, line_of


@dataclass(frozen=True, slots=True)
class Flow:
    sources: str
    cleaners: str
    sinks: tuple[tuple[str, str], ...]
    """Meaning, and a pattern for all of the callee."""
    statements: tuple[tuple[str, str], ...] = ()
    """Meaning, and a type of node whose whole text counts."""


_JS = Flow(
    sources=r"\b(req|request|ctx|context)(\.request)?\.(query|body|params|headers|cookies|url)\b|\blocation\.(hash|search|href)|searchParams|\bevent\.data\b|document\.(URL|referrer|cookie)",
    cleaners=r"basename\(|encodeURI|escape\w*\(|sanitize\w*\(|parseInt\(|Number\(|\ballow\w*|whitelist",
    sinks=(
        (
            "path-traversal",
            r"(fs\w*\.)?(promises\.)?(readFile|readFileSync|createReadStream|writeFile|writeFileSync|unlink|unlinkSync|sendFile)|.*\.sendFile",
        ),
        ("ssrf", r"fetch|axios(\.(get|post|put|request))?|https?\.(get|request)|got|request"),
        ("open-redirect", r".*\.redirect"),
        ("code-injection", r"eval|Function|vm\.\w+"),
        ("xss", r"(res|response)\.send|document\.write(ln)?"),
        ("command-injection", r"(child_process\.|cp\.)?(exec|execSync)"),
    ),
)
FLOWS = {
    "python": Flow(
        sources=r"\b(flask\.)?request\.(args|form|json|values|data|files|cookies|headers|GET|POST|query_params|get_json|path_params|match_info|query)\b",
        cleaners=r"secure_filename\(|basename\(|\bescape\(|\bint\(|quote\(|url_has_allowed_host|safe_join\(|float\(|uuid\.UUID\(",
        sinks=(
            ("path-traversal", r"open|(flask\.)?send_file|(\w+\.)?Path|os\.(remove|unlink|rmdir|rename|listdir)|shutil\.\w+"),
            ("ssrf", r"(requests|httpx|session|client)\.(get|post|put|head|delete|request)|(urllib\.request\.)?urlopen"),
            ("open-redirect", r"(flask\.)?redirect|HttpResponseRedirect|RedirectResponse"),
            ("template-injection", r"(flask\.)?render_template_string"),
            ("xss", r"HttpResponse|make_response|Markup|mark_safe"),
            ("code-injection", r"eval|exec"),
            ("command-injection", r"os\.(system|popen)"),
            ("sql-injection", r".*\.(execute|executemany|raw|executescript)"),
        ),
    ),
    "javascript": _JS,
    "typescript": _JS,
    "tsx": _JS,
    "go": Flow(
        sources=r"\.URL\.(Query\(\)|Path\b|RawQuery)|\.(FormValue|PostFormValue|PathValue)\(|mux\.Vars\(|\.Header\.Get\(|\bc\.(Query|Param|PostForm)\(",
        cleaners=r"filepath\.Base\(|path\.Base\(|strconv\.|EscapeString\(|IsLocal\(|url\.QueryEscape\(",
        sinks=(
            ("path-traversal", r"(os|ioutil)\.(ReadFile|Open|OpenFile|Create|Remove|WriteFile)|http\.ServeFile"),
            ("ssrf", r"(http|client)\.(Get|Post|Head|NewRequest(WithContext)?)"),
            ("open-redirect", r"http\.Redirect|c\.Redirect"),
            ("command-injection", r"exec\.Command(Context)?"),
            ("xss", r"fmt\.Fprintf?|fmt\.Fprintln|io\.WriteString"),
            ("sql-injection", r".*\.(Query|QueryRow|Exec)(Context)?"),
        ),
    ),
    "java": Flow(
        sources=r"\.get(Parameter|Header|QueryString|RequestURI|Cookies|PathInfo)\(|@(RequestParam|PathVariable|RequestBody|QueryParam)",
        cleaners=r"FilenameUtils\.getName\(|escapeHtml|Integer\.(parseInt|valueOf)\(|Long\.parseLong\(|encodeForHTML|normalize\(",
        sinks=(
            ("path-traversal", r"(java\.io\.)?(File|FileInputStream|FileReader|FileOutputStream|FileWriter)|Paths?\.(get|of)|Files\.\w+"),
            ("ssrf", r"(java\.net\.)?(URL|URI)(\.create)?|HttpRequest\.newBuilder|.*[rR]estTemplate\.\w+"),
            ("open-redirect", r".*\.sendRedirect"),
            ("xss", r".*getWriter\(\)\.(print|println|write|append|printf)"),
            ("command-injection", r".*\.exec|ProcessBuilder"),
            ("sql-injection", r".*\.(executeQuery|executeUpdate|execute|createQuery|createNativeQuery)"),
        ),
    ),
    "ruby": Flow(
        sources=r"\bparams\b|\brequest\.(params|query_string|headers|env)|\bcookies\b",
        cleaners=r"basename|sanitize|\.to_i\b|escape|permit\(|url_for\(|allowed|quote\(",
        sinks=(
            ("path-traversal", r"send_file|File\.(read|open|new|write|delete|unlink)|IO\.read|FileUtils\.\w+|open"),
            ("open-redirect", r"redirect_to|redirect"),
            ("ssrf", r"Net::HTTP\.(get|get_response|post|start)|URI\.(open|parse)|HTTParty\.\w+|Faraday\.\w+"),
            ("code-injection", r".*\.?(eval|instance_eval|constantize|send|public_send)"),
            ("command-injection", r"(Kernel\.)?(system|exec|spawn)"),
            ("sql-injection", r".*\.(find_by_sql|execute|exec_query)"),
        ),
    ),
    "php": Flow(
        sources=r"\$_(GET|POST|REQUEST|COOKIE|FILES)\b|\bfile_get_contents\(\W*php://input",
        cleaners=r"htmlspecialchars\(|htmlentities\(|basename\(|intval\(|\(int\)|escapeshell|filter_(var|input)\(|strip_tags\(|realpath\(|in_array\(|real_escape_string|quote\(|password_(hash|verify)\(",
        sinks=(
            ("path-traversal", r"\\?(fopen|readfile|file_get_contents|file_put_contents|unlink|file|copy|rename|rmdir|move_uploaded_file)"),
            ("open-redirect", r"\\?header"),
            ("ssrf", r"\\?curl_init"),
            ("code-injection", r"\\?(eval|assert|call_user_func|preg_replace)"),
            ("command-injection", r"\\?(system|exec|shell_exec|passthru|popen)"),
            ("sql-injection", r"\\?(mysqli?_query|pg_query)|.*\.(query|exec)"),
            ("xss", r"\\?(printf|print_r|vprintf)"),
            ("deserialization", r"\\?unserialize"),
        ),
        statements=(("xss", "echo_statement"), ("xss", "print_intrinsic")),
    ),
    "csharp": Flow(
        sources=r"\bRequest\.(Query|Form|QueryString|Params|Cookies|Headers|Path)\b|\[From(Query|Body|Route|Form)\]",
        cleaners=r"Path\.GetFileName\(|HtmlEncode\(|int\.(Parse|TryParse)\(|IsLocalUrl\(|UrlEncode\(",
        sinks=(
            ("path-traversal", r"(System\.IO\.)?File\.\w+|FileStream|StreamReader|PhysicalFile"),
            ("open-redirect", r"(Response\.)?Redirect"),
            ("ssrf", r".*[cC]lient\.(GetAsync|GetStringAsync|PostAsync|DownloadString)|WebRequest\.Create"),
            ("xss", r"Response\.Write|.*Html\.Raw"),
            ("command-injection", r"Process\.Start"),
            ("sql-injection", r"SqlCommand|.*\.(FromSqlRaw|ExecuteSqlRaw)"),
        ),
    ),
}  # fmt: skip


def find(code: Code) -> Iterator[Finding]:
    flow = FLOWS.get(code.syntax.language.name)
    if flow is not None:
        yield from _Follow(code, flow).find()


class _Follow:
    def __init__(self, code: Code, flow: Flow) -> None:
        self._code = code
        self._sources, self._cleaners = re.compile(flow.sources), re.compile(flow.cleaners)
        self._sinks = [(meaning, re.compile(callee)) for meaning, callee in flow.sinks]
        self._statements = {kind: meaning for meaning, kind in flow.statements}
        self._dirty: dict[int, set[str]] = {}
        """By function: names that hold what a visitor said."""

    def find(self) -> Iterator[Finding]:
        for what in sorted(self._events(), key=lambda one: one[0]):
            yield from self._step(what[1])

    def _events(self) -> Iterator[tuple[tuple[int, int], Call | Node | tuple[Node, str, Node]]]:
        """Assignments, calls and statements in the order in which they take effect: a value before who gets it."""
        for node, target, value in self._code.assigned():
            yield (node.end_byte, 1), (node, target, value)
        for call in self._code.calls:
            yield (call.node.end_byte, 0), call
        for node in self._code.syntax.of(*self._statements) if self._statements else ():
            yield (node.end_byte, 0), node

    def _step(self, what: Call | Node | tuple[Node, str, Node]) -> Iterator[Finding]:
        if isinstance(what, tuple):
            self._assign(*what)
        elif isinstance(what, Node):
            if self._is_dirty(what):
                yield Finding.of(self._statements[what.type], line_of(what))
        else:
            for meaning, callee in self._sinks:
                if callee.fullmatch(what.callee) and any(self._is_dirty(one) for one in what.arguments):
                    yield Finding.of(meaning, what.line)

    def _assign(self, node: Node, target: str, value: Node) -> None:
        names = set(re.findall(r"\$?\w+", target)[:8])
        held = self._dirty.setdefault(self._function(node), set())
        if self._is_dirty(value):
            held |= names
        else:
            held -= names

    def _function(self, node: Node) -> int:
        found = inside(node, self._code.shape.functions)
        return found.id if found is not None else 0

    def _is_dirty(self, node: Node) -> bool:
        text = self._code.text(node)[:4000]
        if self._cleaners.search(text):
            return False
        if self._sources.search(text):
            return True
        held: set[str] = set()
        function = inside(node, self._code.shape.functions)
        while function is not None:  # an inner function sees the names of the outer ones
            held |= self._dirty.get(function.id, set())
            function = inside(function, self._code.shape.functions)
        held |= self._dirty.get(0, set())
        return bool(held) and any(self._name(one) in held for one in self._code.walk(node))

    def _name(self, node: Node) -> str | None:
        return self._code.text(node) if node.type in self._code.shape.names else None
