import { memo, type ReactNode, useEffect, useState } from "react";
import { useLocation, useSearchParams } from "wouter";

import { Problem, serverTime } from "./api/client";

export function Trouble({ error }: { error: Error }) {
  const words = error instanceof Problem ? error.message : `something went wrong in this page: ${error.message}`;
  return (
    <p role="alert" className="trouble">
      {words.charAt(0).toUpperCase() + words.slice(1)}
    </p>
  );
}

/** A state in its colour, which is that of another state where `as` says so. */
export function Status({ value, as = value }: { value: string; as?: string }) {
  return <span className={`status ${as}`}>{readable(value)}</span>;
}

/** `timed out` for `timed_out`. */
export const readable = (name: string) => name.replaceAll("_", " ");

const COLOURS = /\x1b\[[0-9;:]*[mK]/g;
const HIDDEN = /[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]/g;

/** How workers come, in words. */
export const TRANSPORTS: Record<string, string> = { bridge: "HTTP", grpc: "dialled in", nats: "NATS" };

/** Text of a program without colours; other characters that move or hide text are made visible. */
export function plain(text: string): string {
  return text.replace(COLOURS, "").replace(HIDDEN, picture);
}

const INVISIBLE = /[\p{Cc}\p{Cf}\p{Cs}\p{Zl}\p{Zp}\u034f\u115f\u1160\u3164\uffa0]/gu;

/** A name or a command in which every character is visible, so that different ones look different. */
export const oneLine = (text: string): string =>
  text.replace(INVISIBLE, (one) => (one <= "\x1f" ? picture(one) : `\\u{${one.codePointAt(0)!.toString(16)}}`));

function picture(character: string): string {
  const code = character.charCodeAt(0);
  return code < 0x20 ? String.fromCharCode(0x2400 + code) : code === 0x7f ? "\u2421" : "\ufffd";
}

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

const UNITS = ["bytes", "KiB", "MiB", "GiB", "TiB"];

/** A number of bytes in its largest unit. */
export function size(bytes: number): string {
  let value = bytes;
  let unit = 0;
  for (; value >= 1_024 && unit < UNITS.length - 1; unit++) value /= 1_024;
  return `${unit === 0 || value >= 100 ? Math.round(value) : value.toFixed(1)} ${UNITS[unit]}`;
}

/** The server's time, updated every second while `ticking`. */
export function useNow(ticking: boolean): number {
  const [now, setNow] = useState(serverTime);
  useEffect(() => {
    if (!ticking) return;
    const timer = window.setInterval(() => setNow(serverTime()), 1_000);
    return () => window.clearInterval(timer);
  }, [ticking]);
  return now;
}

/** The address of this page with a changed parameter. */
export function useAddress(): (name: string, value: string) => string {
  const [place] = useLocation();
  const [search] = useSearchParams();
  return (name, value) => {
    const changed = new URLSearchParams(search);
    changed.set(name, value);
    return `${place}?${changed}`;
  };
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

/** The JSON that somebody typed. Nothing at all is `null`. Integers that JavaScript would round are refused. */
export function jsonIn(text: string): unknown {
  if (text.trim() === "") return null;
  try {
    return JSON.parse(text, exact);
  } catch (error) {
    throw error instanceof Problem ? error : new Problem(400, `this is not JSON: ${(error as Error).message}`);
  }
}

function exact(_: string, value: unknown): unknown {
  if (typeof value === "number" && Number.isInteger(value) && !Number.isSafeInteger(value)) {
    throw new Problem(400, "the browser would round an integer beyond 2\u2075\u00b3: use the command line");
  }
  return value;
}
