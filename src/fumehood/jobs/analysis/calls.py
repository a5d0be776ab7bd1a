"""Rules about single calls: who is called, and what the arguments must look like for it to be a fault."""

# ruff: noqa: E501 - tables read best with one rule for each line

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from fumehood.jobs.analysis.code import Call, Code
from fumehood.jobs.analysis.findings import Finding
from fumehood.jobs.analysis.syntax import inside

ANY = "any"
MADE = "made"
"""The first argument is no literal: it may be anybody's."""
BUILT = "built"
"""Some argument is put together of a literal and data."""
FIRST_BUILT = "first built"
"""The first one is: the others are passed on as they are."""


@dataclass(frozen=True, slots=True)
class CallRule:
    meaning: str
    languages: str
    """Names, with spaces between."""
    callee: str
    """A pattern for all of it."""
    when: str = ANY
    text: str = ""
    """A pattern that the arguments must hold …"""
    unless: str = ""
    """… and one that they must not."""
    severity: str | None = None
    near: str = ""
    """A pattern for the statement or the function's name: weak random numbers are a fault where a token is made."""


_JS = "javascript typescript tsx"
_SECRET = r"(?i)token|secret|passw|nonce|session|otp|salt|api_?key|csrf|reset|verif|auth"

CALLS = (
    # --- code and commands made of data
    CallRule("code-injection", "python", r"eval|exec|builtins\.(eval|exec)", MADE),
    CallRule("code-injection", _JS, r"eval|window\.eval|globalThis\.eval", MADE),
    CallRule("code-injection", _JS, r"Function|vm\.(runInNewContext|runInThisContext|runInContext)|vm\.Script", MADE),
    CallRule("code-injection", _JS, r"(window\.)?set(Timeout|Interval)", BUILT, unless=r"=>|function"),
    CallRule("code-injection", "ruby", r"(.*\.)?(eval|instance_eval|class_eval|module_eval)", MADE),
    CallRule("code-injection", "ruby", r".*\.(send|public_send|__send__)|.*\.?constantize", MADE, text=r"\bparams\b"),
    CallRule("code-injection", "php", r"eval|assert|create_function", MADE),
    CallRule("code-injection", "bash", r"eval", ANY, text=r"\$"),
    CallRule("code-injection", "java", r".*[eE]ngine\.eval|.*\.parseExpression", MADE),
    CallRule("command-injection", "python", r"os\.(system|popen)|commands\.getoutput|subprocess\.getoutput", MADE),
    CallRule("command-injection", "python", r"subprocess\.\w+|asyncio\.create_subprocess_shell", BUILT, text=r"shell=True"),
    CallRule("command-injection", _JS, r"(child_process\.|cp\.)?(exec|execSync)", FIRST_BUILT),
    CallRule("command-injection", _JS, r"(child_process\.|cp\.)?(spawn|spawnSync)", BUILT, text=r"shell:\s*true|-c\b"),
    CallRule("command-injection", "go", r"exec\.Command(Context)?", BUILT, text=r'"(/bin/)?(ba|z|da)?sh"|"cmd(\.exe)?"'),
    CallRule("command-injection", "rust", r".*\.args?", BUILT),
    CallRule("command-injection", "java", r"(.*\.)?(getRuntime\(\)|runtime|rt)\.exec", BUILT),
    CallRule("command-injection", "java", r"ProcessBuilder", BUILT, text=r'"(/bin/)?(ba)?sh"|"cmd(\.exe)?"'),
    CallRule("command-injection", "c cpp", r"(std::)?(system|popen|_popen|execlp|execvp)", MADE),
    CallRule("command-injection", "ruby", r"(Kernel\.)?(system|exec|spawn)|IO\.popen|Open3\.\w+", FIRST_BUILT),
    CallRule("command-injection", "php", r"\\?(system|exec|shell_exec|passthru|popen|proc_open|pcntl_exec)", MADE, unless=r"escapeshell"),
    CallRule("command-injection", "csharp", r"(System\.Diagnostics\.)?(Process\.Start|ProcessStartInfo)", BUILT),
    CallRule("sql-injection", "ruby", r".*\.(where|order|find_by_sql|group|having|joins|pluck|exists\?|delete_all|update_all)", FIRST_BUILT),
    CallRule("sql-injection", "python", r".*\.objects\.raw|.*\.extra|(sqlalchemy\.)?text", FIRST_BUILT),
    CallRule("sql-injection", "php", r".*\.(whereRaw|orderByRaw|selectRaw|havingRaw)|DB\.raw", FIRST_BUILT),
    # --- objects made of data
    CallRule("deserialization", "python", r"(c?[pP]ickle|dill|shelve|marshal|jsonpickle)\.(loads?|open|decode|Unpickler)"),
    CallRule("deserialization", "python", r"yaml\.(load|unsafe_load|full_load)(_all)?", unless=r"SafeLoader"),
    CallRule("deserialization", "ruby", r"Marshal\.(load|restore)|YAML\.(load|unsafe_load)|Psych\.(load|unsafe_load)|Oj\.load", MADE),
    CallRule("deserialization", "php", r"\\?unserialize", MADE, unless=r"allowed_classes"),
    CallRule("deserialization", "java", r".*\.readObject|.*\.readUnshared|XMLDecoder|.*[xX][sS]tream\.fromXML"),
    CallRule("deserialization", "csharp", r".*\.(Deserialize|UnsafeDeserialize)", text="", near=r"BinaryFormatter|NetDataContract|SoapFormatter|LosFormatter|ObjectStateFormatter|TypeNameHandling"),
    CallRule("deserialization", _JS, r"(serialize|nodeSerialize|.*[sS]erialize)\.unserialize|.*\.?yaml\.unsafeLoad"),
    # --- hashes, ciphers, random numbers
    CallRule("weak-hash", "python", r"hashlib\.(md5|sha1|md4)", unless=r"usedforsecurity=False"),
    CallRule("weak-hash", "python", r"hashlib\.new", text=r"(?i)[\"'](md5|sha1|md4)"),
    CallRule("weak-hash", _JS, r"(.*\.)?create(Hash|Hmac)", text=r"(?i)[\"'`](md5|sha1|sha-1|md4|ripemd)"),
    CallRule("weak-hash", _JS, r"(?i)md5|sha1|cryptojs\.(md5|sha1)"),
    CallRule("weak-hash", "go", r"(md5|sha1)\.(New|Sum)"),
    CallRule("weak-hash", "rust", r"(md5::)?compute|(Md5|Sha1|sha1::Sha1|md5::Md5)::(new|digest)|md5::\w+|sha1::\w+"),
    CallRule("weak-hash", "java", r"(.*\.)?MessageDigest\.getInstance", text=r'(?i)"(md[245]|sha-?1)"'),
    CallRule("weak-hash", "java", r"DigestUtils\.(md5|sha1?)(Hex)?"),
    CallRule("weak-hash", "c cpp", r"(EVP_)?(MD[245]|md5|SHA1|sha1)(_Init|_Update|_Final)?"),
    CallRule("weak-hash", "ruby", r"(::)?(OpenSSL::)?Digest(::|\.)(MD5|SHA1)\.\w+|(OpenSSL::)?Digest(::Digest)?\.new", text=r"(?is)^(?!.*sha(224|256|384|512))"),
    CallRule("weak-hash", "php", r"\\?(md5|sha1|md5_file|sha1_file)"),
    CallRule("weak-hash", "php", r"\\?(hash|hash_hmac)", text=r"(?i)^[\"'](md5|sha1|md4)"),
    CallRule("weak-hash", "csharp", r"(System\.Security\.Cryptography\.)?(MD5|SHA1|HMACMD5|HMACSHA1)\.(Create|HashData)|(MD5|SHA1)(CryptoServiceProvider|Managed)"),
    CallRule("weak-cipher", "java", r"(.*\.)?(Cipher|KeyGenerator|SecretKeyFactory)\.getInstance", text=r'(?i)"(des(ede)?|rc[24]|arcfour|blowfish|aes/ecb|aes")'),
    CallRule("weak-cipher", _JS, r"(.*\.)?createCipher(iv)?", text=r"(?i)[\"'`](des|rc[24]|.*-ecb|bf)"),
    CallRule("weak-cipher", "go", r"(des|rc4)\.New\w*"),
    CallRule("weak-cipher", "csharp", r"(DES|TripleDES|RC2)\.Create|(DES|TripleDES|RC2)CryptoServiceProvider"),
    CallRule("weak-cipher", "php", r"\\?(openssl_(en|de)crypt|mcrypt_\w+)", text=r"(?i)[\"'](des|rc4|.*-ecb|bf-)"),
    CallRule("weak-cipher", "ruby", r"OpenSSL::Cipher(::Cipher)?\.new", text=r"(?i)[\"'](des|rc4|.*-ecb|bf)"),
    CallRule("weak-cipher", "python", r"(DES3?|ARC4|Blowfish)\.new|(algorithms\.)(TripleDES|ARC4|Blowfish|IDEA)|modes\.ECB"),
    CallRule("weak-cipher", "c cpp", r"EVP_(des|rc4|rc2|bf)_\w+|EVP_aes_\d+_ecb|(DES|RC4)_\w*(set_key|encrypt)\w*"),
    CallRule("weak-random", "python", r"random\.(random|randint|choices?|randrange|getrandbits|sample|uniform)", near=_SECRET),
    CallRule("weak-random", _JS, r"Math\.random", near=_SECRET),
    CallRule("weak-random", "go", r"rand\.(Int\w*|Uint\w*|Float\w*|Read|Perm)", near=_SECRET),
    CallRule("weak-random", "java", r"(java\.util\.)?Random|Math\.random|ThreadLocalRandom\.current", near=_SECRET),
    CallRule("weak-random", "c cpp", r"(std::)?(rand|random|drand48)", near=_SECRET),
    CallRule("weak-random", "c cpp", r"(std::)?srand(om)?", text=r"\btime\s*\(", severity="low"),
    CallRule("weak-random", "ruby", r"rand|Random\.(rand|new)|Kernel\.rand", near=_SECRET),
    CallRule("weak-random", "php", r"\\?(rand|mt_rand|uniqid|lcg_value|shuffle|str_shuffle)", near=_SECRET),
    CallRule("weak-random", "csharp", r"(System\.)?Random", near=_SECRET),
    CallRule("weak-random", "rust", r".*SmallRng::\w+|.*StdRng::seed_from_u64", near=_SECRET),
    # --- transport
    CallRule("tls-off", "python", r"ssl\._create_unverified_context|(.*\.)?disable_warnings"),
    CallRule("tls-off", "python", r"(requests|httpx|session|client|aiohttp)\.\w+|httpx\.(Async)?Client", text=r"\bverify=False|\bssl=False"),
    CallRule("tls-off", "rust", r".*\.danger_accept_invalid_(certs|hostnames)", text=r"true"),
    CallRule("tls-off", "php", r"\\?curl_setopt(_array)?", text=r"(?i)SSL_VERIFY(PEER|HOST)\W+(false|0)"),
    CallRule("tls-off", "bash", r"curl", text=r"(^|\s)(--insecure|-[a-zA-Z]*k[a-zA-Z]*)(\s|$)"),
    CallRule("tls-off", "bash", r"wget", text=r"--no-check-certificate"),
    CallRule("tls-off", "bash", r"git", text=r"http\.sslVerify[= ]false"),
    CallRule("tls-off", "c cpp", r"curl_easy_setopt", text=r"SSL_VERIFY(PEER|HOST),? *(0|false)"),
    CallRule("tls-off", "java", r".*\.setHostnameVerifier|.*\.(setDefault)?HostnameVerifier", text=r"->\s*true|ALLOW_ALL|Noop"),
    # --- memory
    CallRule("buffer-overflow", "c cpp", r"(std::)?gets"),
    CallRule("buffer-overflow", "c cpp", r"(std::)?(strcpy|strcat|wcscpy|wcscat|stpcpy)", unless=r'^[^"]*"[^"]*"$', severity="high"),
    CallRule("buffer-overflow", "c cpp", r"(std::)?v?sprintf", severity="medium", unless=r'^\S+ "[^%"]*(%[-0-9.]*[duxcp][^%"]*)*"'),
    CallRule("buffer-overflow", "c cpp", r"(std::)?(f|s)?scanf", text=r'"[^"]*%s'),
    CallRule("insecure-temp", "c cpp", r"(std::)?(tmpnam|mktemp|tempnam|_tempnam)"),
    CallRule("insecure-temp", "python", r"tempfile\.mktemp|os\.tempnam"),
    CallRule("insecure-temp", "php", r"\\?tempnam", severity="low"),
    CallRule("unsafe", "rust", r"(std::)?(mem::)?(transmute|uninitialized|zeroed)"),
    # --- pages
    CallRule("xss", _JS, r"document\.write(ln)?", MADE),
    CallRule("xss", _JS, r".*\.insertAdjacentHTML", BUILT),
    CallRule("xss", _JS, r"\$\(.*\)\.(html|append|prepend|after|before)", BUILT),
    CallRule("xss", "ruby", r".*\.html_safe|raw"),
    CallRule("xss", "go", r"template\.(HTML|JS|URL|HTMLAttr)", MADE),
    CallRule("xss", "csharp", r"(Html\.|html\.)Raw", MADE),
    CallRule("xss", "python", r"(markupsafe\.)?Markup|mark_safe|django\.utils\.safestring\.mark_safe", BUILT),
    CallRule("template-injection", "python", r"(flask\.)?render_template_string|(jinja2\.)?(Environment\(\)\.from_string|Template)", BUILT),
    # --- the rest
    CallRule("xxe", "java", r"(.*\.)?\w*[fF]actory\.(newDocumentBuilder|newSAXParser|createXMLStreamReader|createXMLEventReader)"),
    CallRule("xxe", "php", r"\\?(simplexml_load_\w+|libxml_disable_entity_loader)|.*\.loadXML", text=r"LIBXML_NOENT|LIBXML_DTDLOAD|^false$"),
    CallRule("xxe", "csharp", r"(System\.Xml\.)?XmlUrlResolver|XmlTextReader"),
    CallRule("xxe", "python", r"(lxml\.)?etree\.XMLParser", text=r"resolve_entities=True"),
    CallRule("debug-on", "python", r"\w*app\.run", text=r"debug=True"),
    CallRule("permissions", "bash", r"chmod", text=r"(^|\s)0?[0-7]*7[0-7]?7(\s|$)|[ao]\+\w*w"),
    CallRule("permissions", "python ruby go php c cpp java", r"(.*[.>:])?[cC]hmod", text=r"\b0?o?[0-7]?[0-7][0-7][2367]\b"),
    CallRule("path-traversal", "python", r"(tar\w*|archive|zip\w*)\.extractall", unless=r"filter="),
    CallRule("unfinished", "rust", r"todo|unimplemented"),
    CallRule("panic", "go", r"panic", severity="low"),
    CallRule("floating-promise", _JS, r".*\.forEach", text=r"^async\b"),
)  # fmt: skip


def find(code: Code) -> Iterator[Finding]:
    rules = [
        (one, re.compile(one.callee), re.compile(one.text), re.compile(one.unless), re.compile(one.near))
        for one in CALLS
        if code.syntax.language.name in one.languages.split()
    ]
    for call in code.calls:
        for rule, callee, text, unless, near in rules:
            if not callee.fullmatch(call.callee) or not text.search(call.text):
                continue
            if rule.unless and unless.search(call.text):
                continue
            if _fits(rule, code, call) and (not rule.near or near.search(_around(code, call))):
                yield Finding.of(rule.meaning, call.line, severity=rule.severity)


def _fits(rule: CallRule, code: Code, call: Call) -> bool:
    if rule.meaning == "command-injection" and code.syntax.language.name == "rust":
        return _through_shell(code, call) and any(code.is_built(one) for one in call.arguments)
    match rule.when:
        case "made":
            return (
                bool(call.arguments) and not code.is_fixed(call.arguments[0]) and not _is_code(call.arguments[0].type)
            )
        case "built":
            return any(code.is_built(one) for one in call.arguments)
        case "first built":
            return bool(call.arguments) and code.is_built(call.arguments[0])
        case _:
            return True


def _is_code(kind: str) -> bool:
    return "function" in kind or "lambda" in kind or kind in {"block", "do_block"}


def _through_shell(code: Code, call: Call) -> bool:
    return re.search(r'"(/bin/)?(ba|z)?sh"\s*\)|"cmd"', code.text(call.node)[:400]) is not None


def _around(code: Code, call: Call) -> str:
    """The statement, and the name of the function that it stands in."""
    function = inside(call.node, code.shape.functions)
    name = function.child_by_field_name("name") or function.child_by_field_name("declarator") if function else None
    statement = call.node
    for _ in range(6):
        above = statement.parent
        if above is None or above.type in code.shape.blocks or above.type in code.shape.functions:
            break
        statement = above
    return f"{code.text(name)[:200] if name else ''} {code.text(statement)[:400]}"
