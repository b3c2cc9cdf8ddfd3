// The answers that the views show: each path is asked for once, whoever shows it, and again while a
// view shows it: when the coordinator says that something of it has changed, else every few
// seconds. A view is drawn again only where the text of an answer changed.
//
// Answers are kept for a while after the last view of them has gone, so that Back shows at once
// what was there.

import { signal, type Signal } from '@preact/signals';
import { useEffect } from 'preact/hooks';

import { getMarked, NotAnswerable, NotFound, NotSignedIn, report, type Marked } from './api';
import { Live } from './live';

const EVERY_MS = 2000;
/** What changes with time alone, such as a silent rank, is asked for again after this time. */
const UNCHANGED_MS = 15_000;
/** What reports alone change. */
const OF_REPORTS = /^jobs\/[^/]+\/(area|differences|lines|series)\b/;
const KEPT_MAX = 256;
const PARALLEL_MAX = 6;

/** What is known of a path. After an error the data before it stay. */
export interface Answer<T> {
  data: T | null;
  error: Error | null;
}

/** When the last answer came, and why the last request failed. */
export const freshness = signal<{ at: Date | null; error: string }>({ at: null, error: '' });

/** Whether the coordinator must know first who asks. */
export const isSignInNeeded = signal(false);

interface Known {
  answer: Signal<Answer<unknown>>;
  /** The last answer as it came; null where none did. */
  last: Marked | null;
  users: number;
  everyMs: number;
  askedMs: number;
  isAsking: boolean;
  /** Whether a request got an answer; a refusal such as 404 is one. */
  isAnswered: boolean;
  /** How often something else than a request for it has brought the answer. */
  puts: number;
}

const known = new Map<string, Known>();

/**
 * The answer of a path, asked for again every `everyMs` milliseconds, never with 0. Of no path
 * nothing is known.
 */
export function useAnswer<T>(path: string | null, everyMs = EVERY_MS): Answer<T> {
  useEffect(() => {
    if (path === null) return;
    const found = entry(path);
    found.users += 1;
    found.everyMs = everyMs;
    ask(path, found);
    return () => {
      found.users -= 1;
    };
  }, [path, everyMs]);
  if (path === null) return { data: null, error: null };
  return entry(path).answer.value as Answer<T>;
}

/** The answers of several paths, in their order. */
export function useAnswers<T>(paths: string[], everyMs = EVERY_MS): Answer<T>[] {
  const key = paths.join('\n');
  useEffect(() => {
    const found = paths.map(entry);
    for (const [i, of] of found.entries()) {
      of.users += 1;
      of.everyMs = everyMs;
      ask(paths[i], of);
    }
    return () => {
      for (const of of found) of.users -= 1;
    };
  }, [key, everyMs]);
  return paths.map(path => entry(path).answer.value as Answer<T>);
}

function entry(path: string): Known {
  let found = known.get(path);
  if (!found) {
    const answer = signal<Answer<unknown>>({ data: null, error: null });
    found = {
      answer,
      last: null,
      users: 0,
      everyMs: EVERY_MS,
      askedMs: 0,
      isAsking: false,
      isAnswered: false,
      puts: 0,
    };
    known.set(path, found);
    forget();
  }
  return found;
}

/** Forgets the oldest answers that nobody shows. */
function forget() {
  for (const [path, { users, isAsking }] of known) {
    if (known.size <= KEPT_MAX) return;
    if (users === 0 && !isAsking) known.delete(path);
  }
}

// --- requests, a few at a time -----------------------------------------------

const waiting: (() => Promise<void>)[] = [];
let running = 0;

function ask(path: string, of: Known) {
  if (of.isAsking || (of.isAnswered && isFresh(path, of))) return;
  of.isAsking = true;
  waiting.push(() => answered(path, of));
  run();
}

function isFresh(path: string, { everyMs, askedMs, last }: Known): boolean {
  const ageMs = Date.now() - askedMs;
  // What never changes may not be there yet.
  if (everyMs === 0) return last !== null || ageMs < EVERY_MS;
  if (ageMs < everyMs) return true;
  if (!live.isOn || live.hasChanged(path, askedMs)) return false;
  return ageMs < UNCHANGED_MS || OF_REPORTS.test(path);
}

function run() {
  while (running < PARALLEL_MAX && waiting.length > 0) {
    running += 1;
    waiting.shift()!().finally(() => {
      running -= 1;
      run();
    });
  }
}

async function answered(path: string, of: Known) {
  const { puts } = of;
  // What changes from here on may not be in the answer.
  of.askedMs = Date.now();
  try {
    const found = await getMarked(path, of.last);
    // An answer that was asked for before a change may be from before it.
    const isNewest = puts === of.puts;
    if (isNewest && (found.text !== of.last?.text || of.answer.value.error)) {
      of.answer.value = { data: JSON.parse(found.text), error: null };
    }
    if (isNewest) [of.last, of.isAnswered] = [found, true];
    freshness.value = { at: new Date(), error: '' };
  } catch (error) {
    const problem = error instanceof Error ? error : new Error(String(error));
    if (problem instanceof NotSignedIn) {
      isSignInNeeded.value = true;
      // `restart` listens again.
      live.stop();
    } else if (of.answer.value.error?.message !== problem.message) {
      of.answer.value = { data: of.answer.value.data, error: problem };
    }
    // That the coordinator has no such thing, or cannot answer this, is an answer.
    const isAnswer = problem instanceof NotFound || problem instanceof NotAnswerable;
    if (isAnswer && puts === of.puts) of.isAnswered = true;
    freshness.value = { at: freshness.value.at, error: isAnswer ? '' : problem.message };
  }
  of.isAsking = false;
}

/** Asks for all that is shown, where it is no longer fresh. */
export function refresh() {
  if (document.hidden || isSignInNeeded.value) return;
  for (const [path, of] of known) if (of.users > 0 && of.everyMs > 0) ask(path, of);
}

/** Shows an answer that a request which changed something has brought. */
export function put(path: string, data: unknown) {
  const found = entry(path);
  found.puts += 1;
  found.last = { text: JSON.stringify(data), tag: null };
  found.isAnswered = true;
  found.answer.value = { data, error: null };
}

/** Forgets all answers and asks again: another person has signed in or out. */
export function restart() {
  isSignInNeeded.value = false;
  live.listen();
  for (const [path, of] of known) {
    if (of.users === 0) known.delete(path);
    of.last = null;
    of.isAnswered = false;
    // An answer on its way is the other person's.
    of.puts += 1;
    of.askedMs = 0;
    of.answer.value = { data: null, error: null };
    if (of.users > 0) ask(path, of);
  }
}

const live = new Live(refresh);

if (!report) {
  setInterval(refresh, EVERY_MS / 2);
  document.addEventListener('visibilitychange', () => {
    if (document.hidden) live.stop();
    else if (!isSignInNeeded.value) live.listen();
    refresh();
  });
  live.listen();
}
