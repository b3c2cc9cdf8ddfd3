// Keys of the page, and which entries of the palette fit the text. Pure: no document, no request.

/** The keys and what they do, as the page lists them. */
export const KEYS: [keys: string[], words: string][] = [
  [
    ['Ctrl', 'K'],
    'find a job, a rank of the job in view or else of the newest one, an incident, capture, line ' +
      'or command (⌘ K on a Mac)',
  ],
  [['?'], 'this list'],
  [['g', 'h'], 'go to jobs and incidents'],
  [['g', 'n'], 'go to the nodes'],
  [['g', 'a'], 'go to the actions'],
  [['['], 'previous capture of the job'],
  [[']'], 'next capture of the job'],
  [['b'], 'take this run or capture as the baseline, or remove it'],
  [[','], 'previous event of a capture: a step that allocated a block'],
  [['.'], 'next event of a capture'],
  [['Tab'], 'next link, button, table or chart'],
  [['←', '→', '↑', '↓'], 'move in the chart that has the focus'],
  [['Esc'], 'close; in a chart, show all again'],
];

/** What `g` and a further key lead to. */
const GOES: Record<string, string> = { h: 'jobs', n: 'nodes', a: 'actions' };

/** What a key asks for. */
export type Wish =
  | { kind: 'find' | 'keys' | 'g' | 'baseline' }
  | { kind: 'capture' | 'event'; which: 'before' | 'after' }
  | { kind: 'go'; view: string };

/** A pressed key, and which others are held. */
export type Press = Pick<
  KeyboardEvent,
  'key' | 'ctrlKey' | 'metaKey' | 'altKey' | 'getModifierState'
>;

/** What a key asks for; `isAfterG` where `g` was pressed just before. */
export function wishOf(press: Press, isAfterG: boolean): Wish | null {
  const { key } = press;
  if (isFind(press)) return { kind: 'find' };
  if (isHeld(press)) return null;
  if (isAfterG && Object.hasOwn(GOES, key)) return { kind: 'go', view: GOES[key] };
  if (key === 'g') return { kind: 'g' };
  if (key === 'b') return { kind: 'baseline' };
  if (key === '?') return { kind: 'keys' };
  if (key === '[') return { kind: 'capture', which: 'before' };
  if (key === ']') return { kind: 'capture', which: 'after' };
  if (key === ',') return { kind: 'event', which: 'before' };
  return key === '.' ? { kind: 'event', which: 'after' } : null;
}

/** Ctrl-K or Cmd-K. */
export const isFind = ({ key, ctrlKey, metaKey, altKey }: Press): boolean =>
  key.toLowerCase() === 'k' && ctrlKey !== metaKey && !altKey;

// Some keyboards have brackets behind AltGr, those of a Mac behind Alt. With a letter Alt is the
// browser's.
function isHeld(press: Press): boolean {
  if (press.getModifierState('AltGraph')) return false;
  return press.metaKey || press.ctrlKey || (press.altKey && /^\w$/.test(press.key));
}

/** An entry of the palette: a link, or a line to copy. */
export interface Entry {
  /** What it is, such as `job`. */
  kind: string;
  words: string;
  detail: string;
  href?: string;
  copy?: string;
}

/** Tells entries apart. */
export const keyOf = ({ kind, words, href = '' }: Entry): string => `${kind} ${words} ${href}`;

/** The entries that have each word in the kind, the words or the detail; the best first. */
export function fitting(entries: Entry[], query: string): Entry[] {
  const words = query.toLowerCase().split(/\s+/).filter(Boolean);
  if (words.length === 0) return entries;
  const ranked: [number, Entry][] = [];
  for (const entry of entries) {
    // One that is called as it was typed comes before those that also have the words.
    const isIt = entry.words.toLowerCase() === words.join(' ');
    const distance = isIt ? -1 : words.reduce((sum, word) => sum + distanceOf(entry, word), 0);
    if (distance < Infinity) ranked.push([distance, entry]);
  }
  return ranked.sort(([a], [b]) => a - b).map(([, entry]) => entry);
}

/** 0 where the words are it or a word of them is, 1 where one begins so, more elsewhere. A number
 * is not found within another one of the detail, such as a rank within a process id. */
function distanceOf({ kind, words, detail }: Entry, word: string): number {
  const text = words.toLowerCase();
  const parts = text.split(/[^\p{L}\p{N}]+/u);
  if (text === word || parts.includes(word)) return 0;
  if (text.startsWith(word) || parts.some(part => part.startsWith(word))) return 1;
  if (text.includes(word) || kind.startsWith(word)) return 2;
  const isThere = /^\d+$/.test(word)
    ? detail.split(/[^\p{L}\p{N}]+/u).includes(word)
    : detail.toLowerCase().includes(word);
  return isThere ? 3 : Infinity;
}
