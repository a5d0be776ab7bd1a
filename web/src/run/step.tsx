import { useMutation, useQueryClient } from "@tanstack/react-query";
import { useMemo, useState } from "react";
import { Link } from "wouter";

import { api, Problem, type Step } from "../api/client";
import { useMay } from "../caller";
import { Status, Text, Time, Trouble, Value } from "../parts";
import { ReceiptPanel } from "../receipt/panel";
import { reportIn } from "../receipt/verify";

/** Whether it runs in a sandbox, and whether nothing of that goes on. */
export type SandboxState = "none" | "may run" | "over";

/** One step: where it stands and why, and what a person can do about it. */
export function StepPanel({ run, id, step, sandbox }: { run: string; id: string; step: Step; sandbox: SandboxState }) {
  return (
    <section className="panel" aria-label={`Step ${id}`}>
      <h2>
        {id} <Status value={step.status} />
      </h2>
      <dl>
        {step.attempt > 0 && (
          <>
            <dt>Attempt</dt>
            <dd>{step.attempt}</dd>
          </>
        )}
        {step.worker_id && (
          <>
            <dt>Worker</dt>
            <dd>{step.worker_id}</dd>
          </>
        )}
        {step.items && (
          <>
            <dt>Items</dt>
            <dd>
              {step.items.ended} of {step.items.total} ended
            </dd>
          </>
        )}
        {step.child && (
          <>
            <dt>Run</dt>
            <dd>
              <Link href={`/runs/${step.child}`}>{step.child}</Link>
            </dd>
          </>
        )}
        {step.wake_at && (
          <>
            <dt>Goes on</dt>
            <dd>
              <Time at={step.wake_at} />
            </dd>
          </>
        )}
        {step.blocked_on && (
          <>
            <dt>Waits for the key</dt>
            <dd>{step.blocked_on}</dd>
          </>
        )}
        {step.override && (
          <>
            <dt>Decided by hand</dt>
            <dd>
              {step.override.action} by {step.override.by}: {step.override.reason}
            </dd>
          </>
        )}
      </dl>
      {step.error && (
        <p className="trouble">
          <code>{step.error.code}</code> {step.error.message}
        </p>
      )}
      {step.status === "awaiting_approval" && <Approval run={run} id={id} step={step} />}
      {step.status === "listening" && step.signal && <Signal run={run} name={step.signal} />}
      {sandbox === "none" && step.output != null && (
        <>
          <h3>Output</h3>
          <Value value={step.output} />
        </>
      )}
      {sandbox === "over" && <Sandbox key={step.attempt} run={run} id={id} step={step} />}
    </section>
  );
}

/** What a program in a sandbox wrote, and what its node signed about that; nothing that no receipt tells of. */
function Sandbox({ run, id, step }: { run: string; id: string; step: Step }) {
  const hasEnded = step.status === "completed" || step.status === "failed";
  const said = hasEnded ? (step.output ?? step.error?.details) : undefined;
  const { attempt } = step;
  const shown = useMemo(
    () => ({ run_id: run, step_id: id, attempt, report: reportIn(said) }),
    [run, id, attempt, said],
  );
  const { report } = shown;
  return (
    <>
      {report && (
        <>
          <h3>Output</h3>
          {report.stdout === "" && report.stderr === "" && <p className="empty">It wrote nothing.</p>}
          {report.stdout !== "" && <Text text={report.stdout} />}
          {report.stderr !== "" && (
            <>
              <h3>Errors</h3>
              <Text text={report.stderr} />
            </>
          )}
        </>
      )}
      {!report && step.output != null && <p className="empty">Its output is too large to be shown here.</p>}
      <ReceiptPanel shown={shown} hasEnded={hasEnded} />
    </>
  );
}

function Approval({ run, id, step }: { run: string; id: string; step: Step }) {
  const may = useMay();
  const queries = useQueryClient();
  const [comment, setComment] = useState("");
  const decide = useMutation({
    mutationFn: async (yes: boolean) => {
      const asked = { params: { path: { run_id: run, step: id } }, body: { comment } };
      await (yes
        ? api.POST("/v1/runs/{run_id}/steps/{step}:approve", asked)
        : api.POST("/v1/runs/{run_id}/steps/{step}:reject", asked));
    },
    onSettled: () => queries.invalidateQueries({ queryKey: ["run", run] }),
  });
  return (
    <form className="decision" onSubmit={(event) => event.preventDefault()}>
      <p>{step.approval?.message}</p>
      {step.approval?.input != null && <Value value={step.approval.input} />}
      {may("runs:approve") ? (
        <>
          <label>
            Comment
            <input value={comment} maxLength={1024} onChange={(event) => setComment(event.target.value)} />
          </label>
          <button type="button" className="primary" disabled={decide.isPending} onClick={() => decide.mutate(true)}>
            Approve
          </button>
          <button type="button" disabled={decide.isPending} onClick={() => decide.mutate(false)}>
            Reject
          </button>
        </>
      ) : (
        <p className="hint">
          Your key cannot decide: that takes the scope <code>runs:approve</code>.
        </p>
      )}
      {decide.error && <Trouble error={decide.error} />}
    </form>
  );
}

function Signal({ run, name }: { run: string; name: string }) {
  const may = useMay();
  const queries = useQueryClient();
  const [text, setText] = useState("");
  const send = useMutation({
    mutationFn: async () => {
      const data = asJson(text);
      await api.POST("/v1/runs/{run_id}/signals/{signal}", {
        params: { path: { run_id: run, signal: name } },
        body: { data },
      });
    },
    onSettled: () => queries.invalidateQueries({ queryKey: ["run", run] }),
  });
  if (!may("runs:write")) return <p className="hint">It waits for the signal {name}.</p>;
  return (
    <form
      className="decision"
      onSubmit={(event) => {
        event.preventDefault();
        send.mutate();
      }}
    >
      <label>
        Data of the signal <code>{name}</code>, as JSON
        <textarea value={text} rows={3} onChange={(event) => setText(event.target.value)} />
      </label>
      <button type="submit" className="primary" disabled={send.isPending}>
        Send
      </button>
      {send.error && <Trouble error={send.error} />}
    </form>
  );
}

function asJson(text: string): unknown {
  if (text.trim() === "") return null;
  try {
    return JSON.parse(text);
  } catch {
    throw new Problem(0, 'this is not JSON: a text has quotes, as in "yes"');
  }
}
