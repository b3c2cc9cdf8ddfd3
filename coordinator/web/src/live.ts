// The stream of changes: which jobs have anything new. A tab that is hidden listens to nothing, and
// asks again when it is shown.
//
// Where there is no stream, as behind a proxy that cuts it, or where it is not about all jobs, the
// answers are asked for by the clock (answers.ts).

import type { Changes } from './types';

const PATH = 'api/v1/changes';
const AGAIN_MS = 5000;

/** What is known to have changed, and when. */
export class Live {
  /** Whether every change is reported. */
  isOn = false;
  #allMs = 0;
  #jobsMs = new Map<string, number>();
  #source: EventSource | null = null;
  #again: ReturnType<typeof setTimeout> | undefined;
  readonly #onChange: () => void;

  /** `onChange` is called after each event. */
  constructor(onChange: () => void) {
    this.#onChange = onChange;
  }

  /** Listens, unless the tab is hidden. */
  listen(): void {
    this.stop();
    if (document.hidden) return;
    const source = new EventSource(PATH);
    this.#source = source;
    source.onmessage = ({ data }) => this.take(JSON.parse(data) as Changes);
    source.onerror = () => {
      this.isOn = false;
      // What a browser does not open again by itself: the coordinator refused it.
      if (source.readyState === EventSource.CLOSED)
        this.#again = setTimeout(() => this.listen(), AGAIN_MS);
    };
  }

  stop(): void {
    clearTimeout(this.#again);
    this.#source?.close();
    this.#source = null;
    this.isOn = false;
  }

  take({ is_whole, is_all, jobs }: Changes): void {
    const now = Date.now();
    this.isOn = is_whole;
    if (is_all) this.#allMs = now;
    for (const job of jobs) this.#jobsMs.set(job, now);
    this.#onChange();
  }

  /** Whether the answer of a path may be another one than at this time. */
  hasChanged(path: string, sinceMs: number): boolean {
    if (this.#allMs >= sinceMs) return true;
    const found = /^jobs\/([^/?]+)\//.exec(path);
    const job = found && decodeURIComponent(found[1]);
    for (const [name, ms] of this.#jobsMs) {
      // A job is called by its id or by its name alone.
      const isIt = job === null || name === job || name.startsWith(`${job}@`);
      if (isIt && ms >= sinceMs) return true;
    }
    return false;
  }
}
