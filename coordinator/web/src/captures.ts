// The order of a job's captures, and of which steps they are. Pure: no document, no request.

import type { Capture } from './types';
import { plural, whole } from './units';

/** The captures of a job before and after the one with this id, by the time of their requests. */
export function besides(captures: Capture[], id: string | null) {
  const sorted = [...captures].sort((a, b) => a.requested_wall_ns - b.requested_wall_ns);
  const at = sorted.findIndex(of => of.id === id);
  // Where none is in view, the newest one comes before.
  if (at < 0) return { before: id ? null : (sorted.at(-1) ?? null), after: null };
  return { before: sorted[at - 1] ?? null, after: sorted[at + 1] ?? null };
}

/** The ranks that a capture shows, and at which step. */
export function shown({ step, aligned, ranks, parts, trigger }: Capture, unit: string): string {
  const total = plural(ranks, 'rank');
  if (step) {
    // A person may have named another step.
    const isNewest = trigger !== 'manual' && aligned === ranks;
    const why = isNewest ? `, the newest ${unit} that all ranks could show` : '';
    return `${whole(aligned)} of ${total} at the end of ${unit} ${whole(step)}${why}`;
  }
  const held = parts.filter(part => part.bytes > 0);
  if (held.length === 0) return `no snapshot of ${total}`;
  if (held.some(part => part.step !== held[0].step)) {
    return `${whole(held.length)} of ${total}, each at its own ${unit}`;
  }
  const isLate = held.every(part => part.outcome === 'late');
  const why = isLate ? ', later than the one that was asked for' : '';
  return `${whole(held.length)} of ${total} at the end of ${unit} ${whole(held[0].step)}${why}`;
}
