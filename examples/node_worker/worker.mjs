#!/usr/bin/env node
// A worker in JavaScript over the bridge, with nothing but Node (20 or newer): it keeps its leases, sends again what was
// not heard, saves progress, and when it is sent home it finishes what it has or hands it on.
//
//     node examples/node_worker/worker.mjs [URL [TOKEN_FILE]]
//
// Two task types: `words` counts words as the language of a text has them, `publish` calls a service that may be busy.
import { readFileSync } from "node:fs";
import { homedir } from "node:os";
import { setTimeout as sleep } from "node:timers/promises";

const [url = "http://127.0.0.1:8080", tokenFile = `${homedir()}/.local/state/fumehood/bridge.token`] = process.argv.slice(2);
const me = `node-${process.pid}`;
const [slots, graceMs, mostTries] = [2, 5_000, 8];

// --- the work: what a handler returns is the step's output ------------------------------------------------------

class Failed extends Error {
  constructor(code, message, retryable = true) {
    super(message);
    Object.assign(this, { code, retryable });
  }
}

const handlers = {
  // A line at a time: what is saved is done, even if this process is not there any more.
  async words(task) {
    const { text, language, pause_ms: pause = 0 } = task.input;
    const segmenter = new Intl.Segmenter(language, { granularity: "word" });
    const lines = text.split("\n");
    let { line, words } = task.checkpoint ?? { line: 0, words: 0 };
    for (; line < lines.length; line += 1) {
      await sleep(pause, undefined, { signal: task.signal });
      words += [...segmenter.segment(lines[line])].filter((part) => part.isWordLike).length;
      await task.save({ line: line + 1, words });
    }
    return { language, words };
  },

  // Fails as often as it is told to. The step's `retry` says when it is tried again; a code can be final.
  async publish(task) {
    if (!task.input.counts.length) throw new Failed("nothing_to_publish", "there are no counts", false);
    if (task.attempt <= task.input.busy) throw new Failed("busy", `no on attempt ${task.attempt}`);
    return { published: task.input.counts.length, attempt: task.attempt, by: me };
  },
};

// --- the protocol -----------------------------------------------------------------------------------------------

const leaving = new AbortController(); // take nothing more
const hurry = new AbortController(); // and stop what is being done

class Refused extends Error {
  constructor(path, status, text) {
    super(`${path}: ${status} ${text}`);
    this.status = status;
  }
}

// A busy server and a broken connection say nothing about the task: the same is sent again, and counts once.
async function post(path, body, signal) {
  for (let tries = 1; ; tries += 1) {
    try {
      const headers = { authorization: `Bearer ${readFileSync(tokenFile, "utf8").trim()}`, "content-type": "application/json" };
      const answer = await fetch(url + path, { method: "POST", headers, body: JSON.stringify(body), signal });
      if (answer.ok) return answer;
      throw new Refused(path, answer.status, await answer.text());
    } catch (error) {
      const final = error instanceof Refused ? ![429, 503].includes(error.status) : !(error instanceof TypeError);
      if (final || tries === mostTries) throw error;
      await sleep(Math.min(50 * 2 ** tries, 5_000) * (0.5 + Math.random() / 2), undefined, { signal });
    }
  }
}

class Task {
  constructor(fields) {
    Object.assign(this, fields, { lost: new AbortController() });
    this.signal = AbortSignal.any([this.lost.signal, hurry.signal]);
  }
  // Every answer names the lease: if the task has become somebody else's meanwhile, it is refused instead of counted.
  async resolve(action, fields = {}) {
    await post(`/v1/tasks/${this.task_id}/resolve`, { action, lease_id: this.lease_id, ...fields });
    console.log(`${this.task_id} attempt ${this.attempt}: ${action}`);
  }
  async save(data) {
    await this.resolve("checkpoint", { data });
    this.checkpoint = data;
  }
  async beat() {
    await this.resolve("heartbeat").catch((error) => [404, 409].includes(error.status) && this.lost.abort());
  }
}

async function work(task, handler) {
  const beating = setInterval(() => task.beat(), (task.timeout_ms ?? 300_000) / 3);
  try {
    const answer = await handler(task).then(
      (output) => ["complete", { output }],
      (error) => {
        // Sent home in the middle: a pause costs no attempt, and whoever is there goes on from the checkpoint.
        if (hurry.signal.aborted) return ["pause", { duration_ms: 1, checkpoint: task.checkpoint ?? null }];
        const { code = error.name, message, retryable = true } = error;
        return ["fail", { error: { code, message, retryable } }];
      },
    );
    if (!task.lost.signal.aborted) await task.resolve(...answer);
  } catch (error) {
    if (![404, 409].includes(error.status)) throw error; // the run was cancelled, or somebody else has the task
    console.log(`${task.task_id}: not mine any more`);
  } finally {
    clearInterval(beating);
  }
}

// A task does not say its type, so each type is asked for by itself.
async function serve(type) {
  while (!leaving.signal.aborted) {
    const wanted = { task_types: [type], max_tasks: 1, timeout_ms: 20_000, worker_id: me };
    const answer = await post("/v1/tasks/poll", wanted, leaving.signal);
    for (const task of await answer.json()) await work(new Task(task), handlers[type]);
  }
}

// As long as this stream is open others see this worker, and can send it home (`DELETE /v1/workers/ID`).
async function stay() {
  const hello = { worker_id: me, task_types: Object.keys(handlers), max_tasks: slots, language: "javascript" };
  while (!leaving.signal.aborted) {
    const stream = await post("/v1/workers/connect", hello, leaving.signal);
    console.log(`${me} serves ${hello.task_types.join(" and ")}`);
    const text = new TextDecoder();
    for await (const piece of stream.body) if (/^event: (replaced|drain)$/m.test(text.decode(piece))) leave();
  }
}

function leave() {
  if (leaving.signal.aborted) return hurry.abort(); // told twice
  leaving.abort();
  setTimeout(() => hurry.abort(), graceMs).unref();
}

for (const signal of ["SIGINT", "SIGTERM"]) process.on(signal, leave);
const unlessLeaving = (error) => leaving.signal.aborted || Promise.reject(error);
const loops = Object.keys(handlers).flatMap((type) => Array.from({ length: slots }, () => serve(type)));
try {
  await Promise.all([stay(), ...loops].map((loop) => loop.catch(unlessLeaving)));
  console.log(`${me} goes home`);
} catch (error) {
  console.error(error.message);
  process.exit(1);
}
