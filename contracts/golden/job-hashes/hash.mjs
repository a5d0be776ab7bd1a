#!/usr/bin/env node
// The hash of a job's request, by itself: no package, nothing of Fumehood's Python.
//
//     echo '{"job_type": "oa.retrieval_rerank.v1", "payload": {"user_task": "auth", "candidates": []}}' | node hash.mjs
//
// Each line in is {"job_type", "payload"}; each line out is {"sha256", "canonical"}, or {"error"}. A request is brought into its typed
// form (defaults filled in, unknown fields gone, unset options left out), written as RFC 8785 says, and hashed. It is taken to be valid:
// whether it is, is not looked at here.
import { createHash } from "node:crypto";

// --- the typed form ---------------------------------------------------------------------------------------------------

const as = (value) => value;
const list = (read) => (value) => value.map(read);

// A field is [how it is read], or that and what it is when it is not there. Without either it is left out.
const object = (fields) => (value) => {
  const typed = {};
  for (const [name, [read, fallback]] of Object.entries(fields)) {
    const said = Object.hasOwn(value, name) ? value[name] : fallback;
    if (said !== undefined) typed[name] = read(said);
  }
  return typed;
};

const verification = (mode, redundancy, adjudication) => [
  object({ mode: [as, mode], redundancy: [as, redundancy], adjudication: [as, adjudication], judge_model: [as] }),
  {},
];

const TYPES = {
  "oa.code_chunk_analysis.v1": object({
    task: [as],
    user_task: [as],
    chunk: [object({ path: [as], start_line: [as], end_line: [as], content: [as], language: [as] })],
    output_constraints: [
      object({ max_summary_length: [as], max_symbols: [as], max_faults: [as], max_next_probes: [as] }),
      {},
    ],
    verification: verification("subjective", 2, "judge_model"),
  }),
  "oa.retrieval_rerank.v1": object({
    user_task: [as],
    candidates: [list(object({ id: [as], content: [as], path: [as], original_score: [as], metadata: [as, {}] }))],
    k: [as, 10],
    ranking_rubric: [as],
    verification: verification("subjective", 2, "majority_vote"),
  }),
  "oa.sandbox_run.v1": object({
    sandbox: [
      object({
        provider: [as, "docker"],
        image_digest: [as],
        network_policy: [as, "none"],
        resources: [object({ memory_mb: [as, 512], cpus: [as, 1], timeout_secs: [as, 60], disk_mb: [as] }), {}],
      }),
    ],
    repo: [object({ source: [as, ""], git_ref: [as], mount_path: [as, "/workspace"] }), {}],
    commands: [list(object({ cmd: [as], workdir: [as], continue_on_fail: [as, false] }))],
    env: [as, {}],
    artifacts: [as],
    verification: verification("objective", 1, "none"),
  }),
  "oa.candidate_judge.v1": object({
    job_type: [as],
    request: [as],
    candidates: [as],
    judge_model: [as],
    verification: verification("subjective", 1, "none"),
  }),
};

// --- RFC 8785 ---------------------------------------------------------------------------------------------------------

const SHORT = { 8: "\\b", 9: "\\t", 10: "\\n", 12: "\\f", 13: "\\r", 34: '\\"', 92: "\\\\" };

function quoted(text) {
  let out = '"';
  for (const character of text) {
    const point = character.codePointAt(0);
    if (point >= 0xd800 && point <= 0xdfff) throw new Error("half a surrogate pair");
    out += SHORT[point] ?? (point < 0x20 ? "\\u" + point.toString(16).padStart(4, "0") : character);
  }
  return out + '"';
}

function number(value) {
  if (!Number.isFinite(value)) throw new Error("not finite");
  return value === 0 ? "0" : String(value); // -0 is 0; the rest is what ECMAScript says, and RFC 8785 takes over
}

function canonical(value) {
  if (value === null || typeof value === "boolean") return String(value);
  if (typeof value === "number") return number(value);
  if (typeof value === "string") return quoted(value);
  if (Array.isArray(value)) return "[" + value.map(canonical).join(",") + "]";
  const names = Object.keys(value).sort(); // by UTF-16 code units, which is the order that is asked for
  return "{" + names.map((name) => quoted(name) + ":" + canonical(value[name])).join(",") + "}";
}

// --- lines in, lines out ----------------------------------------------------------------------------------------------

function answer(line) {
  try {
    const { job_type, payload } = JSON.parse(line);
    if (!Object.hasOwn(TYPES, job_type)) throw new Error("no such job type");
    const text = canonical(TYPES[job_type](payload));
    return { sha256: createHash("sha256").update(text, "utf8").digest("hex"), canonical: text };
  } catch (error) {
    return { error: error.message };
  }
}

let rest = Buffer.alloc(0);
process.stdin.on("data", (chunk) => {
  rest = Buffer.concat([rest, chunk]);
  for (let end = rest.indexOf(10); end >= 0; end = rest.indexOf(10)) {
    process.stdout.write(JSON.stringify(answer(rest.subarray(0, end).toString("utf8"))) + "\n");
    rest = rest.subarray(end + 1);
  }
});
