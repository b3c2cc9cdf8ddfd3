// The order of a job's captures, and whether one may be asked for. Pure: no document, no request.

import type { Capture, Job } from './types';

/** Whether a tape of the newest attempt still shows the end of a step. */
export const mayCapture = (job: Job | undefined, attempt: number, step: number): boolean =>
  job?.attempt === attempt &&
  job.step_on_tapes > 0 &&
  step >= job.step_on_tapes &&
  step <= job.step_max;

/** The captures of a job before and after the one with this id, by the time of their requests. */
export function besides(captures: Capture[], id: string | null) {
  const sorted = [...captures].sort((a, b) => a.requested_wall_ns - b.requested_wall_ns);
  const at = sorted.findIndex(of => of.id === id);
  // Where none is in view, the newest one comes before.
  if (at < 0) return { before: id ? null : (sorted.at(-1) ?? null), after: null };
  return { before: sorted[at - 1] ?? null, after: sorted[at + 1] ?? null };
}
