import { useReducer, useState } from "react";

import type { Command } from "../api/client";
import { type Message, useEvents } from "../api/events";
import { Output } from "../output/output";

export const commandPath = ({ sandbox_id, command_id }: { sandbox_id: string; command_id: string }) =>
  `/v1/sandboxes/${encodeURIComponent(sandbox_id)}/commands/${encodeURIComponent(command_id)}`;

const STREAMS = ["stdout", "stderr"] as const;
type Stream = (typeof STREAMS)[number];

/** A part of what a command printed. */
export interface Piece {
  stream: Stream;
  offset: number;
  bytes: Uint8Array;
}

export function pieceIn({ event, data }: Message): Piece | undefined {
  if (event !== "output") return undefined;
  const bytes = Uint8Array.from(atob(String(data.data)), (one) => one.charCodeAt(0));
  return { stream: data.stream === "stderr" ? "stderr" : "stdout", offset: Number(data.offset), bytes };
}

/** Follows what a command without a terminal prints. */
export function useCommandOutput(command: Command): { output: Output; version: number } {
  const [version, changed] = useReducer((before: number) => before + 1, 0);
  const [reading] = useState(() => new Reading());
  useEvents(`${commandPath(command)}/output`, (news) => {
    for (const message of news) reading.take(message);
    changed();
  });
  return { output: reading.output, version };
}

/** Turns the bytes of a command into the lines that a log shows. */
class Reading {
  output = new Output();
  private received = { stdout: 0, stderr: 0 };
  private decoders = { stdout: new TextDecoder(), stderr: new TextDecoder() };

  take(message: Message): void {
    if (message.event === "end") {
      for (const stream of STREAMS) {
        this.leaveOut(stream, Number(message.data[`${stream}_bytes`] ?? 0));
        this.write(stream, this.decoders[stream].decode());
      }
      this.output.take({ event: "end", data: { attempt: 1 } });
    }
    const piece = pieceIn(message);
    if (piece === undefined) return;
    const { stream, offset, bytes } = piece;
    this.leaveOut(stream, offset);
    const fresh = bytes.subarray(this.received[stream] - offset);
    this.received[stream] += fresh.length;
    this.write(stream, this.decoders[stream].decode(fresh, { stream: true }));
  }

  /** Notes that the output goes on here, if that is behind what was received. */
  private leaveOut(stream: Stream, at: number): void {
    const have = this.received[stream];
    if (at <= have) return;
    this.write(stream, this.decoders[stream].decode()); // half of a character
    this.output.take({ event: "cut", data: { stream, offset: have, resumes_at: at } });
    this.received[stream] = at;
  }

  private write(stream: Stream, text: string): void {
    if (text !== "") this.output.take({ event: stream, data: { text } });
  }
}
