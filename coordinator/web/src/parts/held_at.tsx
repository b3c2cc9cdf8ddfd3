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

/** The choice of the time; a report has one time alone. */
export function HeldAt({ of, unit }: { of: Kept; unit: string }) {
  if (report) return null;
  const choose = (event: Event) =>
    look({ ...ELSEWHERE, held: (event.currentTarget as HTMLSelectElement).value });
  return (
    <label>
      {'shown at '}
      <select value={of.at} onChange={choose}>
        <option value="step_end">{`the end of the ${unit}`}</option>
        <option value="peak">its peak</option>
        {of.failed ? <option value="failed_request">the failed request</option> : null}
      </select>
    </label>
  );
}

/** `at its peak, in step 112`. */
export function timeOf({ at, step }: Kept, unit: string): string {
  const which = `${unit} ${whole(step)}`;
  switch (at) {
    case 'peak':
      return `at its peak, in ${which}`;
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
        <a href={here({ ...ELSEWHERE, held: 'failed_request' })}>What was held then</a>
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
        ? `; ${bytes(failed.device_free_bytes)} of the device were free`
        : ''}
    </p>
  );
}
