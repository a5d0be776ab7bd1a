/**
 * Checks a receipt as `fumehood verify` does: a root signs the list of keys, a key of that list signs the receipt, and
 * the receipt is about what this page shows. Pure: no network and no clock. It returns a verdict
 * whatever the server sends, and never throws.
 */
import * as ed25519 from "@noble/ed25519";
import { sha256, sha512 } from "@noble/hashes/sha2.js";
import { bytesToHex, concatBytes, hexToBytes, utf8ToBytes } from "@noble/hashes/utils.js";
import canonicalize from "canonicalize";
import * as v from "valibot";

import type { Digests } from "../output/output";

ed25519.hashes.sha512 = sha512; // the browser's own needs HTTPS, and not every browser has Ed25519

const RECEIPT_TYPE = "application/vnd.in-toto+json";
const KEYS_TYPE = "application/vnd.fumehood.keys+json";
const CLOCKS_DIFFER_MS = 60_000;
const DEEPEST = 64;
const STREAMS = ["stdout", "stderr"] as const;
const LOST = new Set(["internal", "node_lost"]); // its node did not see the end
const NOTHING = bytesToHex(sha256(new Uint8Array()));

// --- the documents of the server ---------------------------------------------------------------------------------

const Hex = v.pipe(v.string(), v.regex(/^[0-9a-f]{64}$/, "a hash or key is not written as 64 digits of 0-9 and a-f"));
const Time = v.pipe(
  v.string(),
  v.regex(/^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:\d\d)$/, "a time is not in the form of RFC 3339"),
  v.check((text) => !Number.isNaN(Date.parse(text)), "a time does not exist"),
);
const Facts = v.record(v.string(), v.unknown());

const Envelope = v.strictObject({
  payloadType: v.string(),
  payload: v.string(),
  signatures: v.strictTuple([v.strictObject({ keyid: Hex, sig: v.string() })]),
});

const Published = v.strictObject({ root: Hex, list: Envelope });

const KeyList = v.strictObject({
  version: v.pipe(v.number(), v.safeInteger(), v.minValue(1)),
  issued_at: Time,
  keys: v.array(
    v.strictObject({
      key_id: Hex,
      public_key: Hex,
      worker: v.string(),
      not_before: Time,
      not_after: v.nullish(Time),
      revoked_at: v.nullish(Time),
      revoked_because: v.nullish(v.string()),
    }),
  ),
});
type ListedKey = v.InferOutput<typeof KeyList>["keys"][number];

const Statement = v.object({
  _type: v.literal("https://in-toto.io/Statement/v1"),
  predicateType: v.literal("urn:fumehood:receipt:v1"),
  subject: v.pipe(
    v.array(v.object({ name: v.pipe(v.string(), v.minLength(1)), digest: v.object({ sha256: Hex }) })),
    v.maxLength(512),
    v.check((all) => new Set(all.map(({ name }) => name)).size === all.length, "an output has two hashes"),
  ),
  predicate: v.object({
    kind: v.picklist(["sandbox_run", "command", "job"]),
    worker: v.object({ id: v.string(), key_id: Hex }),
    task: v.record(v.string(), v.union([v.string(), v.pipe(v.number(), v.safeInteger())])),
    request: v.looseObject({ sha256: Hex, tenant: v.nullish(v.string()), by: v.nullish(v.string()) }),
    outcome: v.looseObject({
      status: v.string(),
      reason: v.nullish(v.string()),
      exit_code: v.nullish(v.pipe(v.number(), v.safeInteger())),
      signal: v.nullish(v.pipe(v.number(), v.safeInteger())),
    }),
    image: v.nullish(
      v.looseObject({ digest: v.string(), reference: v.nullish(v.string()), evidence: v.nullish(Facts) }),
    ),
    observed: v.nullish(Facts),
    started_at: v.nullish(Time),
    finished_at: Time,
    software: v.nullish(v.string()),
  }),
});

/** The part of a sandbox step's report that a receipt covers. */
const Report = v.looseObject({
  status: v.string(),
  reason: v.string(),
  exit_code: v.nullish(v.number()),
  signal: v.nullish(v.number()),
  denied: v.nullish(v.string()),
  streams: v.nullish(v.record(v.string(), v.looseObject({ sha256: v.nullish(v.string()) }))),
});
export type Report = v.InferOutput<typeof Report>;

/** A step's output or failure details as a report, or undefined if they are something else. */
export function reportIn(value: unknown): Report | undefined {
  return v.is(Report, value) ? value : undefined;
}

// --- the verdict ---------------------------------------------------------------------------------------------

/** What a worker signed. */
export type Claim = v.InferOutput<typeof Statement>["predicate"];

/** What the reader relies on. */
export const Trust = v.object({
  root: Hex,
  /** Version of the newest list of keys that was seen: an older list lacks later revocations. */
  version: v.pipe(v.number(), v.safeInteger()),
});
export type Trust = v.InferOutput<typeof Trust>;

/** What the page shows about the step. */
export interface Shown {
  run_id: string;
  step_id: string;
  attempt: number;
  /** The code of the error that the page shows. */
  failure?: string;
  /** Absent if the page has no report of the step. */
  report?: Report;
  printed: Digests;
}

export interface Verdict {
  /** What was signed, if every check passed. */
  claim?: Claim;
  /** Whether the outcome and all output that the page shows were compared with it. */
  isWhole?: boolean;
  outputs?: Record<string, string>;
  /** The checks that passed. */
  passed: string[];
  /** What those checks do not prove. */
  notes: string[];
  /** Why the receipt does not count, with the reason codes of `fumehood verify`. */
  refused?: { reason: string; detail: string };
  /** The root and version of the list of keys, if the list passed its checks. */
  trust?: Trust;
}

class Refused extends Error {
  constructor(
    readonly reason: string,
    detail: string,
  ) {
    super(detail);
  }
}

/** If the reader relies on no root yet, the one that the server names is used. */
export function verify(envelope: unknown, published: unknown, relied: Trust | null, shown: Shown): Verdict {
  const verdict: Verdict = { passed: [], notes: [] };
  try {
    const { root, list: signedList } = read(Published, published, "the published list of keys");
    if (relied !== null && root !== relied.root) {
      throw new Refused("wrong_root", "the list of keys is signed by another root");
    }
    const list = read(KeyList, open(signedList, KEYS_TYPE, root), "the list of keys");
    checkList(list.keys);
    if (relied !== null && list.version < relied.version) {
      const text = `the list of keys is version ${list.version}, and ${relied.version} was seen before`;
      throw new Refused("older_list", text);
    }
    verdict.trust = { root, version: list.version };
    verdict.passed.push(`The list of keys, version ${list.version}, is signed by the root`);

    const receipt = read(Envelope, envelope, "the receipt");
    const key = list.keys.find(({ key_id }) => key_id === receipt.signatures[0].keyid);
    if (key === undefined) throw new Refused("unknown_key", "the key that signed this is not on the list");
    const statement = read(Statement, open(receipt, RECEIPT_TYPE, key.public_key), "the receipt");
    const claim = statement.predicate;
    const outputs = Object.fromEntries(statement.subject.map(({ name, digest }) => [name, digest.sha256]));
    checkKey(key, claim);
    verdict.passed.push(`The receipt is signed by ${claim.worker.id} with the key ${key.key_id.slice(0, 16)}…`);
    checkAbout(claim, shown);
    verdict.passed.push("It is about this attempt of this step");
    if (shown.report) {
      checkReport(claim, outputs, shown.report);
      checkFailure(claim, shown.failure);
      verdict.passed.push("The outcome of the program is the one that was signed");
      if (shown.failure !== undefined) verdict.notes.push("The words of the error are the server's and not signed.");
    } else {
      verdict.notes.push("The outcome of the step is not available here and was not compared.");
    }
    const obstacle = obstacleTo(claim, outputs, shown.printed);
    if (obstacle !== undefined) {
      verdict.notes.push(`The output was not compared: ${obstacle}.`);
    } else {
      checkPrinted(outputs, shown.printed);
      verdict.passed.push("Both streams of this attempt's output are those that were signed, byte for byte");
      verdict.isWhole = shown.report !== undefined;
    }
    if (Date.parse(claim.finished_at) > Date.parse(list.issued_at)) {
      verdict.notes.push("The list of keys is older than the end of this step and does not have later revocations.");
    }
    verdict.notes.push("A receipt proves who claimed this, not that the machine was honest.");
    verdict.claim = claim;
    verdict.outputs = outputs;
  } catch (error) {
    verdict.refused =
      error instanceof Refused
        ? { reason: error.reason, detail: error.message }
        : { reason: "malformed", detail: `it cannot be read: ${String(error)}` };
  }
  return verdict;
}

function read<Schema extends v.GenericSchema>(schema: Schema, value: unknown, what: string): v.InferOutput<Schema> {
  const found = v.safeParse(schema, value);
  if (!found.success) throw new Refused("malformed", `${what} is malformed: ${found.issues[0].message}`);
  return found.output;
}

/** The payload of a DSSE envelope, after its signature was checked. */
function open(envelope: v.InferOutput<typeof Envelope>, type: string, publicKey: string): unknown {
  if (envelope.payloadType !== type) throw new Refused("malformed", `the envelope does not hold ${type}`);
  const [{ keyid, sig }] = envelope.signatures;
  const key = hexToBytes(publicKey);
  if (bytesToHex(sha256(key)) !== keyid) throw new Refused("signature_invalid", "the envelope names another key");
  const payload = fromBase64(envelope.payload);
  const signed = concatBytes(utf8ToBytes(`DSSEv1 ${type.length} ${type} ${payload.length} `), payload);
  if (!isSignature(fromBase64(sig), signed, key)) {
    throw new Refused("signature_invalid", "the signature does not match the content");
  }
  return parse(payload);
}

/** Refuses points with a component of small order: implementations of Ed25519 disagree about them. */
function isSignature(signature: Uint8Array, message: Uint8Array, key: Uint8Array): boolean {
  try {
    const points = [ed25519.Point.fromBytes(key), ed25519.Point.fromBytes(signature.subarray(0, 32))];
    return points.every((point) => point.isTorsionFree()) && ed25519.verify(signature, message, key, { zip215: false });
  } catch {
    return false;
  }
}

/** JSON in its canonical form, which all readers read alike. */
function parse(payload: Uint8Array): unknown {
  const words = new TextDecoder("utf-8", { fatal: true, ignoreBOM: true }).decode(payload);
  const value: unknown = JSON.parse(words);
  if (isDeeper(value, DEEPEST) || canonicalize(value) !== words) {
    throw new Refused("malformed", "what was signed is not JSON in its canonical form");
  }
  return value;
}

function isDeeper(value: unknown, levels: number): boolean {
  if (typeof value !== "object" || value === null) return false;
  return levels === 0 || Object.values(value).some((one) => isDeeper(one, levels - 1));
}

/** No key may be listed twice or under another key's id. */
function checkList(keys: ListedKey[]): void {
  for (const { key_id, public_key } of keys) {
    if (bytesToHex(sha256(hexToBytes(public_key))) !== key_id) {
      throw new Refused("malformed", "a key is listed under another key's id");
    }
  }
  if (new Set(keys.map(({ key_id }) => key_id)).size !== keys.length) {
    throw new Refused("malformed", "a key is listed twice");
  }
}

/** Whether the key is this worker's and was valid when the step ended. */
function checkKey(key: ListedKey, claim: Claim): void {
  if (claim.worker.key_id !== key.key_id) {
    throw new Refused("malformed", "the receipt names another key than the one that signed it");
  }
  if (claim.worker.id !== key.worker) {
    throw new Refused("wrong_worker", `the receipt is in another's name; the key is that of ${key.worker}`);
  }
  if (key.revoked_at != null) {
    throw new Refused("revoked_key", `the key of ${key.worker} was revoked: ${key.revoked_because ?? "no reason was given"}`);
  }
  const ended = Date.parse(claim.finished_at);
  if (Date.parse(key.not_before) - ended > CLOCKS_DIFFER_MS) {
    throw new Refused("key_not_valid_then", `the key of ${key.worker} was not listed yet at that time`);
  }
  if (key.not_after != null && ended - Date.parse(key.not_after) > CLOCKS_DIFFER_MS) {
    throw new Refused("key_not_valid_then", `the key of ${key.worker} was retired before that time`);
  }
}

function checkAbout({ kind, task }: Claim, shown: Shown): void {
  if (kind !== "sandbox_run") throw new Refused("task_mismatch", `it is about a ${kind}`);
  for (const name of ["run_id", "step_id", "attempt"] as const) {
    if (task[name] !== shown[name]) {
      throw new Refused("task_mismatch", `its ${name} is ${task[name] ?? "missing"}, and not ${shown[name]}`);
    }
  }
}

function checkReport({ outcome }: Claim, outputs: Record<string, string>, report: Report): void {
  const shown = { ...report, reason: report.denied == null ? report.reason : "policy_denied" };
  for (const name of ["status", "reason", "exit_code", "signal"] as const) {
    if ((outcome[name] ?? null) !== (shown[name] ?? null)) {
      throw new Refused("outcome_mismatch", `its ${name} was signed as ${outcome[name] ?? "none"}`);
    }
  }
  for (const name of STREAMS) {
    if ((report.streams?.[name]?.sha256 ?? undefined) !== outputs[name]) throw otherOutput(name);
  }
}

/** A failed step has the node's reason as its code. A step cannot complete if its program never ran or was lost. */
function checkFailure({ outcome, observed }: Claim, code: string | undefined): void {
  const cannotComplete = observed?.never_ran === true || LOST.has(outcome.reason ?? "");
  if (code === undefined ? cannotComplete : code !== outcome.reason || outcome.status === "succeeded") {
    const here = code === undefined ? "completed" : `failed (${code})`;
    const signed = `${outcome.status} (${outcome.reason ?? "no reason"})`;
    throw new Refused("outcome_mismatch", `the step is shown as ${here}, but was signed as ${signed}`);
  }
}

/** Why the output cannot be compared with what was signed. */
function obstacleTo({ observed }: Claim, outputs: Record<string, string>, printed: Digests): string | undefined {
  if (printed.incomplete !== undefined) return printed.incomplete;
  if (observed?.never_ran === true) return undefined;
  if (STREAMS.some((name) => outputs[name] === undefined)) return "its node did not see its end and signed no hash of it";
  return printed.started ? undefined : "the server does not have it";
}

function checkPrinted(outputs: Record<string, string>, printed: Digests): void {
  for (const name of STREAMS) {
    if (printed[name] !== (outputs[name] ?? NOTHING)) throw otherOutput(name);
  }
}

const otherOutput = (name: string) =>
  new Refused("output_mismatch", `the ${name} that is shown here has another hash than the one that was signed`);

/** Standard base64, canonical. */
function fromBase64(words: string): Uint8Array {
  const bytes = atob(words);
  if (btoa(bytes) !== words) throw new Refused("malformed", "a part of the envelope is not canonical base64");
  return Uint8Array.from(bytes, (one) => one.charCodeAt(0));
}
