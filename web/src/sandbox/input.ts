import { Problem } from "../api/client";

const PIECE_BYTES = 512 * 1024; // the most that the server takes in one request
const MOST_WAITING_BYTES = 4 * 1024 * 1024;
const FRESH_MS = 1_000;
const FIRST_PAUSE_MS = 250;
const LONGEST_PAUSE_MS = 5_000;
const NO_ROOM_MS = 50;

export interface Receiver {
  /** How many bytes of input the command has. */
  count: () => Promise<number>;
  /** Gives the command the bytes at an offset, and returns how many it has in all. */
  send: (offset: number, bytes: Uint8Array) => Promise<number>;
}

export interface Listener {
  /** Whether the input does not arrive at the moment. */
  late: (is: boolean) => void;
  /** Input was refused for good. */
  refused: (error: Error) => void;
}

/**
 * What was typed, on its way to a command: each byte arrives once and in order, through lost connections and answers.
 * While one request is under way, the next keys wait and go together. Input outlives the page's view of the terminal.
 */
export class Input {
  listener: Listener | null = null;
  isStopped = false;
  private waiting = new Uint8Array();
  private offset = 0;
  private answeredAt = 0;
  private busy = false;

  constructor(private receiver: Receiver) {}

  get isWaiting(): boolean {
    return this.waiting.length > 0;
  }

  put(bytes: Uint8Array): void {
    if (this.isStopped) return;
    if (this.waiting.length + bytes.length > MOST_WAITING_BYTES) {
      this.listener?.refused(new Problem(0, "this is more than can wait to be typed, and was left out"));
      return;
    }
    const joined = new Uint8Array(this.waiting.length + bytes.length);
    joined.set(this.waiting);
    joined.set(bytes, this.waiting.length);
    this.waiting = joined;
    if (!this.busy) void this.run();
  }

  stop(): void {
    this.isStopped = true;
    this.waiting = new Uint8Array();
  }

  private async run(): Promise<void> {
    this.busy = true;
    let pause = FIRST_PAUSE_MS;
    let isRepeated = false;
    while (this.isWaiting) {
      try {
        if (!isRepeated && Date.now() - this.answeredAt > FRESH_MS) {
          this.offset = Math.max(this.offset, await this.receiver.count()); // another person may have typed
        }
        const piece = this.waiting.slice(0, PIECE_BYTES);
        const taken = await this.receiver.send(this.offset, piece).catch((error: unknown) => {
          isRepeated = true; // the command may have it
          throw error;
        });
        const end = this.offset + piece.length;
        // More than was sent is what another person typed: the command has that, and nothing of this piece.
        if (isRepeated || taken <= end) this.waiting = this.waiting.slice(Math.max(0, Math.min(taken, end) - this.offset));
        if (taken <= this.offset) await sleep(NO_ROOM_MS);
        this.offset = Math.max(this.offset, taken);
        this.answeredAt = Date.now();
        isRepeated = false;
        pause = FIRST_PAUSE_MS;
        this.listener?.late(false);
      } catch (error) {
        if (error instanceof Problem && error.status >= 400 && error.status < 500 && error.status !== 429) {
          this.stop();
          this.listener?.late(false);
          this.listener?.refused(error);
          break;
        }
        this.listener?.late(true);
        await sleep(pause * (0.5 + Math.random() / 2));
        pause = Math.min(2 * pause, LONGEST_PAUSE_MS);
      }
    }
    this.busy = false;
  }
}

const sleep = (milliseconds: number) => new Promise((resolve) => setTimeout(resolve, milliseconds));
