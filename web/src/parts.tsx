import { memo, type ReactNode, useEffect, useState } from "react";

import { Problem } from "./api/client";

export function Trouble({ error }: { error: Error }) {
  const words = error instanceof Problem ? error.message : `something went wrong in this page: ${error.message}`;
  return (
    <p role="alert" className="trouble">
      {words.charAt(0).toUpperCase() + words.slice(1)}
    </p>
  );
}

export function Status({ value }: { value: string }) {
  return <span className={`status ${value}`}>{readable(value)}</span>;
}

/** `timed out` for `timed_out`. */
export const readable = (name: string) => name.replaceAll("_", " ");

/** A list of names and values; a name without a value is left out. */
export function Facts({ of: facts, className = "facts" }: { of: [string, ReactNode][]; className?: string }) {
  return (
    <dl className={className}>
      {facts.map(([name, value]) =>
        value === undefined || value === null || value === "" ? null : (
          <div key={name}>
            <dt>{name}</dt>
            <dd>{value}</dd>
          </div>
        ),
      )}
    </dl>
  );
}

const DATE = new Intl.DateTimeFormat(undefined, { dateStyle: "medium", timeStyle: "medium" });

export function Time({ at }: { at: string }) {
  return (
    <time dateTime={at} title={at}>
      {DATE.format(new Date(at))}
    </time>
  );
}

/** A length of time in its two largest units. */
export function duration(milliseconds: number): string {
  if (milliseconds < 1_000) return `${Math.max(0, Math.round(milliseconds))} ms`;
  const seconds = milliseconds / 1_000;
  if (seconds < 60) return `${seconds.toFixed(1)} s`;
  const minutes = Math.floor(seconds / 60);
  if (minutes < 60) return `${minutes} min ${Math.floor(seconds % 60)} s`;
  const hours = Math.floor(minutes / 60);
  return hours < 48 ? `${hours} h ${minutes % 60} min` : `${Math.floor(hours / 24)} d ${hours % 24} h`;
}

/** The current time, updated every second while `ticking`. */
export function useNow(ticking: boolean): number {
  const [now, setNow] = useState(Date.now);
  useEffect(() => {
    if (!ticking) return;
    const timer = window.setInterval(() => setNow(Date.now()), 1_000);
    return () => window.clearInterval(timer);
  }, [ticking]);
  return now;
}

export function useTitle(title: string): void {
  useEffect(() => {
    document.title = `${title} · Fumehood`;
  }, [title]);
}

/** JSON, in a box that the mouse and the keyboard can scroll. */
export const Value = memo(function Value({ value }: { value: unknown }) {
  return (
    <pre className="value" tabIndex={0}>
      {JSON.stringify(value, null, 2)}
    </pre>
  );
});
