// The time at which the memory of a rank in a capture is shown: the end of its step, its peak, or
// the request that failed after it; and what that request did not find.

import { address, here, look } from '../address';
import { report } from '../api';
import type { Kept } from '../types';
import { bytes, isKnown, whole } from '../units';
import { Soft } from './basics';

/** The times by their names in the API. */
export const TIMES: readonly string[] = ['step_end', 'peak', 'failed_request'];

/** The time of the address; null where none is chosen. */
export const heldIn = (): string | null =>
  TIMES.find(name => name === address.value.query.get('held')) ?? null;

/** Of a peak and of a failed request no steps are chosen. */
const ELSEWHERE = { steps: null, at: null };

interface HeldAtOf {
  /** The time that is shown, or that was chosen. */
  at: string;
  rank: number;
  hasFailed: boolean;
  unit: string;
}

/** The choice of the time; a report has one time alone. */
export function HeldAt({ at, rank, hasFailed, unit }: HeldAtOf) {
  if (report) return null;
  const choose = (event: Event) =>
    look({ ...ELSEWHERE, held: (event.currentTarget as HTMLSelectElement).value });
  return (
    <p class="pills">
      <label>
        {'shown at '}
        <select value={at} onChange={choose}>
          <option value="step_end">{`the end of the ${unit}`}</option>
          <option value="peak">{`the peak of rank ${rank}`}</option>
          {hasFailed ? <option value="failed_request">the failed request</option> : null}
        </select>
      </label>
    </p>
  );
}

/** That a capture, or the baseline, does not show a rank at a time. */
export function notShown(at: string, rank: number, unit: string, baseline: string | null): string {
  const where = `this capture${baseline === null ? '' : ` or ${baseline}`}`;
  switch (at) {
    case 'peak':
      return `${where} has no events of the ${unit}s of rank ${rank}`;
    case 'failed_request':
      return `rank ${rank} has no failed request in ${where}`;
    default:
      return `${where} has no memory of rank ${rank}`;
  }
}

/** `at the peak of rank 2, in step 112`. */
export function timeOf({ at, rank, step }: Kept, unit: string): string {
  const which = `${unit} ${whole(step)}`;
  switch (at) {
    case 'peak':
      return `at the peak of rank ${rank}, in ${which}`;
    case 'failed_request':
      return `when a request failed, in ${which}`;
    default:
      return `at the end of ${which}`;
  }
}

/** That a request failed after the end of the step that is shown. */
export function FailedLater({ failed, unit }: { failed: Kept['failed']; unit: string }) {
  if (!failed) return null;
  const which = `${unit} ${whole(failed.step)}`;
  return (
    <Soft>
      {`A request for ${bytes(failed.asked_bytes)} failed later, in ${which}. `}
      {report ? null : (
        <a href={here({ ...ELSEWHERE, held: 'failed_request' })}>
          Show the memory at the failed request
        </a>
      )}
    </Soft>
  );
}

/** What a failed request did not find. */
export function Failed({ failed }: { failed: Kept['failed'] }) {
  if (!failed) return null;
  const { file, line } = failed.frame;
  return (
    <p>
      {`${bytes(failed.asked_bytes)} asked for${file ? ` at ${file}:${line}` : ''} did not fit: `}
      {`the allocator held ${bytes(failed.reserved_bytes)}, `}
      {`${bytes(failed.allocated_bytes)} of it in tensors`}
      {isKnown(failed.device_free_bytes)
        ? `, ${bytes(failed.device_free_bytes)} of the device free`
        : ''}
    </p>
  );
}
