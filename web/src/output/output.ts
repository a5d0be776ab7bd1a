import { sha256 } from "@noble/hashes/sha2.js";
import { bytesToHex, utf8ToBytes } from "@noble/hashes/utils.js";

import type { Message } from "../api/events";

const STREAMS = ["stdout", "stderr"] as const;
type Stream = (typeof STREAMS)[number];

/** One line that a program wrote, or a note about what it wrote. */
export interface Line {
  number: number;
  from: Stream | "note";
  text: string;
}

/** The hashes of both streams of an attempt. */
export interface Digests {
  stdout: string;
  stderr: string;
  /** Why they are not the hashes of all that the program wrote. */
  incomplete?: string;
  /** Whether the server has a log of the attempt at all. */
  started: boolean;
}

const READING: Digests = { stdout: "", stderr: "", incomplete: "it is still being read", started: true };
const NOT_TEXT = /[\ufffd\p{Cs}]/u; // U+FFFD, and half a character: each stands for several sequences of bytes
const MOST_LINES = 50_000;
const LONGEST_LINE = 4_096;

/** What a sandbox step has printed, from the events of its log stream. */
export class Output {
  lines: Line[] = [];
  /** Earlier lines that are no longer held. */
  dropped = 0;
  /** Whether the newest attempt has been read to its end. */
  isOver = false;
  private next = 1;
  private attempt = 0;
  private started = false;
  private gap: string | undefined;
  private hashes = newHashes();
  private unfinished: Partial<Record<Stream, Line>> = {};
  private cuts = new Set<string>();

  take({ event, data }: Message): void {
    if (event === "start" || event === "end") this.begin(Number(data.attempt));
    else this.begin(1); // unless it has begun
    if (event !== "end") this.started = true;
    if (event === "stdout" || event === "stderr") this.write(event, String(data.text));
    else if (event === "cut") this.cut(data.stream === "stderr" ? "stderr" : "stdout", data);
    else if (event === "end") this.isOver = true;
  }

  /** Of this attempt, if it is the newest one that is known here. */
  digests(attempt: number): Digests {
    if (!this.isOver || this.attempt !== attempt) return READING;
    const digest = (stream: Stream) => bytesToHex(this.hashes[stream].clone().digest());
    return { stdout: digest("stdout"), stderr: digest("stderr"), incomplete: this.gap, started: this.started };
  }

  private begin(attempt: number): void {
    if (!Number.isSafeInteger(attempt) || attempt <= this.attempt) return;
    this.attempt = attempt;
    this.isOver = false;
    this.started = false;
    this.gap = undefined;
    this.hashes = newHashes();
    this.unfinished = {};
    this.cuts.clear();
    if (this.lines.length > 0) this.note(`Attempt ${attempt}. The receipt does not cover what is above.`);
  }

  private write(stream: Stream, text: string): void {
    this.hashes[stream].update(utf8ToBytes(text));
    if (NOT_TEXT.test(text)) this.gap ??= "it has bytes that are not text";
    text.split("\n").forEach((piece, place) => {
      if (place > 0) {
        if (this.unfinished[stream] === undefined) this.add(stream); // an empty line
        delete this.unfinished[stream];
      }
      for (let rest = piece; rest !== ""; ) rest = this.append(stream, rest);
    });
  }

  /** Adds to the stream's unfinished line, and returns what has no room in it. */
  private append(stream: Stream, text: string): string {
    let line = this.unfinished[stream];
    if (line === undefined || line.text.length >= LONGEST_LINE) {
      this.unfinished[stream] = line = this.add(stream);
    }
    let room = LONGEST_LINE - line.text.length;
    if (/[\ud800-\udbff]/.test(text.charAt(room - 1))) room += 1; // both halves of a character
    line.text += text.slice(0, room);
    return text.slice(room);
  }

  /** A cut is repeated after a reconnection. */
  private cut(stream: Stream, { offset, resumes_at: resumes }: Message["data"]): void {
    this.gap ??= "a part of it is left out";
    const key = [stream, offset, resumes].join();
    if (this.cuts.has(key)) return;
    this.cuts.add(key);
    delete this.unfinished[stream];
    if (typeof resumes === "number") this.note(`${resumes - Number(offset)} bytes of ${stream} are left out`);
    else this.note(`There may be more of ${stream} than is shown here`);
  }

  private note(text: string): void {
    this.add("note").text = text;
  }

  private add(from: Line["from"]): Line {
    const line = { number: this.next++, from, text: "" };
    this.lines.push(line);
    if (this.lines.length > MOST_LINES) {
      this.dropped += this.lines.splice(0, MOST_LINES / 10).length;
      const first = this.lines[0]!.number;
      for (const stream of STREAMS) {
        const line = this.unfinished[stream];
        if (line !== undefined && line.number < first) delete this.unfinished[stream];
      }
    }
    return line;
  }
}

const newHashes = () => ({ stdout: sha256.create(), stderr: sha256.create() });
