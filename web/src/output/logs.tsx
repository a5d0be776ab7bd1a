import { useLayoutEffect, useMemo, useReducer, useRef, useState } from "react";

import { useEvents } from "../api/events";
import { plain } from "../parts";
import { type Line, Output } from "./output";

const PAGE = 1_000;
const MOST_SHOWN = 5_000;

/** Reads the output of a sandbox step to its end, and goes on reading when `again` changes. */
export function useOutput(run: string, step: string, again: unknown): { output: Output; version: number } {
  const [version, changed] = useReducer((before: number) => before + 1, 0);
  const [output] = useState(() => new Output());
  const path = `/v1/runs/${encodeURIComponent(run)}/steps/${encodeURIComponent(step)}/logs/stream`;
  useEvents(
    path,
    (news) => {
      try {
        for (const message of news) output.take(message);
      } finally {
        changed();
      }
    },
    { again },
  );
  return { output, version };
}

/** The lines that a program has written. The view follows new lines, and can be searched. */
export function Logs({ output, version }: { output: Output; version: number }) {
  const [search, setSearch] = useState("");
  const [first, setFirst] = useState<number | null>(null); // the number of a line, or the last page
  const box = useRef<HTMLDivElement>(null);
  const isAtEnd = useRef(true);
  const found = useMemo(() => {
    const wanted = search.toLowerCase();
    return output.lines.filter((line) => line.from === "note" || visible(line).lower.includes(wanted));
  }, [output, version, search]);
  const chosen = first === null ? -1 : found.findIndex((line) => line.number >= first);
  const start = chosen < 0 ? Math.max(0, found.length - PAGE) : chosen;
  const shown = found.slice(start, start + MOST_SHOWN);
  const count = (lines: Line[]) => lines.reduce((sum, { from }) => sum + (from === "note" ? 0 : 1), 0);
  useLayoutEffect(() => {
    if (!isAtEnd.current) return;
    setFirst(null);
    box.current?.scrollTo(0, box.current.scrollHeight);
  }, [version, search]);

  return (
    <section aria-label="Output">
      <div className="section-head">
        <h3>Output</h3>
        {output.lines.length > 0 && (
          <>
            <input
              type="search"
              aria-label="Search the output"
              placeholder="Search"
              value={search}
              onChange={(event) => setSearch(event.target.value)}
            />
            <span className="hint" role={search === "" ? undefined : "status"}>
              {search !== "" && `${count(found)} of `}
              {count(output.lines)} lines
            </span>
          </>
        )}
      </div>
      {output.dropped > 0 && <p className="hint">{output.dropped} earlier lines are not held by this page.</p>}
      {start > 0 && (
        <button
          type="button"
          onClick={() => {
            isAtEnd.current = false;
            setFirst(found[Math.max(0, start - PAGE)]!.number);
          }}
        >
          Show more of {start} earlier lines
        </button>
      )}
      {output.lines.length === 0 ? (
        <p className="empty">{output.isOver ? "It wrote nothing." : "Nothing has been read yet."}</p>
      ) : (
        <div
          ref={box}
          className="log"
          role="log"
          aria-live="off"
          aria-label="Lines of output"
          tabIndex={0}
          onScroll={({ currentTarget: { scrollHeight, scrollTop, clientHeight } }) => {
            isAtEnd.current = scrollHeight - scrollTop - clientHeight < 8;
            if (!isAtEnd.current && first === null) setFirst(shown[0]?.number ?? null); // what is being read stays
          }}
        >
          {shown.map((line) => (
            <div key={line.number} className={line.from}>
              {line.from === "stderr" && <span className="visually-hidden">stderr: </span>}
              {marked(visible(line), line.from === "note" ? "" : search.toLowerCase())}
            </div>
          ))}
        </div>
      )}
      {start + shown.length < found.length && (
        <button type="button" onClick={() => setFirst(null)}>
          Show the last lines
        </button>
      )}
    </section>
  );
}

interface Visible {
  length: number;
  text: string;
  lower: string;
}
const SEEN = new WeakMap<Line, Visible>();

function visible(line: Line): Visible {
  const { length } = line.text;
  let known = SEEN.get(line);
  if (known?.length !== length) {
    const text = plain(line.text.replace(/\r$/, ""));
    SEEN.set(line, (known = { length, text, lower: text.toLowerCase() }));
  }
  return known!;
}

/** The text with what was searched for marked. */
function marked({ text, lower }: Visible, wanted: string): React.ReactNode {
  if (wanted === "" || lower.length !== text.length) return text;
  const parts: React.ReactNode[] = [];
  let from = 0;
  for (let at = lower.indexOf(wanted); at >= 0; at = lower.indexOf(wanted, from)) {
    const to = at + wanted.length;
    parts.push(text.slice(from, at), <mark key={at}>{text.slice(at, to)}</mark>);
    from = to;
  }
  return [...parts, text.slice(from)];
}
