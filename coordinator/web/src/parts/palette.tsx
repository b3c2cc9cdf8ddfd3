// The palette: a field, and below it what fits. The answers that it searches are asked for only
// while it is open.

import { useEffect, useMemo, useRef, useState } from 'preact/hooks';

import { address, numberIn } from '../address';
import { useAnswer } from '../answers';
import { paths } from '../api';
import { entriesOf } from '../entries';
import { fitting, isFind, keyOf, type Entry } from '../keys';
import type { Capture, Captures, Incident, Incidents, Job, Jobs, Ranks } from '../types';
import { whole } from '../units';
import { Dialog } from './dialog';

const SHOWN_MAX = 50;

export function Palette({ onClose }: { onClose: () => void }) {
  const field = useRef<HTMLInputElement>(null);
  const [query, setQuery] = useState('');
  const [chosen, setChosen] = useState('');
  const [said, setSaid] = useState('');
  const entries = useEntries();
  const found = useMemo(() => fitting(entries, query), [entries, query]);
  const shown = found.slice(0, SHOWN_MAX);
  // The choice is kept by what it is: with a new answer it may stand elsewhere.
  const at = Math.max(0, shown.findIndex(entry => keyOf(entry) === chosen));

  const type = (text: string) => {
    setQuery(text);
    setChosen('');
    setSaid('');
  };
  const take = async (entry: Entry | undefined) => {
    if (!entry) return;
    if (entry.href !== undefined) return follow(entry.href, onClose);
    const line = entry.copy ?? '';
    setChosen(keyOf(entry));
    if (await isCopied(line)) return setSaid(`Copied: ${line}`);
    setQuery(line);
    setSaid('The browser lets this page copy nothing. The line is selected in the field.');
    // After the field holds it.
    setTimeout(() => field.current?.select());
  };
  const press = (event: KeyboardEvent) => {
    const steps: Record<string, number> = { ArrowDown: 1, ArrowUp: -1 };
    const step = steps[event.key];
    if (step && shown.length) setChosen(keyOf(shown.at((at + step) % shown.length)!));
    else if (isFind(event)) onClose();
    else if (event.key === 'Enter' && !event.isComposing) void take(shown[at]);
    else return;
    event.preventDefault();
  };

  return (
    <Dialog label="Find" onClose={onClose} onKeyDown={press}>
      <input
        ref={field}
        type="text"
        role="combobox"
        aria-label="Find a job, rank, incident, capture, line or command"
        aria-expanded="true"
        aria-controls="found"
        aria-autocomplete="list"
        aria-activedescendant={shown.length ? `found-${at}` : undefined}
        placeholder="job, rank, incident, capture, file:line or command"
        autocomplete="off"
        spellcheck={false}
        autofocus
        value={query}
        onInput={event => type(event.currentTarget.value)}
      />
      <ul id="found" role="listbox" aria-label="Found" class="found">
        {shown.map((entry, i) => (
          <Option
            key={keyOf(entry)}
            entry={entry}
            id={`found-${i}`}
            isChosen={i === at}
            take={take}
          />
        ))}
      </ul>
      <p class="soft small" role="status">
        {said || summary(found.length, shown.length)}
      </p>
    </Dialog>
  );
}

const summary = (found: number, shown: number): string =>
  found === 0
    ? 'nothing fits'
    : found > shown
      ? `${shown} of ${whole(found)} are shown: type more`
      : `${whole(found)} found`;

interface OptionOf {
  entry: Entry;
  id: string;
  isChosen: boolean;
  take: (entry: Entry) => void;
}

function Option({ entry, id, isChosen, take }: OptionOf) {
  const option = useRef<HTMLLIElement>(null);
  useEffect(() => {
    if (isChosen) option.current!.scrollIntoView({ block: 'nearest' });
  }, [isChosen]);
  return (
    <li ref={option} id={id} role="option" aria-selected={isChosen} onClick={() => take(entry)}>
      <span class="soft kind">{entry.kind}</span>
      <span class={entry.copy || entry.kind === 'line' ? 'code' : ''}>{entry.words}</span>
      <span class="soft small">{entry.detail}</span>
    </li>
  );
}

/** Goes to a view; the focus goes with it. */
function follow(href: string, onClose: () => void) {
  onClose();
  location.hash = href;
  // After the dialog has given the focus back.
  setTimeout(() => document.getElementById('content')?.focus({ preventScroll: true }));
}

/** Whether the browser has copied a line: without TLS it has no clipboard. */
async function isCopied(line: string): Promise<boolean> {
  try {
    await navigator.clipboard.writeText(line);
    return true;
  } catch {
    return false;
  }
}

/** All that can be found from where one is. */
function useEntries(): Entry[] {
  const { view, id } = address.value;
  const capture = useAnswer<Capture>(view === 'capture' ? paths.capture(id) : null).data;
  const incident = useAnswer<Incident>(view === 'incident' ? paths.incident(id) : null).data;
  const jobs = useAnswer<Jobs>(paths.jobs).data;
  const job =
    view === 'job'
      ? id
      : view === 'capture' || view === 'incident'
        ? ((capture ?? incident)?.job ?? null)
        : newestOf(jobs?.jobs ?? []);
  const attempt = capture?.attempt ?? incident?.attempt ?? numberIn('attempt');
  const ranks = useAnswer<Ranks>(job === null ? null : paths.ranks(job, attempt)).data;
  const incidents = useAnswer<Incidents>(paths.incidents()).data;
  const captures = useAnswer<Captures>(paths.captures()).data;
  return useMemo(
    () =>
      entriesOf({
        view,
        id,
        capture,
        job,
        attempt,
        ranks: ranks?.ranks ?? [],
        jobs: jobs?.jobs ?? [],
        incidents: incidents?.incidents ?? [],
        captures: captures?.captures ?? [],
      }),
    [view, id, capture, job, attempt, ranks, jobs, incidents, captures],
  );
}

/** The name of the job that started last. */
const newestOf = (jobs: Job[]): string | null =>
  [...jobs].sort((a, b) => b.started_wall_ns - a.started_wall_ns)[0]?.job ?? null;
