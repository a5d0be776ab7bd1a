import { useQuery } from "@tanstack/react-query";
import { useCallback, useMemo, useState } from "react";
import { Link, useSearchParams } from "wouter";

import { api, body, unlessForbidden, type Workflow } from "../api/client";
import { useEvents, useRefresh } from "../api/events";
import { useMay } from "../caller";
import { duration, Facts, readable, Time, Trouble, useTitle, Value } from "../parts";
import { RUN_CHANGES } from "../run/actions";
import { stepsOf } from "../run/definition";
import { StepGraph } from "../run/graph";
import { RunTable } from "../run/table";
import { Schedules } from "../workflow/schedules";
import { StartRun } from "../workflow/start";

const LOOK_MS = 5_000;
const LATEST = 10;

/** The parts of a canonical definition that stand above its graph. */
interface Definition {
  description?: string;
  input_schema?: Record<string, unknown>;
  deadline?: number;
  max_parallel?: number;
  concurrency?: { key: string; limit?: number };
  on_failure?: { task: string };
  continue_as_new?: { when: string };
  steps?: { id: string }[];
}

/** One workflow: the current definition, or the one that the address names, and what was made of it. */
export function WorkflowPage({ name }: { name: string }) {
  useTitle(name);
  const may = useMay();
  const [search, setSearch] = useSearchParams();
  const digest = search.get("digest") ?? undefined;
  const chosen = search.get("step") ?? undefined;
  const [isStarting, setStarting] = useState(false);
  const workflow = useQuery({
    queryKey: ["workflow", name, digest],
    refetchInterval: unlessForbidden(LOOK_MS),
    queryFn: () => body(api.GET("/v1/workflows/{name}", { params: { path: { name }, query: { digest } } })),
  });
  const definition = workflow.data?.definition as Definition | undefined;
  const steps = useMemo(() => stepsOf(definition), [definition]);
  const choose = useCallback(
    (step: string) => setSearch((before) => ({ ...Object.fromEntries(before), step }), { replace: true }),
    [setSearch],
  );
  if (workflow.data === undefined || definition === undefined) {
    return workflow.error ? <Trouble error={workflow.error} /> : <p role="status">Loading…</p>;
  }
  const step = definition.steps?.find(({ id }) => id === chosen);
  const kind = steps.find(({ id }) => id === chosen)?.kind ?? "";
  const isCurrent = workflow.data.version !== undefined;
  return (
    <>
      <div className="title">
        <h1>
          <span className="id">{name}</span>
        </h1>
        {isCurrent && may("runs:write") && (
          <div className="actions">
            <button type="button" aria-expanded={isStarting} onClick={() => setStarting(!isStarting)}>
              Start a run
            </button>
          </div>
        )}
        <DefinitionFacts workflow={workflow.data} definition={definition} />
      </div>
      {workflow.error && <Trouble error={workflow.error} />}
      {!isCurrent && (
        <p className="hint">
          This is not the current definition. <Link href={`/workflows/${name}`}>Show the current one</Link>
        </p>
      )}
      {definition.description && <p className="description">{definition.description}</p>}
      {isStarting && <StartRun workflow={name} schema={definition.input_schema} />}
      <StepGraph definition={steps} chosen={chosen} choose={choose} />
      {step && (
        <section className="panel" aria-label={`Step ${step.id}`}>
          <h2>
            {step.id} <span className="kind">{readable(kind)}</span>
          </h2>
          <Value value={step} />
        </section>
      )}
      <details className="more">
        <summary>The whole definition, as JSON</summary>
        <Value value={definition} />
      </details>
      {may("runs:read") && <LatestRuns workflow={name} />}
      {may("schedules:read") && <Schedules heading="h2" workflow={name} />}
    </>
  );
}

function DefinitionFacts({ workflow, definition }: { workflow: Workflow; definition: Definition }) {
  const { deadline, max_parallel, concurrency, on_failure, continue_as_new } = definition;
  return (
    <Facts
      of={[
        ["Version", workflow.version],
        ["Applied", workflow.applied_at && <Time at={workflow.applied_at} />],
        ["Definition", <span className="id">{workflow.digest}</span>],
        ["Deadline", deadline && duration(deadline)],
        ["Steps at once", max_parallel],
        ["Runs at once", concurrency && `${concurrency.limit ?? 1} of each ${concurrency.key}`],
        ["After a failure", on_failure && `task ${on_failure.task}`],
        ["Goes on as a new run", continue_as_new && `when ${continue_as_new.when}`],
      ]}
    />
  );
}

function LatestRuns({ workflow }: { workflow: string }) {
  const runs = useQuery({
    queryKey: ["runs", { workflow, limit: LATEST }],
    queryFn: () => body(api.GET("/v1/runs", { params: { query: { workflow, limit: LATEST } } })),
    refetchInterval: unlessForbidden(LOOK_MS),
  });
  useEvents(`/v1/events?workflow=${encodeURIComponent(workflow)}&type=${RUN_CHANGES}`, useRefresh("runs"));
  return (
    <>
      <div className="section-head">
        <h2>Latest runs</h2>
        {runs.data?.next && <Link href={`/runs?workflow=${encodeURIComponent(workflow)}`}>All runs</Link>}
      </div>
      {runs.error && <Trouble error={runs.error} />}
      {runs.data && <RunTable runs={runs.data.runs} empty="No runs of this workflow yet." />}
    </>
  );
}
