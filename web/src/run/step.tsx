import { useQuery, useQueryClient } from "@tanstack/react-query";
import { useMemo, useState } from "react";
import { Link } from "wouter";

import { useAction } from "../api/action";
import { api, body, type Step } from "../api/client";
import { useMay } from "../caller";
import { Logs, useOutput } from "../output/logs";
import { Facts, jsonIn, oneLine, Status, Time, Trouble, Value } from "../parts";
import { ReceiptPanel } from "../receipt/panel";
import { type Report, reportIn } from "../receipt/verify";

/** Whether the step has a sandbox, and whether that sandbox has ended. */
export type SandboxState = "none" | "may run" | "over";

/** One step: its state and the reason for it, and what the visitor can do. */
export function StepPanel({ run, id, step, sandbox }: { run: string; id: string; step: Step; sandbox: SandboxState }) {
  const { attempt, worker_id, items, child, wake_at, blocked_on, override } = step;
  const facts: [string, React.ReactNode][] = [
    ["Attempt", attempt || null],
    ["Worker", worker_id],
    ["Items", items && `${items.ended} of ${items.total} ended`],
    ["Run", child && <Link href={`/runs/${child}`}>{child}</Link>],
    [step.status === "awaiting_approval" || step.status === "listening" ? "Times out" : "Goes on", wake_at && <Time at={wake_at} />],
    ["Asked", step.approval?.approvers?.map(oneLine).join(", ")],
    ["Waits for the key", blocked_on],
    ["Decided by hand", override && `${override.action} by ${override.by}: ${override.reason}`],
  ];
  return (
    <section className="panel" aria-label={`Step ${id}`}>
      <h2>
        {id} <Status value={step.status} />
      </h2>
      <Facts of={facts} />
      {step.error && (
        <p className="trouble">
          <code>{step.error.code}</code> {step.error.message}
        </p>
      )}
      {step.status === "awaiting_approval" && <Approval run={run} id={id} step={step} />}
      {step.status === "listening" && step.signal && <Signal run={run} name={step.signal} />}
      {(sandbox === "none" || override) && step.output != null && (
        <>
          <h3>Output</h3>
          <Value value={step.output} />
        </>
      )}
      {sandbox !== "none" && <Sandbox run={run} id={id} step={step} isOver={sandbox === "over"} />}
    </section>
  );
}

/** The output of a program in a sandbox, and the receipt that its node signed. */
function Sandbox({ run, id, step, isOver }: { run: string; id: string; step: Step; isOver: boolean }) {
  const { attempt } = step;
  const { output, version } = useOutput(run, id, attempt);
  const hasEnded = step.status === "completed" || step.status === "failed";
  const report = useReport(run, hasEnded ? (step.output ?? step.error?.details) : undefined);
  const printed = useMemo(() => output.digests(attempt), [output, version, attempt]);
  const failure = step.error?.code ?? (step.status === "failed" ? "failed" : undefined);
  const shown = useMemo(
    () => ({ run_id: run, step_id: id, attempt, failure, report, printed }),
    [run, id, attempt, failure, report, printed],
  );
  return (
    <>
      <Logs output={output} version={version} />
      {isOver && !step.override && <ReceiptPanel key={attempt} shown={shown} hasEnded={hasEnded} />}
    </>
  );
}

/** The node's report in a step's output or failure. A large one is a reference. */
function useReport(run: string, said: unknown): Report | undefined {
  const reference = referenceIn(said);
  const large = useQuery({
    queryKey: ["value", run, reference],
    enabled: reference !== undefined,
    staleTime: Infinity,
    queryFn: () =>
      body(api.GET("/v1/runs/{run_id}/blobs/{digest}", { params: { path: { run_id: run, digest: reference! } } })),
  });
  const value = reference === undefined ? said : large.data;
  return useMemo(() => reportIn(value), [value]);
}

function referenceIn(value: unknown): string | undefined {
  const found = typeof value === "object" && value !== null && "$blob" in value ? value.$blob : undefined;
  return typeof found === "string" ? found : undefined;
}

function Approval({ run, id, step }: { run: string; id: string; step: Step }) {
  const may = useMay();
  const queries = useQueryClient();
  const [comment, setComment] = useState("");
  const decide = useAction({
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
  const send = useAction({
    mutationFn: async () => {
      const data = jsonIn(text);
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
