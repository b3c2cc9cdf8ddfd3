// The baseline: a run of a job or a capture that others are compared with, until it is removed. It
// stands in the address, so that a link shows the same comparison, and goes along to other views.

import { effect, signal } from '@preact/signals';

import { address, arrange, stepsIn } from './address';
import { report } from './api';

export type Baseline =
  | { kind: 'run'; job: string; attempt: number }
  | { kind: 'capture'; id: string };

const NAME = 'baseline';

/** The views that compare. */
const VIEWS = ['job', 'incident', 'capture'];

/** As it was chosen in this tab. */
const chosen = signal(report ? '' : (sessionStorage.getItem(NAME) ?? ''));

// An address without one is given the one that was chosen; an address with one chooses it.
if (!report) {
  effect(() => {
    const here = address.value.query.get(NAME) ?? '';
    if (here) keep(parsed(here) ? here : '');
    else if (chosen.peek() && VIEWS.includes(address.value.view))
      arrange({ [NAME]: chosen.peek() });
  });
}

function keep(text: string) {
  chosen.value = text;
  if (text) sessionStorage.setItem(NAME, text);
  else sessionStorage.removeItem(NAME);
}

/** The baseline; null without one. */
export function baselineIn(): Baseline | null {
  return parsed(address.value.query.get(NAME) ?? chosen.value);
}

export function parsed(text: string): Baseline | null {
  const found = /^(.+)#(\d{1,9})$/s.exec(text);
  if (found) return { kind: 'run', job: found[1], attempt: Number(found[2]) };
  return text.startsWith('cap-') ? { kind: 'capture', id: text } : null;
}

/** As it stands in the address, and as `memtape diff --run` takes a run. */
export const textOf = (of: Baseline): string =>
  of.kind === 'run' ? `${of.job}#${of.attempt}` : of.id;

/** Whether the view in the address compares with the baseline: series of ranks with those of a run,
 * and what a rank keeps, which needs a capture or steps, with a capture. */
export function isCompared(of: Baseline): boolean {
  const { view } = address.value;
  if (of.kind === 'run') return view === 'job' || view === 'incident';
  return view === 'capture' || (VIEWS.includes(view) && stepsIn() !== null);
}

/** Takes a baseline; the same one again, or null, removes it. */
export function setBaseline(of: Baseline | null): void {
  const text = of ? textOf(of) : '';
  keep(text === chosen.peek() ? '' : text);
  arrange({ [NAME]: chosen.peek() });
}

/** Whether a run is the baseline: a job may be called by its name alone. */
export const isBaseline = (of: Baseline, job: string, attempt: number): boolean =>
  of.kind === 'run' && of.attempt === attempt && (of.job === job || job.startsWith(`${of.job}@`));

export const wordsOf = (of: Baseline): string =>
  of.kind === 'run' ? `${of.job}, attempt ${of.attempt}` : `capture ${of.id}`;
