import { useQuery, useQueryClient } from "@tanstack/react-query";
import { memo, useCallback, useEffect, useMemo, useState } from "react";
import { Link, useSearchParams } from "wouter";

import { useAction } from "../api/action";
import { api, body, type Run } from "../api/client";
import { type RunEvent, useEvents, useRefresh } from "../api/events";
import { useMay } from "../caller";
import { duration, Facts, readable, Status, Time, Trouble, useNow, useTitle, Value } from "../parts";
import { canBeRetried, canBeStopped, retry, stop } from "../run/actions";
import { BUILT_IN, type StepDefinition, stepsOf } from "../run/definition";
import { StepGraph } from "../run/graph";
import { isMapItem, stepsIn } from "../run/history";
import { StepPanel } from "../run/step";
import { Timeline } from "../run/timeline";

const MOST_EVENTS = 500;
const ENDED = new Set(["completed", "failed"]);
const LOOK_MS = 10_000; // a run that has ended sends no events, and may be retried

export function RunPage({ id }: { id: string }) {
  useTitle(id);
  const [search, setSearch] = useSearchParams();
  const [events, setEvents] = useState<RunEvent[]>([]);
  const refresh = useRefresh("run", id);
  const run = useQuery({
    queryKey: ["run", id],
    queryFn: () => body(api.GET("/v1/runs/{run_id}", { params: { path: { run_id: id } } })),
    refetchInterval: LOOK_MS,
  });
  useEvents(
    `/v1/runs/${encodeURIComponent(id)}/events`,
    (news) => {
      const told = news.filter(({ event }) => event !== "end").map(({ data }) => data as unknown as RunEvent);
      setEvents((before) => [...before, ...told]);
      refresh();
    },
    { again: run.data?.tries }, // a retried run has new events
  );
  const started = events.find(({ type }) => type === "run.started");
  const definition = useMemo(() => stepsOf(started?.definition), [started]);
  const steps = useMemo(() => stepsIn(events), [events]);
  const step = search.get("step") ?? undefined;
  const choose = useCallback((to: string) => setSearch({ step: to }, { replace: true }), [setSearch]);
  const asking = Object.entries(run.data?.steps ?? {}).find(([, one]) => one.status === "awaiting_approval")?.[0];
  useEffect(() => {
    if (step === undefined && asking !== undefined) choose(asking); // and stay there when another step asks
  }, [step, asking, choose]);
  const now = useNow(run.data !== undefined && canBeStopped(run.data));
  if (run.data === undefined) {
    return run.error ? <Trouble error={run.error} /> : <p role="status">Loading…</p>;
  }

  const began = run.data.started_at ? Date.parse(run.data.started_at) : now;
  const ended = run.data.ended_at ? Date.parse(run.data.ended_at) : Math.max(now, began);
  return (
    <>
      <Title run={run.data} took={ended - began} />
      {run.error && <Trouble error={run.error} />}
      {run.data.error && (
        <p className="trouble" role="note">
          {run.data.failed_step && <>{run.data.failed_step}: </>}
          <code>{run.data.error.code}</code> {run.data.error.message}
        </p>
      )}
      {definition.length > 0 && (
        <StepGraph definition={definition} steps={run.data.steps} chosen={step} choose={choose} />
      )}
      {step && <ChosenStep runId={id} run={run.data} id={step} definition={definition} />}
      <h2>Timeline</h2>
      <Timeline steps={steps} from={began} to={ended} chosen={step} choose={choose} />
      <div className="columns">
        <section>
          <h2>Input</h2>
          <Value value={run.data.input} />
        </section>
        <section>
          <h2>Output</h2>
          {run.data.output == null ? <p className="empty">None.</p> : <Value value={run.data.output} />}
        </section>
      </div>
      <History events={events} />
    </>
  );
}

/** The chosen step. The items of a map are fetched when one of them is chosen. */
function ChosenStep(props: { runId: string; run: Run; id: string; definition: StepDefinition[] }) {
  const { runId, run, id, definition } = props;
  const isItem = isMapItem(id);
  const items = useQuery({
    queryKey: ["items", run.run_id],
    enabled: isItem,
    refetchInterval: run.ended_at ? false : LOOK_MS,
    queryFn: () =>
      body(api.GET("/v1/runs/{run_id}", { params: { path: { run_id: run.run_id }, query: { items: true } } })),
  });
  const steps = (isItem ? items.data : run)?.steps ?? {};
  const step = Object.hasOwn(steps, id) ? steps[id] : undefined;
  if (step === undefined) return items.error ? <Trouble error={items.error} /> : null;
  const isSandbox = definition.some((one) => one.id === id && one.kind === "sandbox");
  const isOver = ENDED.has(step.status) || run.ended_at != null;
  const sandbox = !isSandbox || step.attempt === 0 ? "none" : isOver ? "over" : "may run";
  return <StepPanel key={id} run={runId} id={id} step={step} sandbox={sandbox} />;
}

function Title({ run, took }: { run: Run; took: number }) {
  const may = useMay();
  const facts: [string, React.ReactNode][] = [["Workflow", run.workflow ?? "…"]];
  if (run.workflow && run.definition && !BUILT_IN.has(run.workflow) && may("workflows:read")) {
    const definition = `/workflows/${run.workflow}?digest=${run.definition}`;
    facts[0] = ["Workflow", <Link href={definition}>{run.workflow}</Link>];
  }
  if (run.started_at) facts.push(["Started", <Time at={run.started_at} />], ["Took", duration(took)]);
  if (run.started_by) facts.push(["By", run.started_by]);
  if (run.ending) facts.push(["Ending as", readable(run.ending.status)]);
  if (run.tries) facts.push(["Retried", run.tries === 1 ? "once" : `${run.tries} times`]);
  if (run.parent) facts.push(["Called by", <Link href={`/runs/${run.parent.run_id}?step=${run.parent.step}`}>{run.parent.run_id}</Link>]);
  if (run.continued_as) facts.push(["Goes on as", <Link href={`/runs/${run.continued_as}`}>{run.continued_as}</Link>]);
  for (const [name, value] of Object.entries(run.labels ?? {})) facts.push([name, value]);
  return (
    <div className="title">
      <h1>
        <span className="id">{run.run_id}</span> <Status value={run.status} />
      </h1>
      <Actions run={run} />
      <Facts of={facts} />
    </div>
  );
}

function Actions({ run }: { run: Run }) {
  const may = useMay();
  const queries = useQueryClient();
  const act = useAction({
    mutationFn: (one: (run: Run) => Promise<unknown>) => one(run),
    onSettled: () => queries.invalidateQueries({ queryKey: ["run", run.run_id] }),
  });
  return (
    <div className="actions">
      {canBeStopped(run) && may("runs:write") && (
        <button type="button" disabled={act.isPending} onClick={() => act.mutate(stop)}>
          Stop
        </button>
      )}
      {canBeRetried(run) && may("runs:repair") && (
        <button type="button" disabled={act.isPending} onClick={() => act.mutate(retry)}>
          Retry
        </button>
      )}
      {act.error && <Trouble error={act.error} />}
    </div>
  );
}

const History = memo(function History({ events }: { events: RunEvent[] }) {
  const [all, setAll] = useState(false);
  const hidden = all ? 0 : Math.max(0, events.length - MOST_EVENTS);
  const began = Date.parse(events[0]?.at ?? "");
  return (
    <>
      <h2>History</h2>
      {hidden > 0 && (
        <button type="button" onClick={() => setAll(true)}>
          Show {hidden} earlier events
        </button>
      )}
      <ol className="history">
        {events.slice(hidden).map((event, place) => (
          <HistoryEntry key={hidden + place} event={event} began={began} />
        ))}
      </ol>
    </>
  );
});

const HistoryEntry = memo(function HistoryEntry({ event, began }: { event: RunEvent; began: number }) {
  const [open, setOpen] = useState(false);
  const { seq: _seq, at, run_id: _run, type, step, ...rest } = event;
  return (
    <li>
      <details onToggle={(toggled) => setOpen(toggled.currentTarget.open)}>
        <summary>
          <time dateTime={at} title={at}>
            +{duration(Date.parse(at) - began)}
          </time>
          <code>{type}</code>
          <span>
            {step}
            {event.attempt !== undefined && event.attempt > 1 && `, attempt ${event.attempt}`}
          </span>
        </summary>
        {open && <Value value={{ at, ...rest }} />}
      </details>
    </li>
  );
});
