// The slider of steps under a map of segments: at the end of which step the map shows its blocks.
// The keys , and . go to the events before and after, which are the steps that allocated a block.
//
// The address has the step once the slider rests: a browser takes few changes of it in a second.

import { useEffect, useRef, useState } from 'preact/hooks';

import { arrange, numberIn } from '../address';
import { beside, type Tally, type Which } from '../charts/segments';
import { withEvents } from '../slide';
import { bytes, plural, whole } from '../units';

const RESTS_MS = 250;

/** The chosen step, at most the last one, and a function that chooses another. */
export function useStep(last: number): [number, (step: number) => void] {
  const inAddress = numberIn('at');
  const [at, setAt] = useState(inAddress);
  // What the slider itself wrote must not take back a step that was chosen meanwhile.
  const written = useRef<number | null | undefined>(undefined);
  useEffect(() => {
    if (inAddress !== written.current) setAt(inAddress);
    written.current = undefined;
  }, [inAddress]);
  useEffect(() => {
    if (at === inAddress) return;
    const timer = setTimeout(() => {
      written.current = at;
      arrange({ at });
    }, RESTS_MS);
    return () => clearTimeout(timer);
  }, [at]);
  const choose = (step: number) => setAt(step >= last ? null : step);
  return [Math.max(1, Math.min(at ?? last, last)), choose];
}

interface StepSliderOf {
  at: number;
  last: number;
  /** Steps in which a block was allocated. */
  events: number[];
  tally: Tally;
  unit: string;
  onStep: (step: number) => void;
}

export function StepSlider({ at, last, events, tally, unit, onStep }: StepSliderOf) {
  const go = (which: Which) => onStep(beside(events, at, which));
  useEffect(() => withEvents(go), [events, at, last]);
  const isFirst = beside(events, at, 'before') === at;
  const isLast = beside(events, at, 'after') === at;
  return (
    <div class="slider">
      <button type="button" disabled={isFirst} aria-keyshortcuts="," onClick={() => go('before')}>
        ← event <kbd>,</kbd>
      </button>
      <input
        type="range"
        min={1}
        max={last}
        value={at}
        aria-label={`Blocks at the end of ${unit}`}
        aria-valuetext={`${unit} ${whole(at)} of ${whole(last)}`}
        onInput={event => onStep(Number(event.currentTarget.value))}
      />
      <button type="button" disabled={isLast} aria-keyshortcuts="." onClick={() => go('after')}>
        event <kbd>.</kbd> →
      </button>
      <p role="status">{said(at, last, tally, unit)}</p>
    </div>
  );
}

function said(at: number, last: number, tally: Tally, unit: string): string {
  if (at >= last)
    return `${unit} ${whole(last)}, the last of the capture: all blocks are drawn in full`;
  const uncertain = tally.uncertain
    ? `; ${plural(tally.uncertain, 'merged block')} not counted`
    : '';
  return (
    `end of ${unit} ${whole(at)}: ${bytes(tally.bytes)} of ${bytes(tally.ofBytes)} in ` +
    `${whole(tally.blocks)} of ${plural(tally.ofBlocks, 'block')} were there; ` +
    `pale ones were allocated later${uncertain}`
  );
}
