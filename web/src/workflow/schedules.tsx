import { useQuery, useQueryClient } from "@tanstack/react-query";
import { useState } from "react";
import { Link } from "wouter";

import { useAction } from "../api/action";
import { api, body, type CatchUp, hasNoAnswer, Problem, type Schedule, unlessForbidden } from "../api/client";
import { useMay } from "../caller";
import { jsonIn, oneLine, Status, Time, Trouble } from "../parts";

const LOOK_MS = 5_000;
const PAGE_SIZE = 100; // as many as a tenant may have
const CATCH_UP = {
  none: "leave them out",
  last: "start the last of them",
  all: "start all of them",
} satisfies Record<CatchUp, string>;

/** All schedules, or those of one workflow. */
export function Schedules({ heading: Heading, workflow }: { heading: "h1" | "h2"; workflow?: string }) {
  const may = useMay();
  const [editing, setEditing] = useState<Schedule | "new">();
  const schedules = useQuery({
    queryKey: ["schedules"],
    queryFn: () => body(api.GET("/v1/schedules", { params: { query: { limit: PAGE_SIZE } } })),
    refetchInterval: unlessForbidden(LOOK_MS),
  });
  const all = schedules.data?.schedules ?? [];
  const shown = all.filter((one) => workflow === undefined || one.workflow === workflow);
  return (
    <>
      <div className="section-head">
        <Heading>Schedules</Heading>
        {may("schedules:write") && (
          <button
            type="button"
            aria-expanded={editing === "new"}
            onClick={() => setEditing(editing === "new" ? undefined : "new")}
          >
            New schedule
          </button>
        )}
      </div>
      {editing && (
        <ScheduleForm
          key={editing === "new" ? "" : editing.name}
          before={editing === "new" ? undefined : editing}
          workflow={workflow}
          done={() => setEditing(undefined)}
        />
      )}
      {schedules.error && <Trouble error={schedules.error} />}
      {schedules.data && shown.length === 0 && (
        <p className="empty">{workflow ? "No schedule starts this workflow." : "No schedules yet."}</p>
      )}
      {shown.length > 0 && (
        <table className="list">
          <thead>
            <tr>
              <th>Schedule</th>
              {!workflow && <th>Workflow</th>}
              <th>When</th>
              <th>Next</th>
              <th>Last</th>
              {may("schedules:write") && <th aria-label="Actions" />}
            </tr>
          </thead>
          <tbody>
            {shown.map((schedule) => (
              <Row key={schedule.name} schedule={schedule} hasWorkflow={!workflow} edit={() => setEditing(schedule)} />
            ))}
          </tbody>
        </table>
      )}
    </>
  );
}

function Row({ schedule, hasWorkflow, edit }: { schedule: Schedule; hasWorkflow: boolean; edit: () => void }) {
  const may = useMay();
  const { name, workflow, cron, timezone, paused, next_at, last, last_error } = schedule;
  return (
    <tr>
      <td>
        {may("runs:read") ? (
          <Link href={`/runs?schedule=${encodeURIComponent(name)}`} className="id" title="Its runs">
            {name}
          </Link>
        ) : (
          <span className="id">{name}</span>
        )}
      </td>
      {hasWorkflow && (
        <td>{may("workflows:read") ? <Link href={`/workflows/${workflow}`}>{workflow}</Link> : workflow}</td>
      )}
      <td className="when">
        <code>{oneLine(cron)}</code>
        <span className="why">{timezone}</span>
      </td>
      <td data-label="Next">{paused ? <Status value="paused" /> : next_at ? <Time at={next_at} /> : "never"}</td>
      <td data-label="Last">
        {last && (
          <Link href={`/runs/${last.run_id}`}>
            <Time at={last.at} />
          </Link>
        )}
        {last_error && (
          <span className="trouble">
            <Time at={last_error.at} />: {last_error.message}
          </span>
        )}
      </td>
      {may("schedules:write") && (
        <td>
          <Actions schedule={schedule} edit={edit} />
        </td>
      )}
    </tr>
  );
}

function Actions({ schedule: { name, paused }, edit }: { schedule: Schedule; edit: () => void }) {
  const queries = useQueryClient();
  const [started, setStarted] = useState<string>();
  const path = { params: { path: { name } } };
  const act = useAction({
    mutationFn: (one: () => Promise<unknown>) => one(),
    onSettled: () => queries.invalidateQueries({ queryKey: ["schedules"] }),
  });
  const turn = () =>
    paused ? api.POST("/v1/schedules/{name}:resume", path) : api.POST("/v1/schedules/{name}:pause", path);
  const start = async () => setStarted((await body(api.POST("/v1/schedules/{name}:trigger", path))).run_id);
  const order = paused ? "Resume" : "Pause";
  const isBusy = act.isPending;
  return (
    <div className="actions">
      <button type="button" aria-label={`${order} ${name}`} disabled={isBusy} onClick={() => act.mutate(turn)}>
        {order}
      </button>
      <button type="button" aria-label={`Start now: ${name}`} disabled={isBusy} onClick={() => act.mutate(start)}>
        Start now
      </button>
      <button type="button" aria-label={`Edit ${name}`} disabled={isBusy} onClick={edit}>
        Edit
      </button>
      <button
        type="button"
        aria-label={`Delete ${name}`}
        disabled={isBusy}
        onClick={() =>
          window.confirm(`Delete the schedule ${name}? Runs that it started go on.`) &&
          act.mutate(() => api.DELETE("/v1/schedules/{name}", path))
        }
      >
        Delete
      </button>
      {started && (
        <p role="status">
          Started <Link href={`/runs/${started}`}>{started}</Link>
        </p>
      )}
      {act.error && <Trouble error={act.error} />}
      {hasNoAnswer(act.error) && <p className="hint">It may have been done: look at the schedule and its runs.</p>}
    </div>
  );
}

/** All that the form and the API can change, other than whether it is paused. */
function configurationOf({ workflow, cron, timezone, input, labels, catch_up, catch_up_limit }: Schedule): string {
  return JSON.stringify([workflow, cron, timezone, input, labels, catch_up, catch_up_limit]);
}

async function scheduleOf(name: string): Promise<Schedule | undefined> {
  return body(api.GET("/v1/schedules/{name}", { params: { path: { name } } })).catch((error: unknown) => {
    if (error instanceof Problem && error.status === 404) return undefined;
    throw error;
  });
}

/** A new schedule, or all that an existing one says. */
function ScheduleForm({
  before,
  workflow,
  done,
}: {
  before?: Schedule;
  workflow?: string;
  done: () => void;
}) {
  const queries = useQueryClient();
  const save = useAction({
    mutationFn: async (form: FormData) => {
      const text = (field: string) => String(form.get(field)).trim();
      const name = before?.name ?? text("name");
      const now = await scheduleOf(name);
      if (now && !before) throw new Problem(409, `there is a schedule ${name} already: edit that one`);
      if (before && (!now || configurationOf(now) !== configurationOf(before))) {
        throw new Problem(409, "somebody has changed or deleted this schedule since: close this form and look again");
      }
      return body(
        api.PUT("/v1/schedules/{name}", {
          params: { path: { name } },
          body: {
            workflow: workflow ?? text("workflow"),
            cron: text("cron"),
            timezone: text("timezone"),
            input: jsonIn(text("input")),
            catch_up: text("catch_up") as CatchUp,
            catch_up_limit: Number(text("catch_up_limit")),
            labels: before?.labels,
          },
        }),
      );
    },
    onSuccess: () => {
      done();
      return queries.invalidateQueries({ queryKey: ["schedules"] });
    },
  });
  return (
    <form
      className="filters panel"
      aria-label={before ? `Schedule ${before.name}` : "New schedule"}
      onSubmit={(event) => {
        event.preventDefault();
        save.mutate(new FormData(event.currentTarget));
      }}
    >
      {before && <h3 className="wide id">{before.name}</h3>}
      {!before && (
        <label>
          Name
          <input
            name="name"
            required
            maxLength={128}
            pattern="[A-Za-z0-9_](-?[A-Za-z0-9_])*"
            title="letters, digits, _ and single dashes"
            autoFocus
          />
        </label>
      )}
      {!workflow && (
        <label>
          Workflow
          <input name="workflow" required maxLength={128} defaultValue={before?.workflow} />
        </label>
      )}
      <label>
        Cron
        <input name="cron" required maxLength={256} defaultValue={before?.cron} placeholder="30 2 * * *" className="id" autoFocus={before !== undefined} />
      </label>
      <label>
        Time zone
        <input name="timezone" required maxLength={64} defaultValue={before?.timezone ?? "UTC"} list="timezones" />
        <datalist id="timezones">
          {Intl.supportedValuesOf("timeZone").map((zone) => (
            <option key={zone} value={zone} />
          ))}
        </datalist>
      </label>
      <label>
        Missed times
        <select name="catch_up" defaultValue={before?.catch_up ?? "none"}>
          {Object.entries(CATCH_UP).map(([value, words]) => (
            <option key={value} value={value}>
              {words}
            </option>
          ))}
        </select>
      </label>
      <label>
        Start at most
        <input name="catch_up_limit" type="number" required min={1} max={100} defaultValue={before?.catch_up_limit ?? 10} />
      </label>
      <label className="wide">
        Input of every run, as JSON
        <textarea
          name="input"
          rows={3}
          defaultValue={before?.input == null ? "" : JSON.stringify(before.input, null, 2)}
        />
      </label>
      <button type="submit" className="primary" disabled={save.isPending}>
        {before ? "Save" : "Create"}
      </button>
      <button type="button" onClick={done}>
        Cancel
      </button>
      {save.error && <Trouble error={save.error} />}
    </form>
  );
}
