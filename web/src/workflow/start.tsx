import { useState } from "react";
import { useLocation } from "wouter";

import { useAction } from "../api/action";
import { api, body, hasNoAnswer } from "../api/client";
import { useIdempotencyKey } from "../api/idempotency";
import { jsonIn, Trouble, Value } from "../parts";

/** Starts a run of the current definition. Sent again, it is the same run. */
export function StartRun({ workflow, schema }: { workflow: string; schema?: Record<string, unknown> }) {
  const [, go] = useLocation();
  const [text, setText] = useState(() => (schema ? JSON.stringify(exampleOf(schema) ?? null, null, 2) : ""));
  const keyFor = useIdempotencyKey();
  const start = useAction({
    mutationFn: async () =>
      body(
        api.POST("/v1/workflows/{name}/runs", {
          params: { path: { name: workflow }, header: { "Idempotency-Key": keyFor(text) } },
          body: { input: jsonIn(text), labels: {} },
        }),
      ),
    onSuccess: ({ run_id }) => go(`/runs/${run_id}`),
  });
  return (
    <form
      className="filters panel"
      aria-label="Start a run"
      onSubmit={(event) => {
        event.preventDefault();
        start.mutate();
      }}
    >
      <label className="wide">
        Input, as JSON
        <textarea
          value={text}
          rows={Math.min(12, text.split("\n").length + 1)}
          onChange={(event) => setText(event.target.value)}
          autoFocus
        />
      </label>
      <button type="submit" className="primary" disabled={start.isPending}>
        Start
      </button>
      {schema && (
        <details className="wide">
          <summary>What the input must look like</summary>
          <Value value={schema} />
        </details>
      )}
      {start.error && <Trouble error={start.error} />}
      {hasNoAnswer(start.error) && (
        <p className="hint wide">The run may have been started. Send the same input again to get the same run.</p>
      )}
    </form>
  );
}

type Schema = { default?: unknown; const?: unknown; enum?: unknown[]; type?: string | string[]; required?: string[]; properties?: Record<string, Schema> };

const EMPTY: Record<string, unknown> = { string: "", number: 0, integer: 0, boolean: false, array: [], object: {} };

/** A value to begin with: what a schema requires, and its defaults. */
function exampleOf(schema: Schema): unknown {
  if (schema.default !== undefined) return schema.default;
  if (schema.const !== undefined) return schema.const;
  if (schema.enum !== undefined) return schema.enum[0];
  if (schema.properties !== undefined) {
    const begun = Object.entries(schema.properties).filter(
      ([name, inner]) => schema.required?.includes(name) || inner.default !== undefined,
    );
    return Object.fromEntries(begun.map(([name, inner]) => [name, exampleOf(inner)]));
  }
  return EMPTY[[schema.type].flat()[0] ?? ""] ?? null;
}
