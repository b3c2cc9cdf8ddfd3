// The pill that says what the view is compared with, and removes it.

import { baselineIn, isCompared, setBaseline, textOf, wordsOf, type Baseline } from '../baseline';
import { Link } from './link';

export function BaselinePill() {
  const baseline = baselineIn();
  if (!baseline || !isCompared(baseline)) return null;
  return (
    <p class="pills" role="status">
      {'Compared with '}
      {baseline.kind === 'run' ? (
        <Link view="job" id={baseline.job} values={{ attempt: baseline.attempt }}>
          {wordsOf(baseline)}
        </Link>
      ) : (
        <Link view="capture" id={baseline.id}>
          {wordsOf(baseline)}
        </Link>
      )}{' '}
      <button type="button" class="pill" aria-keyshortcuts="b" onClick={() => setBaseline(null)}>
        Remove the baseline ✕
      </button>
    </p>
  );
}

/** Takes what is in view as the baseline. */
export function SetBaseline({ of }: { of: Baseline }) {
  const known = baselineIn();
  if (known && textOf(known) === textOf(of)) {
    return <span class="soft">the baseline: open another run or capture to compare it</span>;
  }
  return (
    <button type="button" title="key b" aria-keyshortcuts="b" onClick={() => setBaseline(of)}>
      Use as baseline
    </button>
  );
}
