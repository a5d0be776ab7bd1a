import "@xterm/xterm/css/xterm.css";

import { FitAddon } from "@xterm/addon-fit";
import { type IDisposable, Terminal as Screen } from "@xterm/xterm";
import { useEffect, useLayoutEffect, useRef, useState } from "react";

import { api, body, type Command, octets, Problem } from "../api/client";
import { type Message, useEvents } from "../api/events";
import { Trouble } from "../parts";
import { commandPath, pieceIn } from "./command-output";
import { Input } from "./input";
import { applyStylesThroughCssom } from "./styles";

applyStylesThroughCssom();

const REPLAY_BYTES = 64 * 1024; // of what was printed before: a few screens
const LONGEST_TORN_LINE = 1024;
const MOST_UNDRAWN_BYTES = 512 * 1024;
const BATCH_MS = 10;
const SEND_TIMEOUT_MS = 30_000;
const LEASE_SECONDS = 300;
const EXTEND_EVERY_MS = 20_000;
const NEWLINE = 10;
const SEND_FOCUS = 1004;
const THEME = { background: "#101416", foreground: "#e6ebee", cursor: "#4fc7ae", selectionBackground: "#335a63" };
const FONT = 'ui-monospace, "SF Mono", "Cascadia Code", "DejaVu Sans Mono", monospace';

/** By command. What was typed goes on its way when its terminal is no longer shown. */
const inputs = new Map<string, Input>();

/** The terminal of a command, which may have been running for a while. */
export function Terminal({ command, mayType, ended }: { command: Command; mayType: boolean; ended: () => void }) {
  const box = useRef<HTMLDivElement>(null);
  const open = useRef<OpenTerminal | null>(null);
  const [trouble, setTrouble] = useState<Error | null>(null);
  const [isLate, setLate] = useState(false);
  const [first] = useState(command);
  useLayoutEffect(() => {
    const terminal = new OpenTerminal(box.current!, first, mayType, { trouble: setTrouble, late: setLate });
    open.current = terminal;
    return () => terminal.close();
  }, [first, mayType]);
  const isLost = useEvents(
    `${commandPath(first)}/output?stdout=${replayFrom(first)}`,
    (news) => {
      for (const message of news) if (open.current?.take(message) === "end") ended();
    },
    {
      batchMs: BATCH_MS,
      connecting: async () => open.current?.connecting(),
      ready: async () => open.current?.hasRoom(),
    },
  );
  useEffect(() => {
    if (command.status !== "running") open.current?.end();
  }, [command.status]);
  return (
    <>
      <div ref={box} className="terminal-box" />
      <p role="status" className="hint">
        {isLost && "The connection is lost. Trying again… "}
        {isLate && "What you typed has not arrived yet. Trying again… "}
        {command.status !== "running"
          ? "The program has ended."
          : mayType
            ? "Ctrl+Shift+X leaves the terminal for the rest of the page. The program goes on when you close the page."
            : "Your key may watch but not type. Lines break as they do in the window of a person who types."}
      </p>
      {trouble && <Trouble error={trouble} />}
    </>
  );
}

const replayFrom = (command: Command) => Math.max(0, command.stdout_bytes - REPLAY_BYTES);

interface Reports {
  trouble: (error: Error | null) => void;
  late: (is: boolean) => void;
}

class OpenTerminal {
  private screen = new Screen({
    fontFamily: FONT,
    fontSize: 13,
    theme: THEME,
    minimumContrastRatio: 4.5,
    scrollback: 5_000,
    linkHandler: { activate: () => {} }, // a program must not open pages
  });
  private input: Input | undefined;
  private closing = new AbortController();
  private received: number; // bytes of stdout
  private drawn: number;
  private answered = 0; // up to here, questions in the output are no longer answered
  private isCut: boolean;
  private isOver = false;
  private undrawn = 0;
  private roomed: (() => void)[] = [];
  private wanted: { rows: number; columns: number }[] = [];
  private isResizing = false;
  private keeping: number | undefined; // the timer that extends the lease

  constructor(
    box: HTMLElement,
    private command: Command,
    mayType: boolean,
    private reports: Reports,
  ) {
    const { screen } = this;
    this.received = this.drawn = replayFrom(command);
    this.isCut = this.received > 0;
    if (this.isCut) screen.write("\x1b[2m[earlier output is not shown]\x1b[0m\r\n");
    const fit = new FitAddon();
    screen.loadAddon(fit);
    screen.open(box);
    fit.fit();
    const { signal } = this.closing;
    const observer = new ResizeObserver(() => fit.fit());
    observer.observe(box);
    signal.addEventListener("abort", () => observer.disconnect());
    screen.attachCustomKeyEventHandler((event) => this.isForTerminal(event));
    if (!mayType || command.status !== "running") {
      screen.options.disableStdin = true;
      return;
    }
    this.input = this.openInput();
    this.ignoreOldQuestions();
    screen.onData((text) => this.input?.put(new TextEncoder().encode(text)));
    screen.onBinary((text) => this.input?.put(Uint8Array.from(text, (one) => one.charCodeAt(0))));
    box.addEventListener("paste", (event) => this.paste(event), { capture: true, signal });
    window.addEventListener("beforeunload", (event) => this.input?.isWaiting && event.preventDefault(), { signal });
    const { rows, cols } = screen;
    // A program that draws the whole screen does so again when the size changes, so it changes.
    if (command.stdout_bytes > 0) void this.resize({ rows, columns: Math.max(1, cols - 1) });
    void this.resize({ rows, columns: cols });
    screen.onResize((size) => void this.resize({ rows: size.rows, columns: size.cols }));
    screen.textarea?.addEventListener("focus", () => void this.resize({ rows: screen.rows, columns: screen.cols }));
    this.keeping = window.setInterval(() => this.extend(), EXTEND_EVERY_MS);
    signal.addEventListener("abort", () => window.clearInterval(this.keeping));
    screen.focus();
  }

  /** Before each connection: what was printed by now was seen by others, or was not answered in time. */
  async connecting(): Promise<void> {
    this.extend();
    const { stdout_bytes } = await this.look();
    this.answered = stdout_bytes;
  }

  /** Draws the output in an event, and returns the event's name. */
  take(message: Message): string {
    const piece = pieceIn(message);
    if (piece?.stream === "stdout") this.draw(piece.offset, piece.bytes);
    if (message.event === "end") {
      const { stdout_bytes: all } = message.data;
      if (typeof all === "number" && all > this.received) this.leaveOut(all - this.received);
      this.end();
    }
    return message.event;
  }

  /** Resolves when most of what was received has been drawn. */
  async hasRoom(): Promise<void> {
    if (this.undrawn < MOST_UNDRAWN_BYTES || this.closing.signal.aborted) return;
    await new Promise<void>((resolve) => this.roomed.push(resolve));
  }

  end(): void {
    if (this.isOver) return;
    this.isOver = true;
    this.input?.stop();
    this.screen.options.disableStdin = true;
    this.screen.write("\x1b[?25l"); // no cursor
  }

  close(): void {
    this.closing.abort();
    if (this.input) this.input.listener = null;
    this.screen.dispose();
    for (const resolve of this.roomed.splice(0)) resolve();
  }

  private get path() {
    const { sandbox_id, command_id } = this.command;
    return { path: { sandbox_id, command_id } };
  }

  private look(): Promise<Command> {
    const signal = AbortSignal.timeout(SEND_TIMEOUT_MS);
    return body(api.GET("/v1/sandboxes/{sandbox_id}/commands/{command_id}", { params: this.path, signal }));
  }

  private openInput(): Input {
    const { command_id } = this.command;
    const known = inputs.get(command_id);
    const input =
      (known?.isStopped ? undefined : known) ??
      new Input({
        count: async () => (await this.look()).stdin_bytes,
        send: async (offset, bytes) => {
          const { stdin_bytes } = await body(
            api.POST("/v1/sandboxes/{sandbox_id}/commands/{command_id}/stdin", {
              params: { ...this.path, query: { offset } },
              signal: AbortSignal.timeout(SEND_TIMEOUT_MS),
              ...octets(bytes),
            }),
          );
          return stdin_bytes;
        },
      });
    inputs.set(command_id, input);
    input.listener = {
      late: this.reports.late,
      refused: (error) => {
        if (!this.isOver) this.reports.trouble(error);
      },
    };
    return input;
  }

  private draw(offset: number, bytes: Uint8Array): void {
    let rest = bytes.subarray(Math.max(0, this.received - offset));
    if (rest.length === 0) return;
    if (offset > this.received) {
      this.leaveOut(offset - this.received);
      this.isCut = true;
    }
    let at = Math.max(offset, this.received);
    this.received = at + rest.length;
    if (this.isCut) {
      const line = rest.subarray(0, LONGEST_TORN_LINE).indexOf(NEWLINE) + 1;
      rest = rest.subarray(line); // the rest of a line may begin in the middle of a control sequence
      at += line;
      this.isCut = false;
    }
    const old = Math.min(rest.length, Math.max(0, this.answered - at));
    for (const part of [rest.subarray(0, old), rest.subarray(old)]) {
      at += part.length;
      const end = at;
      this.undrawn += part.length;
      this.screen.write(part, () => {
        this.drawn = end;
        this.undrawn -= part.length;
        if (this.undrawn < MOST_UNDRAWN_BYTES) for (const resolve of this.roomed.splice(0)) resolve();
      });
    }
  }

  private leaveOut(bytes: number): void {
    this.screen.write(`\r\n\x1b[0;2m[${bytes} bytes are no longer kept]\x1b[0m\r\n`);
  }

  /** The answers to questions of a program are input. Those in output that was printed before came already, or come too late. */
  private ignoreOldQuestions(): void {
    const { parser } = this.screen;
    const isOld = () => this.drawn < this.answered;
    const questions: IDisposable[] = [
      parser.registerCsiHandler({ final: "c" }, isOld),
      parser.registerCsiHandler({ prefix: ">", final: "c" }, isOld),
      parser.registerCsiHandler({ final: "n" }, isOld),
      parser.registerCsiHandler({ prefix: "?", final: "n" }, isOld),
      parser.registerCsiHandler({ intermediates: "$", final: "p" }, isOld),
      parser.registerCsiHandler({ prefix: "?", intermediates: "$", final: "p" }, isOld),
      parser.registerCsiHandler({ prefix: "?", final: "h" }, (modes) => isOld() && modes.join() === `${SEND_FOCUS}`),
      parser.registerDcsHandler({ intermediates: "$", final: "q" }, isOld),
      ...[4, 10, 11, 12].map((code) => parser.registerOscHandler(code, (data) => isOld() && data.includes("?"))),
    ];
    this.closing.signal.addEventListener("abort", () => questions.forEach((one) => one.dispose()));
  }

  /** Pasted text must not end the brackets that tell a program that it was pasted. */
  private paste(event: ClipboardEvent): void {
    event.preventDefault();
    event.stopPropagation();
    this.screen.paste((event.clipboardData?.getData("text/plain") ?? "").replaceAll("\x1b", ""));
  }

  private isForTerminal(event: KeyboardEvent): boolean {
    const isLeaving = event.ctrlKey && event.shiftKey && event.code === "KeyX";
    if (isLeaving && event.type === "keydown") this.screen.blur();
    return !isLeaving && !(event.key === "Tab" && this.screen.options.disableStdin);
  }

  /** Sends the sizes in order, of several waiting ones only the last. */
  private async resize(size: { rows: number; columns: number }): Promise<void> {
    this.wanted.push(size);
    if (this.isResizing) return;
    this.isResizing = true;
    for (
      let next = this.wanted.shift();
      next && !this.isOver && !this.closing.signal.aborted;
      next = this.wanted.splice(0).at(-1)
    ) {
      const asked = { params: this.path, body: next };
      await api.POST("/v1/sandboxes/{sandbox_id}/commands/{command_id}:resize", asked).catch(() => {}); // the next may arrive
    }
    this.isResizing = false;
  }

  /** A sandbox does not end while a person is at one of its terminals. */
  private extend(): void {
    if (this.keeping === undefined || document.hidden || this.isOver) return;
    const asked = { params: this.path, body: { lease_seconds: LEASE_SECONDS } };
    api.POST("/v1/sandboxes/{sandbox_id}:extend", asked).catch((error: unknown) => {
      if (!(error instanceof Problem) || error.status < 400 || error.status >= 500 || this.closing.signal.aborted) return;
      window.clearInterval(this.keeping);
      this.keeping = undefined;
      if (error.status !== 404) this.reports.trouble(new Problem(0, `the lease is not extended: ${error.message}`));
    });
  }
}
