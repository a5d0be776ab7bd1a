import { useMemo, useState } from "react";

import { oneLine, Value } from "../parts";
import { linesOf, outputsOf } from "./lines";

const MOST_LINES = 1_000;

/** The answer of a provider, with some of its lines marked. How it was made is shown on request. */
export function Answer({ of: answer, marked }: { of: Record<string, unknown>; marked?: ReadonlySet<number> }) {
  const [all, setAll] = useState(false);
  const lines = useMemo(() => linesOf(outputsOf(answer)), [answer]);
  return (
    <>
      <pre className="value" tabIndex={0}>
        {lines.slice(0, all ? undefined : MOST_LINES).map((line, number) => {
          const text = `${oneLine(line)}\n`;
          return marked?.has(number) ? <mark key={number}>{text}</mark> : text;
        })}
      </pre>
      {!all && lines.length > MOST_LINES && (
        <button type="button" onClick={() => setAll(true)}>
          Show all {lines.length} lines
        </button>
      )}
      {answer.provenance !== undefined && (
        <details className="more">
          <summary>How it was made</summary>
          <Value value={answer.provenance} />
        </details>
      )}
    </>
  );
}
