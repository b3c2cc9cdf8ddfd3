// The keys of the page, its dialogs, and the buttons that open them without keys.
//
// Keys do nothing while one types in a field or a dialog is open. A report has none: it holds few
// views, and nothing in it can be changed.

import { signal } from '@preact/signals';
import { useEffect } from 'preact/hooks';

import { address, link, numberIn } from '../address';
import { get, paths } from '../api';
import { setBaseline } from '../baseline';
import { besides } from '../captures';
import { KEYS, wishOf, type Wish } from '../keys';
import { turnEvent } from '../slide';
import type { Capture, Captures, Incident, Ranks } from '../types';
import { Dialog } from './dialog';
import { Palette } from './palette';

const open = signal<'find' | 'keys' | null>(null);
const close = () => {
  open.value = null;
};

/** How long `g` waits for the second key. */
const AFTER_G_MS = 1500;

export function Keys() {
  useEffect(() => {
    let gMs = -Infinity;
    const press = (event: KeyboardEvent) => {
      if (event.isComposing || isTyping(event) || document.querySelector('dialog[open]')) return;
      const wish = wishOf(event, event.timeStamp - gMs < AFTER_G_MS);
      gMs = wish?.kind === 'g' ? event.timeStamp : -Infinity;
      if (!wish || wish.kind === 'g') return;
      event.preventDefault();
      grant(wish);
    };
    addEventListener('keydown', press);
    return () => removeEventListener('keydown', press);
  }, []);
  return (
    <>
      <footer class="keys">
        <button type="button" aria-keyshortcuts="Control+K" onClick={() => (open.value = 'find')}>
          Find <kbd>Ctrl K</kbd>
        </button>
        <button type="button" aria-keyshortcuts="?" onClick={() => (open.value = 'keys')}>
          Keys <kbd>?</kbd>
        </button>
      </footer>
      {open.value === 'find' ? <Palette onClose={close} /> : null}
      {open.value === 'keys' ? <KeyList /> : null}
    </>
  );
}

function isTyping({ target }: KeyboardEvent): boolean {
  if (!(target instanceof HTMLElement)) return false;
  // No text goes into these.
  const isText = !target.matches('[type=range], [type=checkbox]');
  return target.isContentEditable || (isText && target.matches('input, textarea, select'));
}

function grant(wish: Wish) {
  if (wish.kind === 'find' || wish.kind === 'keys') open.value = wish.kind;
  else if (wish.kind === 'go') location.hash = link(wish.view);
  else if (wish.kind === 'baseline') void takeBaseline();
  else if (wish.kind === 'capture') void goToCapture(wish.which);
  else if (wish.kind === 'event') turnEvent(wish.which);
}

/** To the capture before or after the one in view; from a job or an incident to the newest one. */
async function goToCapture(which: 'before' | 'after') {
  const { href } = location;
  try {
    const { job, capture } = await inView();
    if (job === null) return;
    const { captures } = await get<Captures>(paths.captures(job));
    const next = besides(captures, capture)[which];
    // Meanwhile one may have gone elsewhere.
    if (next && location.href === href)
      location.hash = link('capture', next.id, { rank: numberIn('rank') });
  } catch {
    // The view itself says what the coordinator does not know or refuses.
  }
}

/** Takes the run or the capture in view as the baseline. */
async function takeBaseline() {
  const { view, id } = address.value;
  try {
    if (view === 'capture') return setBaseline({ kind: 'capture', id });
    const { job, attempt } =
      view === 'incident'
        ? await get<Incident>(paths.incident(id))
        : await get<Ranks>(paths.ranks(id, numberIn('attempt')));
    if (address.value.id === id) setBaseline({ kind: 'run', job, attempt });
  } catch {
    // The view itself says what the coordinator does not know or refuses.
  }
}

/** The job and the capture in view. */
async function inView(): Promise<{ job: string | null; capture: string | null }> {
  const { view, id } = address.value;
  switch (view) {
    case 'job':
      return { job: id, capture: null };
    case 'incident':
      return { job: (await get<Incident>(paths.incident(id))).job, capture: null };
    case 'capture':
      return { job: (await get<Capture>(paths.capture(id))).job, capture: id };
    default:
      return { job: null, capture: null };
  }
}

const KeyList = () => (
  <Dialog label="Keys" onClose={close}>
    <h2>Keys</h2>
    <dl class="key-list">
      {KEYS.map(([keys, words]) => (
        <>
          <dt>
            {keys.map((key, i) => (
              <>
                {i ? ' ' : ''}
                <kbd>{key}</kbd>
              </>
            ))}
          </dt>
          <dd>{words}</dd>
        </>
      ))}
    </dl>
    <p class="soft">Keys do nothing while you type in a field.</p>
    <button type="button" onClick={close}>
      Close
    </button>
  </Dialog>
);
