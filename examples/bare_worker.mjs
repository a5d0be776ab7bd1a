#!/usr/bin/env node
// A worker in JavaScript, with Node's own `fetch` and no package: it completes, fails, loops, signals, or pauses with a checkpoint.
//
//     node examples/bare_worker.mjs [URL [TOKEN_FILE [TASK_TYPE [COUNT]]]]
//
// A task's input is {"say": "complete"}, {"say": "fail"}, {"say": "pause"} or {"say": "continue"}. It ends after COUNT
// tasks; 0 means never.
import { readFileSync } from "node:fs";
import { homedir } from "node:os";

const [url = "http://127.0.0.1:8080", tokenFile = `${homedir()}/.local/state/fumehood/bridge.token`, type = "node", count = "0"] =
  process.argv.slice(2);
const leaving = new AbortController();
for (const signal of ["SIGINT", "SIGTERM"]) process.once(signal, () => leaving.abort());

async function post(path, body, options = {}) {
  const headers = { authorization: `Bearer ${readFileSync(tokenFile, "utf8").trim()}`, "content-type": "application/json" };
  const answer = await fetch(url + path, { method: "POST", headers, body: JSON.stringify(body), ...options });
  if (!answer.ok) throw new Error(`${path}: ${answer.status} ${await answer.text()}`);
  return answer;
}

// Every answer names the lease: if the task has become somebody else's meanwhile, it is refused instead of counted.
async function resolve(task, action, fields = {}) {
  const answer = await post(`/v1/tasks/${task.task_id}/resolve`, { action, lease_id: task.lease_id, ...fields });
  console.log(`${task.task_id}: ${action} -> ${await answer.text()}`);
}

const handlers = {
  complete: (task) => resolve(task, "complete", { output: { by: "node" } }),
  fail: (task) => resolve(task, "fail", { error: { code: "told_to", message: "as it was told", retryable: false } }),
  async pause(task) {
    if (task.checkpoint) return resolve(task, "complete", { output: task.checkpoint });
    await resolve(task, "checkpoint", { data: { page: 1 } });
    return resolve(task, "pause", { duration_ms: 100, checkpoint: { page: 2 } });
  },
  async continue(task) {
    await resolve(task, "signal", { name: "progress", data: { iteration: task.iteration } });
    if (task.iteration < 2) return resolve(task, "continue", { output: { iteration: task.iteration } });
    return resolve(task, "complete", { output: task.input.previous });
  },
};

// A task that takes longer than its lease must be heard of meanwhile.
async function work(task) {
  const beat = setInterval(() => resolve(task, "heartbeat").catch(() => clearInterval(beat)), 60_000);
  try {
    await (handlers[task.input?.say] ?? handlers.complete)(task);
  } finally {
    clearInterval(beat);
  }
}

// As long as this stream is open, the worker is known to be there. It ends when another takes its name, or on a drain.
async function stay() {
  const hello = { worker_id: `node-${process.pid}`, task_types: [type], max_tasks: 1, language: "javascript" };
  const stream = await post("/v1/workers/connect", hello, { signal: leaving.signal });
  const text = new TextDecoder();
  for await (const piece of stream.body) if (/^event: (replaced|drain)$/m.test(text.decode(piece))) leaving.abort();
}

const staying = stay().catch((error) => leaving.signal.aborted || Promise.reject(error));
for (let done = 0; !leaving.signal.aborted && (count === "0" || done < Number(count)); ) {
  const wanted = { task_types: [type], max_tasks: 1, timeout_ms: 10_000 };
  try {
    for (const task of await (await post("/v1/tasks/poll", wanted, { signal: leaving.signal })).json()) {
      await work(task);
      done += 1;
    }
  } catch (error) {
    if (!leaving.signal.aborted) throw error;
  }
}
leaving.abort();
await staying;
