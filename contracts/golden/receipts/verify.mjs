#!/usr/bin/env node
// A receipt, checked by itself: no package, nothing of Fumehood's Python.
//
//     node verify.mjs ROOT_HEX keys.json receipt.json [OUTPUT]
//
// Prints what was signed, or says why not and ends with 1. Short on purpose: DSSE and in-toto are all there is to it.
import { createHash, createPublicKey, verify } from "node:crypto";
import { readFileSync } from "node:fs";

const sha256 = (bytes) => createHash("sha256").update(bytes).digest("hex");
const SPKI = Buffer.from("302a300506032b6570032100", "hex"); // what comes before a raw Ed25519 key in its usual form
const publicKey = (hex) =>
  createPublicKey({ key: Buffer.concat([SPKI, Buffer.from(hex, "hex")]), format: "der", type: "spki" });
const fail = (reason) => {
  console.error(reason);
  process.exit(1);
};

// DSSE: the type and the payload, each with its length before it, are what is signed.
function opened(envelope, type, keyHex) {
  const payload = Buffer.from(envelope.payload, "base64");
  const said = Buffer.from(`DSSEv1 ${type.length} ${type} ${payload.length} `);
  const [{ keyid, sig }] = envelope.signatures;
  if (envelope.payloadType !== type || keyid !== sha256(Buffer.from(keyHex, "hex"))) fail("another type or key");
  if (!verify(null, Buffer.concat([said, payload]), publicKey(keyHex), Buffer.from(sig, "base64")))
    fail("signature_invalid");
  return JSON.parse(payload);
}

const [root, keysFile, receiptFile, output] = process.argv.slice(2);
const read = (path) => JSON.parse(readFileSync(path));
const list = opened(read(keysFile).list, "application/vnd.fumehood.keys+json", root);
const receipt = read(receiptFile);
const key = list.keys.find((one) => one.key_id === receipt.signatures[0].keyid) ?? fail("unknown_key");
if (key.revoked_at) fail("revoked_key");
const statement = opened(receipt, "application/vnd.in-toto+json", key.public_key);
if (statement.predicate.worker.id !== key.worker) fail("wrong_worker");
if (output && !statement.subject.some((one) => one.digest.sha256 === sha256(readFileSync(output)))) fail("output_mismatch");
console.log(JSON.stringify(statement));
